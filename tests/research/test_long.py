"""How clips far longer than the models were trained for are judged."""

import argparse

import pytest
import torch

from research.long import LATE, against_balanced, qualities, shard
from research.metrics import BEST
from research.world import render
from sdvg_core.pocket.grammar import parse

PROMPT = "a big blue ball drifts right from the left over sand"


def test_a_clip_that_runs_late_is_clear_at_the_best_moment_and_not_at_its_own():
    """Catches: moments of one way alone, and a reach that knows no end."""
    scene, at = parse(PROMPT), torch.tensor([8, 100])
    assert qualities(render(scene, at + 5), at, scene)[0] == [BEST, BEST]
    due, clear = qualities(render(scene, at + 40), at, scene)
    assert max(due) < 15
    assert min(clear) > 25, "it stands between two frames of the first way"


def test_a_stride_is_compared_with_balanced_after_what_balanced_shows_of_the_target():
    """Catches: earlier blocks in the mean, the two the wrong way round, a short clip that ends in a traceback."""

    def videos(blocks):
        clearness = {"balanced": [20.0] * LATE + [12.0] * 9, "stride 4": [5.0] * LATE + [14.5] * 9}
        return {
            (f"p{n}", "recompute", route): [{"clearness": str(value)} for value in values[:blocks]]
            for route, values in clearness.items()
            for n in range(10)
        }

    prompts = [f"p{n}" for n in range(10)]
    asked = (prompts, ["recompute"], ["balanced", "stride 4"])
    assert "+2.50 [+2.50, +2.50]" in against_balanced(videos(LATE + 9), *asked)
    assert against_balanced(videos(LATE), *asked) == ""


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no shard"):
        shard(text)
    assert shard("2/8") == (2, 8)
