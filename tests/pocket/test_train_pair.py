"""The drafter's training: what a step asks for, own contexts in time, and a run that goes on after a stop."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from research.world import render
from sdvg_core.pocket.grammar import parse
from training import train_pair
from training.causal import SCHEDULE, Prompted
from training.make_latents import BLOCKS, FRAMES
from training.measure_pair import HandedOver, Shipped
from training.presence import presence
from training.train_pair import Samples, loss_of, main, of_clips, own_contexts, true_clips

CALLED = "a big red ball drifts right from the left behind a small yellow box at the middle over night"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return Shipped()


class Doubled:
    """A model whose estimate is always twice the right block."""

    def __init__(self, label: torch.Tensor) -> None:
        self._label, self.seen = label, []

    def velocity(self, x, timestep):
        step = SCHEDULE[len(self.seen)]
        assert step.timestep == timestep
        self.seen.append(x)
        return (x - 2 * self._label) / step.sigma


def test_noisy_inputs_are_made_of_the_right_block_or_of_the_models_own():
    label, own = torch.full((2, 16, 3, 8, 8), 100.0), torch.tensor([False, True]).view(2, 1, 1, 1, 1)
    model = Doubled(label)
    found = loss_of(model, lambda x, step: label, own)
    for step, x in zip(SCHEDULE, model.seen, strict=True):
        means = (x.mean(dim=(1, 2, 3, 4)) / 100).tolist()
        assert means == pytest.approx([1 - step.sigma, 2 * (1 - step.sigma)], abs=0.01)
    assert found.tolist() == pytest.approx([sum((100 / step.sigma) ** 2 for step in SCHEDULE) / 4] * 2)


def test_after_own_blocks_the_label_is_the_truth_from_the_moment_they_show(shipped, monkeypatch):
    scenes = [parse("a big red ball runs right and down from the top left over sea")]
    clips = true_clips(shipped, scenes)
    early = shipped.vae.encode(torch.stack([render(scene, torch.arange(FRAMES) + 4) for scene in scenes]))
    blocks = early.split(3, dim=2)
    truth = render(scenes[0], torch.arange(FRAMES) + 4)

    def four_frames_early(tree, vae, *heard, count, begun):
        first = next(n for n in range(BLOCKS) if torch.equal(begun[-1][0].half(), whole[n])) + 1 - len(begun)
        shown = truth[max(12 * first - 3, 0) : 12 * (first + count) - 3]
        frames = torch.cat((truth[:9].expand(9, -1, -1, -1), shown))[-12 * count + 3 :] if first else shown
        made = range(first + len(begun) - 1, first + count - 1)
        expected.extend(blocks[n + 1][0] for n in list(made)[1:])
        return [blocks[n] for n in made], None, frames[None]

    whole = [clips.context[0].half(), *clips.label.half()]
    expected: list[torch.Tensor] = []
    monkeypatch.setattr(train_pair, "roll_out", four_frames_early)
    found = own_contexts(shipped, None, clips, random.Random(0))
    assert len(found.label) == len(expected) == 6
    assert (found.label - torch.stack(expected)).square().mean() < 0.05


def some_clips(shipped, scenes) -> Samples:
    return of_clips(scenes, *torch.randn(2, len(scenes), BLOCKS - 1, 16, 3, 8, 8))


def some_own(shipped, tree, clips, generator) -> Samples:
    context, label = torch.randn(2, 5, 16, 3, 8, 8) + sum(w.mean() for w in tree.parameters())
    return Samples(clips.prompts, torch.zeros(5, dtype=torch.long), context, label)


@pytest.mark.heavy
@pytest.mark.parametrize("role", ["drafter", pytest.param("target", marks=pytest.mark.exhaustive)])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(role, tmp_path, monkeypatch):
    monkeypatch.setattr(train_pair, "true_clips", some_clips)
    monkeypatch.setattr(train_pair, "target_clips", some_clips)
    monkeypatch.setattr(train_pair, "own_contexts", some_own)
    lesson = train_pair.LESSONS[role]
    lesson = replace(lesson, rows=dict.fromkeys(lesson.rows, 1), own_from=2, clips=dict.fromkeys(lesson.clips, 4))
    monkeypatch.setitem(train_pair.LESSONS, role, lesson)
    for name, value in {"CHUNK": 2, "OWN_EVERY": 2, "FIRSTS": 1, "SAVED": 1, "LOOKED": 5}.items():
        monkeypatch.setattr(train_pair, name, value)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main([role, str(whole), "--steps", "5"])
    main([role, str(parts), "--steps", "5", "--stop-at", "3"])
    main([role, str(parts), "--steps", "5"])
    one, two = (torch.load(folder / "state.ckpt", weights_only=True) for folder in (whole, parts))
    assert one["step"] == two["step"] == 5
    assert all(torch.equal(w, two["weights"][name]) for name, w in one["weights"].items())
    assert all(torch.equal(w, two["average"][name]) for name, w in one["average"].items())
    names = [path.name for path in sorted(whole.glob("*.safetensors"))]
    assert names == [path.name for path in sorted(parts.glob("*.safetensors"))]
    assert {"own-00002.safetensors", "own-00004.safetensors", f"{role}.safetensors"} <= set(names)
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_a_thing_is_there_in_its_own_colour_alone():
    scene, times = parse(CALLED), torch.arange(9)
    frames = render(scene, times)
    assert (presence(frames, scene, times) == 1).all()
    bare = frames[:1, :, :, -1:].expand(9, 3, 64, 64)
    assert (presence(bare, scene, times) == 0).all()
    blue = render(parse(CALLED.replace("red", "green")), times)
    assert presence(blue, scene, times).mean(dim=0).tolist() == [0, 1]


def test_handed_over_the_drafter_begins_and_the_target_ends(shipped):
    heard, context = shipped.embed([CALLED]), torch.randn(1, 16, 3, 8, 8)
    both = HandedOver(shipped.models, *heard).see(context)
    x = torch.randn(1, 16, 3, 8, 8)
    with torch.no_grad():
        for step, role in zip(SCHEDULE, ("drafter", "drafter", "target", "target"), strict=True):
            alone = Prompted(shipped.models[role], *heard).see(context)
            assert torch.equal(both.velocity(x, step.timestep), alone.velocity(x, step.timestep))
