"""Prompts that leave something open: which clips are right, and what they are held against."""

import random
from dataclasses import replace

import pytest
import torch

from research.metrics import BEST
from research.world import draw_scene, render
from sdvg_core.pocket.world import Scene, Thing, clash
from training.open_prompts import KINDS_OF_OPEN, choice, completions, draw_open_scene, judge, opened, still_quality

FRAMES = torch.arange(105)
SEAMS = tuple(range(9, 105, 12))
SCENES = [draw_scene(random.Random(seed), held_out=True) for seed in range(20)]
BALL = Thing("big", "red", "ball", "left", "runs", "right")
RUNNER = Scene(BALL, "night")


def test_completions_are_the_determined_scenes_that_fit_the_words():
    generator = random.Random(5)
    for kind in KINDS_OF_OPEN:
        scene = draw_open_scene(generator, held_out=False, slots=kind)
        found = completions(scene)
        assert scene.open == kind
        assert 1 < len(set(found)) == len(found) <= 72
        assert all(not one.open and clash(one) is None and opened(one, kind) == scene for one in found)


@pytest.mark.heavy
@pytest.mark.parametrize("slots", KINDS_OF_OPEN[::3], ids=" and ".join)
def test_any_clip_that_an_open_prompt_allows_is_perfect(slots):
    generator = random.Random(11)
    scene = draw_open_scene(generator, held_out=True, slots=slots)
    one = generator.choice(completions(scene))
    clip = render(one, FRAMES)
    assert judge(clip, scene, SEAMS).quality.min() == BEST
    # Right and left are the same clip from an edge, where the one bounces off at once.
    assert torch.allclose(render(choice(clip[:9], scene), FRAMES), clip, atol=1e-5)
    assert still_quality(clip[[60]], scene).tolist() == [BEST]


def test_a_clip_that_changes_its_mind_after_the_first_block_is_wrong_from_there_on():
    scene, by_day = opened(RUNNER, ["ground"]), replace(RUNNER, ground="snow")
    clip = torch.cat([render(RUNNER, FRAMES)[:9], render(by_day, FRAMES)[9:]])
    verdict = judge(clip, scene, SEAMS)
    assert verdict.quality[:9].min() == BEST
    assert verdict.quality[9:].max() < 15
    assert choice(clip, scene) == by_day
