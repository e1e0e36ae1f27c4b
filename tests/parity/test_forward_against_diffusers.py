"""Our causal forward against diffusers' `WanTransformer3DModel` with the same random weights.

diffusers knows no cache: it is given the whole clip at once, one timestep per token, and an explicit mask that says
which frames a frame may see. That the two agree shows the forward, the caches, the window, the sink, the rotary
positions and the per-frame timesteps together.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.checkpoint import load_wan, open_wan
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.context import AnchorEncoder, RecomputedContext, RollingContext, Wan
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, History, Span, plan_spans
from sdvg_core.settings.context import Preset
from sdvg_core.settings.schedules import get_schedule
from tests.support.tiny import SIZE, as_anchors, condition, generator_of, make_noise, random_tree

PROMPT = condition()
FEW = {"text_dim": 8, "in_dim": 4, "out_dim": 4, "text_len": 4}
SIZES = [
    WanConfig(dim=24, ffn_dim=32, num_layers=2, num_heads=2, freq_dim=16, **FEW),
    WanConfig(dim=32, ffn_dim=40, num_layers=3, num_heads=1, freq_dim=32, **FEW),
    WanConfig(dim=128, ffn_dim=64, num_layers=1, num_heads=1, freq_dim=256, **FEW),
]

NAMES = {
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "head.modulation": "scale_shift_table",
    "head.head": "proj_out",
    ".self_attn.": ".attn1.",
    ".cross_attn.": ".attn2.",
    ".norm3.": ".norm2.",
    ".modulation": ".scale_shift_table",
    ".ffn.0.": ".ffn.net.0.proj.",
    ".ffn.2.": ".ffn.net.2.",
}
PARTS = {".q.": ".to_q.", ".k.": ".to_k.", ".v.": ".to_v.", ".o.": ".to_out.0."}


class Masked:
    """Attend by diffusers' processor, under a mask of which tokens see which."""

    def __init__(self, inner, mask: Tensor) -> None:
        self.inner = inner
        self.mask = mask

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        return self.inner(attn, hidden_states, encoder_hidden_states, self.mask, rotary_emb)


def diffusers_twin(tree: WanTree, config: WanConfig, *, exact_time: bool = True) -> WanTransformer3DModel:
    twin = WanTransformer3DModel(
        num_attention_heads=config.num_heads,
        attention_head_dim=config.dim // config.num_heads,
        in_channels=config.in_dim,
        out_channels=config.out_dim,
        text_dim=config.text_dim,
        freq_dim=config.freq_dim,
        ffn_dim=config.ffn_dim,
        num_layers=config.num_layers,
    )
    renamed = {}
    for name, tensor in tree.state_dict().items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        if ".attn" in name:
            for ours, theirs in PARTS.items():
                name = name.replace(ours, theirs)
        renamed[name] = tensor
    twin.load_state_dict(renamed)
    if exact_time:
        twin.condition_embedder.timesteps_proj.forward = lambda t: sinusoid_float64(t, config.freq_dim)
    return twin.eval()


def sinusoid_float64(times: Tensor, width: int) -> Tensor:
    """diffusers takes sines of up to 1000 radians in float32, which is off by 6e-5; Wan itself uses float64."""
    frequencies = torch.pow(10000.0, -torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    angles = torch.outer(times.double(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def velocity_at_once(twin, clean: Tensor, noisy: Tensor, timestep: float, sees) -> Tensor:
    """Return what diffusers predicts for `noisy` after `clean`; `sees(i, j)`: whether frame i may see frame j."""
    x = torch.cat((clean, noisy), dim=2)
    frames = x.shape[2]
    tokens = (SIZE[0] // 2) * (SIZE[1] // 2)
    mask = torch.tensor([[sees(i, j) for j in range(frames)] for i in range(frames)])
    mask = mask.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
    for block in twin.blocks:
        block.attn1.processor = Masked(block.attn1.processor, mask)
    times = torch.tensor([0.0] * clean.shape[2] + [timestep] * noisy.shape[2]).repeat_interleave(tokens)[None]
    with torch.inference_mode():
        out = twin(x, times, PROMPT.embedding, return_dict=False)[0]
    return out[:, :, clean.shape[2] :]


def random_history(blocks: int, channels: int) -> History:
    history = History(horizon=9)
    g = generator_of(11)
    for span in plan_spans(max(blocks, 1), 3)[:blocks]:
        latents = torch.randn(1, channels, 3, *SIZE, generator=g)
        anchors = as_anchors(*(torch.rand(1, 1, 3, 8, 8, generator=g) for _ in range(3)))
        history = history.commit(Block(span, latents, PROMPT), anchors)
    return history


def our_velocity(tree: WanTree, policy, history: History, timestep: str) -> tuple[Tensor, Tensor]:
    """Return the velocity of one denoising step, v = (x - x0) / sigma, and the noise x."""
    schedule = get_schedule(timestep)
    preset = Preset(name="ours", schedule=timestep)
    wan = Wan(tree=tree, ops=TorchOps(torch.float32), preset=preset, device=torch.device("cpu"))
    generator = CausalWanGenerator(wan, name="ours", context=policy)
    span = Span(history.frames // 3, history.frames, 3)
    noise = make_noise().draw(span, 0)
    generated = generator.generate(BlockCall(history, span, make_noise(), PROMPT))
    return (noise - generated.latents) / schedule[0].sigma, noise


@pytest.mark.parametrize("config", SIZES, ids=lambda c: f"{c.num_heads}x{c.dim // c.num_heads}")
@pytest.mark.parametrize("timestep, exact_time, tolerance", [("1000", True, 1e-5), ("625", False, 1e-4)])
def test_first_block_is_the_ordinary_model(config, timestep, exact_time, tolerance):
    """No context: the plain bidirectional forward with one timestep for all frames."""
    tree = random_tree(3, config)
    ours, noise = our_velocity(tree, RollingContext(window=9), random_history(0, 4), timestep)
    twin = diffusers_twin(tree, config, exact_time=exact_time)
    with torch.inference_mode():
        theirs = twin(noise, torch.tensor([float(timestep)]), PROMPT.embedding, return_dict=False)[0]
    assert float(theirs.std()) > 0.5
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("config", SIZES, ids=lambda c: f"{c.num_heads}x{c.dim // c.num_heads}")
@pytest.mark.parametrize(
    "blocks, window, sink", [(1, 9, 0), (2, 9, 0), (4, 6, 0), (5, 9, 3), (7, 12, 3), (6, 10, 2), (4, 99, 0)]
)
def test_window_is_the_clip_under_a_mask(config, blocks, window, sink):
    """Catches: eviction inside `generate`, ring slots off by one, relative instead of absolute positions."""
    tree = random_tree(4, config)
    history = random_history(blocks, 4)

    def sees(i: int, j: int) -> bool:
        stop = 3 * (i // 3) + 3
        return j < stop and (j < sink or j >= stop - (window - sink))

    ours, noise = our_velocity(tree, RollingContext(window=window, sink=sink), history, "937.5")
    theirs = velocity_at_once(diffusers_twin(tree, config), history.latents(0, history.frames), noise, 937.5, sees)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_recomputed_context_is_a_clip_from_an_image(blocks, window):
    """The window restarts at position 0; past the clip's start its first frame is encoded anew from its pixels."""
    config = SIZES[0]
    tree = random_tree(5, config)
    history = random_history(blocks, 4)

    def encode(frame: Tensor) -> Tensor:
        return torch.cat((frame, frame[:, :, :1]), 2).transpose(1, 2)[..., ::2, ::2] * 3 - 1

    policy = RecomputedContext(encode_anchor=AnchorEncoder(encode), frames=window)
    ours, noise = our_velocity(tree, policy, history, "833.3333")
    kept = min(window, history.frames)
    first = history.frames - kept
    clean = history.latents(first, history.frames).clone()
    if first > 0:
        clean[:, :, :1] = encode(history.anchor(first))

    def sees(i: int, j: int) -> bool:
        return j < (kept + 3 if i >= kept else min(3 * (i // 3) + 3, kept))

    theirs = velocity_at_once(diffusers_twin(tree, config), clean, noise, 833.3333, sees)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_model_saved_by_diffusers_loads(tmp_path):
    """With every tensor in its place, as the forward of the twins above shows."""
    config = replace(SIZES[0], dim=128, num_heads=1, in_dim=16, out_dim=16, text_len=512)
    twin = diffusers_twin(random_tree(3, config), config)
    twin.save_pretrained(tmp_path, max_shard_size="40KB")
    file = open_wan(tmp_path)
    assert (file.config, file.naming, file.unused) == (config, "diffusers names", ())
    loaded = diffusers_twin(load_wan(tmp_path).tree, config).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in twin.state_dict().items())


def test_far_positions_keep_their_precision():
    """Block 400 of an endless clip; rotary angles in bfloat16, or in float32 from large positions, are off."""
    config = SIZES[0]
    tree = random_tree(6, config)
    ops = TorchOps(torch.float32)
    x = torch.randn(1, 12, 2, 12, generator=generator_of(0))
    near = [ops.rotate(x, ops.rope(tree, first, (3, 2, 2), torch.device("cpu"))) for first in (0, 5)]
    far = [ops.rotate(x, ops.rope(tree, first, (3, 2, 2), torch.device("cpu"))) for first in (3000, 3005)]
    torch.testing.assert_close((near[0] * near[1]).sum(-1), (far[0] * far[1]).sum(-1), atol=1e-5, rtol=1e-5)
