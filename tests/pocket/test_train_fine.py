"""The target is trained on by the right gradient, and its file says its patch."""

import json
from types import SimpleNamespace

import pytest
import torch

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.modules import WanTree
from training import train_fine
from training.causal import SCHEDULE, Prompted, build
from training.measure_pair import load_model
from training.train_fine import GpuPrompted, main, step_losses
from training.train_transformer import OWN, weights_of

SIZES = WanConfig(dim=252, ffn_dim=64, num_layers=3, num_heads=2, text_dim=16, patch_size=(1, 1, 1))


def random_tree(sizes: WanConfig) -> WanTree:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tree = build(sizes).requires_grad_(False)
        for weight in tree.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return tree


@pytest.fixture(scope="module")
def fine() -> WanTree:
    return random_tree(SIZES)


@pytest.mark.parametrize("later", [False, True])
def test_gradients_of_shared_contexts_are_those_of_the_whole_loss(fine, later, monkeypatch):
    """Catches: a context's or a prompt's gradient lost, or handed on once for each timestep."""
    monkeypatch.setattr(train_fine, "HalfPrompted", GpuPrompted)
    tree = WanTree(SIZES)
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
    assert (made.patch_size, len(made.blocks)) == ((1, 1, 1), 6)

    monkeypatch.setattr(train_fine.Bench, "oracle", lambda bench, tree: {})
    main([str(second), *sizes.split(), "--seconds", "1", "--start", str(first / "target.safetensors")])
    begins = json.loads((second / "log.jsonl").read_text().splitlines()[3])
    assert begins["stage"] == "begins"
    for name in ("error_alone", "error_first_two"):
        assert begins[name] == pytest.approx(shown[-1][name], rel=0.01)
