"""How clips far longer than the models were trained for are judged."""

import torch

from research.long import qualities
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
