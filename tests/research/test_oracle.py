"""The oracle: exact clips are perfect, and every kind of fault shows in the number meant for it."""

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from research.metrics import BEST, SeamChange, judge
from research.world import draw_scene, render
from sdvg_core.pocket.world import Scene, Thing

FRAMES = torch.arange(105)
SEAMS = tuple(range(9, 105, 12))
SCENES = [draw_scene(random.Random(seed), held_out=True) for seed in range(4)]
RUNNER = Scene(Thing("big", "red", "ball", "left", "runs", "right"), "night")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.text)
def test_the_exact_clip_is_perfect(scene):
    verdict = judge(render(scene, FRAMES), scene)
    assert verdict.quality.tolist() == [BEST] * 105
    assert verdict.lag.abs().max() == 0


@pytest.mark.parametrize("late", [-5, 8])
def test_a_clip_that_is_late_is_late_and_not_bad(late):
    verdict = judge(render(RUNNER, (FRAMES - late).clamp(min=0)), RUNNER)
    assert verdict.quality[10:].min() == BEST
    # Around a bounce a moment before it and one after it look alike.
    assert set(verdict.lag[10:30].tolist()) == {-late}


def faults() -> dict[str, Tensor]:
    clip = render(RUNNER, FRAMES)
    gone = render(Scene(Thing("small", "red", "ball", "top left"), "night"), FRAMES)
    noise = torch.randn(clip.shape, generator=torch.Generator().manual_seed(0))
    return {
        "a little noise": clip + 0.02 * noise,
        "more noise": clip + 0.1 * noise,
        "blur": avg_pool2d(clip, 5, 1, 2, count_include_pad=False),
        "elsewhere": gone,
    }


def test_worse_faults_score_lower():
    clips = faults()
    means = {name: judge(clip, RUNNER).quality.mean().item() for name, clip in clips.items()}
    assert BEST > means["a little noise"] > means["more noise"] > means["elsewhere"]
    assert means["a little noise"] > means["blur"] > means["elsewhere"]


def test_the_wrong_prompt_scores_far_below_the_right_one():
    for one, other in pairwise(SCENES):
        assert judge(render(one, FRAMES), other).quality.mean() < 15


def test_a_jump_at_the_borders_shows_as_seam_change_and_flicker_elsewhere_does_not():
    clip = render(RUNNER, FRAMES)
    jumping = clip.clone()
    for number, seam in enumerate(SEAMS):
        jumping[seam:] = clip[seam:] + 0.05 * (number % 2)
    assert SeamChange().measure(jumping, "", SEAMS)["seam_change"] > 3
    flicker = clip + 0.05 * (FRAMES % 2).view(-1, 1, 1, 1)
    assert SeamChange().measure(flicker, "", SEAMS)["seam_change"] < 0.5
