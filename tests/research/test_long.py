"""How clips far longer than the models were trained for are judged."""

import torch

from research.long import ROUTES, VARIANTS, _videos, qualities, show
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


def test_only_whole_prompts_are_shown(tmp_path):
    """One video of the second prompt is missing."""
    rows = [
        f'{text},"{name}",{route},{block},{10 * first},20.0,{0.5 if block > 1 else ""}'
        for first, text in enumerate(("one", "two"), 1)
        for name in VARIANTS
        for route in ROUTES
        for block in range(1, 9)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(rows[:-8]) + "\n", encoding="utf-8")
    show(tmp_path, _videos(tmp_path / "rows.csv", 8))
    assert (tmp_path / "long.md").read_text(encoding="utf-8").startswith("1 prompts")
    assert (tmp_path / "long.png").stat().st_size > 10_000
