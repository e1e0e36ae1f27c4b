"""The drafter's training: a run that goes on after a stop, and what its measures see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from training import train_pair
from training.causal import SCHEDULE, Prompted
from training.make_latents import BLOCKS
from training.measure_pair import HandedOver, Shipped
from training.train_pair import Samples, main, of_clips

CALLED = "a big red ball drifts right from the left behind a small yellow box at the middle over night"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return Shipped()


def some_clips(shipped, scenes) -> Samples:
    return of_clips(scenes, *torch.randn(2, len(scenes), BLOCKS - 1, 16, 3, 8, 8))


def some_own(shipped, tree, clips, generator) -> Samples:
    context, label = torch.randn(2, 5, 16, 3, 8, 8) + sum(w.mean() for w in tree.parameters())
    return Samples(clips.prompts, torch.zeros(5, dtype=torch.long), context, label)


@pytest.mark.exhaustive
@pytest.mark.parametrize("role", ["drafter", "target"])
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


def test_handed_over_the_drafter_begins_and_the_target_ends(shipped):
    heard, context = shipped.embed([CALLED]), torch.randn(1, 16, 3, 8, 8)
    both = HandedOver(shipped.models, *heard).see(context)
    x = torch.randn(1, 16, 3, 8, 8)
    with torch.no_grad():
        for step, role in zip(SCHEDULE, ("drafter", "drafter", "target", "target"), strict=True):
            alone = Prompted(shipped.models[role], *heard).see(context)
            assert torch.equal(both.velocity(x, step.timestep), alone.velocity(x, step.timestep))
