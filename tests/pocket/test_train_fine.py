"""A target of one latent pixel begins with what one of 2 x 2 knew, and is trained by the right gradient."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.memory.counts import context_operations, pass_operations
from sdvg_core.memory.sizes import kv_frames
from sdvg_core.pocket.trained_set import trained_set
from training import train_fine
from training.causal import SCHEDULE, Prompted, TrainingOps, build
from training.finer import PATCH, finer_config, finer_weights
from training.measure_pair import load_model
from training.train_fine import GpuPrompted, main, sizes_of, step_losses
from training.train_transformer import OWN, weights_of

CANDIDATE = Path(train_fine.__file__).parent / "candidates" / "pocket_krea_1x1.safetensors"
SIZES = WanConfig(dim=252, ffn_dim=64, num_layers=3, num_heads=2, text_dim=16)


def random_tree(sizes: WanConfig) -> WanTree:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tree = build(sizes).requires_grad_(False)
        for weight in tree.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return tree


@pytest.fixture(scope="module")
def coarse() -> WanTree:
    return random_tree(SIZES)


@pytest.fixture(scope="module")
def fine(coarse) -> WanTree:
    tree = WanTree(finer_config(SIZES, SIZES.num_layers)).requires_grad_(False)
    tree.load_state_dict(finer_weights(coarse))
    return tree


def test_a_token_reads_the_same_of_even_latents_and_shows_the_mean_of_its_four_pixels(coarse, fine):
    """Catches: kernels averaged in place of summed; a head cut along pixels in place of channels."""
    even = torch.randn(1, 16, 3, 4, 4).repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
    tokens = coarse.patch_embedding(even).repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
    torch.testing.assert_close(fine.patch_embedding(even), tokens, rtol=1e-5, atol=1e-5)
    hidden = torch.randn(5, SIZES.dim)
    # The layout of Wan's unpatchify: rows, columns, channels.
    shown = coarse.head.head(hidden).view(5, 2, 2, 16).mean(dim=(1, 2))
    torch.testing.assert_close(fine.head.head(hidden), shown, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shift, turned", [(0, 2.0), (1, 1.29), (2, 0.832), (3, 0.537)])
def test_what_looked_a_token_down_or_across_turns_by_as_much_as_the_shift_promises(coarse, shift, turned):
    """Catches: a shift towards the faster pairs, of the time's pairs, of one head into the other, of q and not k.

    `turned`: how far a pair of channels turns over a distance on the finer grid, by that of before. The pairs that
    wrap around are left out.
    """
    made = finer_weights(coarse, shift)
    width = SIZES.dim // SIZES.num_heads
    side = width // 6
    time = width // 2 - 2 * side
    table = TrainingOps(512, torch.ones(1, 1, dtype=torch.bool)).rope(coarse, 0, (2, 2, 2), torch.device("cpu"))
    turns = table[[4, 2, 1], 0]  # a frame on, a row down, a column across
    speeds = turns.angle().abs().amax(dim=0)
    for part in ("q", "k", "norm_q", "norm_k"):
        name = f"blocks.1.self_attn.{part}.weight"
        before, after = coarse.state_dict()[name], made[name]
        for head in range(SIZES.num_heads):
            for pair in range(width // 2):
                where = next(w for w in range(width // 2) if same_pair(after, before, width, head, w, pair))
                if pair < time:
                    assert where == pair
                elif (pair - time) % side + shift < side:
                    assert where == pair + shift
                    assert 2 * speeds[where] / speeds[pair] == pytest.approx(turned, abs=0.01)


def same_pair(after, before, width, head, where, pair) -> bool:
    rows = (head * width + 2 * where, head * width + 2 * pair)
    return torch.equal(after[rows[0] : rows[0] + 2], before[rows[1] : rows[1] + 2])


@pytest.mark.parametrize("later", [False, True])
def test_gradients_of_shared_contexts_are_those_of_the_whole_loss(fine, later, monkeypatch):
    """Catches: a context's or a prompt's gradient lost, or handed on once for each timestep."""
    monkeypatch.setattr(train_fine, "HalfPrompted", GpuPrompted)
    tree = WanTree(finer_config(SIZES, SIZES.num_layers))
    tree.load_state_dict(fine.state_dict())
    draw = torch.Generator().manual_seed(4)
    label, context = torch.randn(2, 3, 16, 3, 4, 4, generator=draw)
    heard = torch.randn(3, 7, 16, generator=draw), torch.ones(3, 7, dtype=torch.bool)
    context = context if later else None

    torch.manual_seed(5)
    losses = step_losses(tree, train_fine.PLAIN, (heard, context, label))
    split = {name: w.grad.clone() for name, w in tree.named_parameters()}
    tree.zero_grad()

    torch.manual_seed(5)
    expected = whole_losses(tree, heard, context, label)
    expected.mean().backward()
    torch.testing.assert_close(losses, expected.detach())
    for name, w in tree.named_parameters():
        torch.testing.assert_close(split[name], w.grad, rtol=1e-3, atol=1e-5, msg=name)


def whole_losses(tree, heard, context, label) -> torch.Tensor:
    """The same loss with nothing cut off: one graph from the weights to all four timesteps."""
    own = torch.rand(len(label), 1, 1, 1, 1) < OWN
    prompted, losses = Prompted(tree, *heard), []
    if context is not None:
        prompted.see(context)
    x = torch.randn_like(label)
    for number, step in enumerate(SCHEDULE):
        velocity = prompted.velocity(x, step.timestep)
        error = (velocity - (x - label) / step.sigma).square().mean(dim=1, keepdim=True)
        losses.append((weights_of(label) * error).mean())
        if number + 1 < len(SCHEDULE):
            sigma = SCHEDULE[number + 1].sigma
            clean = torch.where(own, x - step.sigma * velocity.detach(), label)
            x = (1 - sigma) * clean + sigma * torch.randn_like(x)
    return torch.stack(losses)


def test_the_kept_candidate_is_the_one_of_its_page_and_costs_as_a_target_does():
    """By counted operations; never by the clock."""
    assert hashlib.sha256(CANDIDATE.read_bytes()).hexdigest() in (CANDIDATE.parent / "README.md").read_text()
    trees = {"target": load_model(CANDIDATE), "drafter": load_model(trained_set().drafter)}
    assert trees["target"].patch_size == PATCH
    presets = {"target": get_preset("krea-14b"), "drafter": get_preset("self-forcing-1.3b")}
    operations = {}
    for role, tree in trees.items():
        tokens = 64 // (tree.patch_size[1] * tree.patch_size[2])
        sizes, preset = sizes_of(tree), presets[role]
        once = pass_operations(sizes, preset.block_frames, kv_frames(preset), tokens)
        operations[role] = len(SCHEDULE) * once + context_operations(sizes, preset, tokens)
    assert operations["target"] / operations["drafter"] == pytest.approx(8.87, abs=0.01)


@pytest.mark.heavy
def test_a_run_from_the_shipped_target_to_a_file_that_says_its_patch_and_can_be_gone_on_from(tmp_path, monkeypatch):
    """A clock that goes on by a second a look ends it: data, own contexts, a file, and on from there."""
    ticks = iter(range(10_000))
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), time=None)
    monkeypatch.setattr(train_fine, "time", clock)
    for name, value in {"CHECKED": 1, "LOOKED": 99, "OWN_EVERY": 0.5, "RECOGNISED": 9.0, "LOST": 9.0}.items():
        monkeypatch.setattr(train_fine, name, value)
    sizes = "--batch 2 --clips 2 --firsts 2 --own 1 --held-back 2 --judged 2 --layers 6 --device cpu"
    first, second = tmp_path / "first", tmp_path / "second"
    main([str(first), *sizes.split(), "--seconds", "12"])
    lines = [json.loads(line) for line in (first / "log.jsonl").read_text().splitlines()]
    recognised = [line for line in lines if "recognised" in line]
    assert recognised
    assert all(line["recognised"] == 1 for line in recognised), "all contexts count here"
    shown = [line for line in lines if "later" in line]
    assert all(torch.tensor(line[kind]).isfinite() for line in shown for kind in ("later", "first"))
    assert lines[-1]["whose"] == "the end"
    assert len(lines[-1]["dB_by_block"]) == 9
    assert {path.name for path in first.iterdir()} == {"log.jsonl", "target.safetensors"}
    made = load_model(first / "target.safetensors")
    assert (made.patch_size, len(made.blocks)) == (PATCH, 6)

    monkeypatch.setattr(train_fine.Bench, "oracle", lambda bench, tree: {})
    main([str(second), *sizes.split(), "--seconds", "1", "--start", str(first / "target.safetensors")])
    begins = json.loads((second / "log.jsonl").read_text().splitlines()[3])
    assert begins["stage"] == "begins"
    for name in ("error_alone", "error_first_two"):
        assert begins[name] == pytest.approx(shown[-1][name], rel=0.01)
