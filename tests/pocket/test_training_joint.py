"""A training step on one GPU, on a CPU: side by side is what the engine's two passes give, and Muon is torch's."""

from __future__ import annotations

import random

import pytest
import torch

from research.world import render
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.pocket.grammar import parse
from training.causal import SCHEDULE, Prompted, build
from training.joint import TOKENS, Muon, Trainer
from training.on_gpu import render_many, scenes_of
from training.presence import presence

SIZES = WanConfig(dim=192, ffn_dim=256, num_layers=3, num_heads=3, text_dim=16)
CALLED = "a big red ball drifts right from the left behind a small yellow box at the middle over night"


@pytest.fixture
def trainer() -> Trainer:
    torch.manual_seed(0)
    tree = build(SIZES)
    with torch.no_grad():
        for weight in tree.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return Trainer(tree, 8, 4, given=True, peak=1e-3, compiled=False)


def test_context_and_block_side_by_side_are_what_two_passes_make_of_them(trainer):
    real = torch.arange(TOKENS)[None] < torch.tensor([5, 9, 12, 39, 7, 30, 2, 11])[:, None]
    embedding = torch.randn(8, TOKENS, 16) * real[..., None]
    context, label, x = torch.randn(3, 8, 16, 3, 8, 8)
    trainer.fill(slice(0, 8), (embedding, real), context, label)
    times = torch.tensor([step.timestep for step in SCHEDULE]).repeat(2)
    with torch.no_grad():
        found = trainer.velocity(x, times)
        for row in range(8):
            prompted = Prompted(trainer.tree, embedding[row : row + 1], real[row : row + 1])
            if row < 4:
                prompted.see(context[row : row + 1])
            expected = prompted.velocity(x[row : row + 1], times[row].item())
            torch.testing.assert_close(found[row : row + 1], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_lowers_the_loss_and_moves_the_average(trainer, own: bool):
    real = torch.ones(8, TOKENS, dtype=torch.bool)
    trainer.fill(
        slice(0, 8), (torch.randn(8, TOKENS, 16), real), torch.randn(8, 16, 3, 8, 8), torch.randn(8, 16, 3, 8, 8)
    )
    trainer.noisy[4:] = torch.randn(4, 16, 3, 8, 8)
    before = trainer.state()
    trainer.rate.fill_(5e-3)
    losses = [trainer.step(own).item() for _ in range(12)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert not any(torch.equal(before[name], w) for name, w in trainer.state().items() if w.ndim > 1)
    trainer.go_back(before)
    assert all(torch.equal(before[name], w) for name, w in trainer.tree.state_dict().items())


def test_muon_on_stacks_is_torchs_own():
    torch.manual_seed(1)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 8), (16, 8), (8, 8), (8, 16))]
    theirs = [torch.nn.Parameter(w.detach().clone()) for w in ours]
    muon, torchs = Muon(ours), torch.optim.Muon(theirs, lr=0.01, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for w, other in zip(ours, theirs, strict=True):
            w.grad = torch.randn_like(w)
            other.grad = w.grad.clone()
        muon.step(torch.tensor(0.01))
        torchs.step()
    for w, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(w, other, atol=2e-4, rtol=0)


def test_a_thing_is_there_in_its_own_colour_alone():
    scene, times = parse(CALLED), torch.arange(9)
    frames = render(scene, times)
    assert (presence(frames, scene, times) == 1).all()
    bare = frames[:1, :, :, -1:].expand(9, 3, 64, 64)
    assert (presence(bare, scene, times) == 0).all()
    blue = render(parse(CALLED.replace("red", "green")), times)
    assert presence(blue, scene, times).mean(dim=0).tolist() == [0, 1]


def test_scenes_rendered_side_by_side_are_those_of_the_world():
    scenes = scenes_of(random.Random(3), 24)
    times = torch.rand(24, 5) * 90
    shown = render_many(scenes, times)
    for scene, at, frames in zip(scenes, times, shown, strict=True):
        torch.testing.assert_close(frames, render(scene, at), atol=1e-5, rtol=0)
    assert [bool(scene.relation) for scene in scenes] == [False, True] * 12
