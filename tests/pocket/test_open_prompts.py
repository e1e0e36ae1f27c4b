"""Prompts that leave something open: which clips are right, and what they are held against."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from research.oracle import BEST
from research.world import draw_scene, render
from sdvg_core.pocket.world import Scene, Thing, clash
from training.open_prompts import (
    KINDS_OF_OPEN,
    choice,
    completions,
    draw_open_scene,
    judge,
    open_scenes,
    opened,
    still_quality,
)

FRAMES = torch.arange(105)
SEAMS = tuple(range(9, 105, 12))
SCENES = [draw_scene(random.Random(seed), held_out=True) for seed in range(20)]
BALL = Thing("big", "red", "ball", "left", "runs", "right")
RUNNER = Scene(BALL, "night")


def test_what_is_left_open_is_not_said_and_everything_else_is():
    scene = Scene(BALL, "night")
    assert opened(scene, ["size"]).text == "a red ball runs right from the left over night"
    assert opened(scene, ["start", "direction"]).text == "a big red ball runs over night"
    assert opened(scene, ["ground", "start"]).text == "a big red ball runs right"
    assert opened(scene, ["ground", "start"]).kind == "start and ground"
    assert scene.kind == "nothing"


def test_a_thing_that_stands_has_no_direction_to_leave_open():
    assert Scene(Thing("big", "red", "ball", "left"), "night").open == ()


def test_completions_are_the_determined_scenes_that_fit_the_words():
    generator = random.Random(5)
    for kind in KINDS_OF_OPEN:
        scene = draw_open_scene(generator, held_out=False, slots=kind)
        found = completions(scene)
        assert scene.open == kind
        assert 1 < len(set(found)) == len(found) <= 72
        assert all(not one.open and clash(one) is None and opened(one, kind) == scene for one in found)


def test_a_determined_scene_has_itself_as_its_only_completion():
    for scene in SCENES:
        assert completions(scene) == (scene,)


def test_a_ground_that_would_hide_the_thing_does_not_complete_a_prompt():
    red, blue = ({one.ground for one in completions(Scene(replace(BALL, colour=c), ""))} for c in ("red", "blue"))
    assert red - blue == {"night", "sea"}


def test_open_scenes_are_held_out_different_and_of_every_kind_equally_often():
    scenes = open_scenes(40, seed=2)
    assert len(set(scenes)) == 40
    assert all(scene.held_out for scene in scenes)
    assert scenes[:7] == open_scenes(7, seed=2) != open_scenes(7, seed=3)
    assert [scene.open for scene in scenes] == [*KINDS_OF_OPEN] * 4


def test_a_still_is_held_against_the_whole_clip():
    clip = render(RUNNER, FRAMES)
    assert still_quality(clip[[0, 50, 104]], RUNNER).tolist() == [BEST] * 3
    assert still_quality(clip[[50]], SCENES[0]).item() < 15


@pytest.mark.parametrize("slots", KINDS_OF_OPEN, ids=" and ".join)
def test_any_clip_that_an_open_prompt_allows_is_perfect(slots: tuple[str, ...]):
    generator = random.Random(11)
    scene = draw_open_scene(generator, held_out=True, slots=slots)
    one = generator.choice(completions(scene))
    clip = render(one, FRAMES)
    assert judge(clip, scene, SEAMS).quality.min() == BEST
    # Right and left are the same clip from an edge, where the one bounces off at once.
    assert torch.allclose(render(choice(clip[:9], scene), FRAMES), clip, atol=1e-5)
    assert still_quality(clip[[60]], scene).tolist() == [BEST]


def test_a_noisy_and_late_clip_is_still_taken_for_what_it_shows():
    noise = 0.1 * torch.randn(105, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    shown = Scene(Thing("big", "red", "ball", "middle", "runs", "left and up"), "night")
    clip = render(shown, (FRAMES - 3).clamp(min=0)) + noise
    assert choice(clip[:9], opened(RUNNER, ["start", "direction"])) == shown


def test_a_clip_that_changes_its_mind_after_the_first_block_is_wrong_from_there_on():
    scene, by_day = opened(RUNNER, ["ground"]), replace(RUNNER, ground="snow")
    clip = torch.cat([render(RUNNER, FRAMES)[:9], render(by_day, FRAMES)[9:]])
    verdict = judge(clip, scene, SEAMS)
    assert verdict.quality[:9].min() == BEST
    assert verdict.quality[9:].max() < 15
    assert choice(clip, scene) == by_day
