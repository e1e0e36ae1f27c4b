"""What holds of every run holds under any two options: a store changes nothing, and routes agree. Bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from small_runs import FinishedRun, TinyRequest, assert_same_run, assert_same_video, authors, fresh_run, play

from sdvg_core.engine.reuse import Store
from sdvg_core.settings.request import Strength
from sdvg_core.settings.route import Custom, First, Gate, Route, TargetOnly
from tests.support.routers import PlannedRouter
from tests.support.thinned import every_pair
from tests.support.tiny import CONTEXTS, POLICIES, scripted

STEPS = 3
BLOCKS = 4
AXES: dict[str, tuple[Any, ...]] = {
    "hold": (0.0, 0.4),
    "handover_and_draft_steps": tuple(product(("none", "one", "all"), (2, None))),
    "strength": (None, Strength(skip=1), Strength(share=0.6)),
    "own_frames": (3, 1),
    "policy": POLICIES,
    "context": CONTEXTS,
    "clip": (None, (71, 6)),
    "takes": ("", "2:2, 4:3"),
}
_, ROWS = every_pair(", ".join(AXES), *AXES.values()).args
any_two_options = pytest.mark.parametrize("options", [dict(zip(AXES, row, strict=True)) for row in ROWS])


def request_with(handover_and_draft_steps: tuple[str, int | None], **options: Any) -> TinyRequest:
    """Return a request whose gate keeps some drafts and rejects others, over two scenes."""
    handover, draft_steps = handover_and_draft_steps
    most = min(draft_steps or STEPS, STEPS - 1)
    return TinyRequest(
        route=Route(Gate(-0.1), handover={"none": 0, "one": 1, "all": most}[handover]),
        blocks=BLOCKS,
        schedule="1000,800,625",
        draft_steps=draft_steps,
        prompts=((0, 5, "a red ball"), (3, 6, "a blue ball")),
        **options,
    )


def unscored(request: TinyRequest, scored: FinishedRun) -> TinyRequest:
    """Return the request whose policy makes the same decisions without scores."""
    first = scored.records[0].span.index
    return request.with_policy(Custom(PlannedRouter("t" * first + authors(scored))))


@any_two_options
def test_reuse_changes_nothing_with_or_without_scores(options: dict[str, Any]) -> None:
    """That an empty store changes nothing is proved in test_reuse.py.

    Catches: a prediction that is handed over in one way after a score, and in another without one.
    """
    request = request_with(**options)
    store_of_scored = Store()
    scored = play(request, store_of_scored)
    plan = unscored(request, scored)
    store_of_planned = Store()
    planned = play(plan, store_of_planned)
    assert_same_video(planned, scored)
    for later, store, expected in ((plan, store_of_scored, planned), (request, store_of_planned, scored)):
        assert_same_run(play(later, store), expected)
        repeated = play(later, store)
        assert_same_run(repeated, expected)
        assert repeated.reused == BLOCKS


@any_two_options
def test_rejecting_all_is_target_only_with_any_options(options: dict[str, Any]) -> None:
    """Catches: a rejected draft that hands over something else than an unscored one."""
    request = request_with(**options)
    rejected = fresh_run(request.with_policy(scripted("r" * (BLOCKS + 2)).policy))
    assert_same_video(rejected, fresh_run(request.with_policy(TargetOnly())))
    assert authors(rejected) == "t" * BLOCKS


@any_two_options
def test_keeping_all_is_draft_only_with_any_options(options: dict[str, Any]) -> None:
    """Catches: a kept draft that a handover, a score or a store of the steps changes."""
    request = request_with(**options)
    kept = fresh_run(request.with_policy(scripted("a" * (BLOCKS + 2), forced_blocks=0).policy))
    assert_same_video(kept, fresh_run(request.with_policy(First(0))))
    assert authors(kept) == "d" * BLOCKS
