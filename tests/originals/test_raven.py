"""Our engine against RAVEN's own sampling loop, by its own trial file."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from witness import AGREES, BLOCKS, ask, difference, generator_over, per_block, request_for, tree_of, video_of

from sdvg_core.causal_wan.context import Incremental
from sdvg_core.causal_wan.presets import get_preset

CHECKOUT = "RAVEN_PATH"
pytestmark = pytest.mark.originals

PRESET = get_preset("raven")
TRAINED = PRESET.window // PRESET.block_frames
"""Blocks of a training clip, and of the clips that its trial makes."""
CASES = {
    "everything": {},
    "window of 21": {"data.args.window_size": TRAINED - 1},
    "window of 12, sink of 3": {"data.args.window_size": 2, "data.args.sink": 1},
}
"""Its window and sink count blocks, and neither the other nor the block being made. Its trial sees everything."""
OURS: dict[str, dict[str, Any]] = {
    "everything": {"window": BLOCKS * PRESET.block_frames},
    "window of 21": {"window": PRESET.window, "sink": PRESET.sink, "relative": PRESET.relative},
    "window of 12, sink of 3": {"window": 12, "sink": 3},
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> dict[str, Tensor]:
    request = request_for(CASES, weights=tree_of(1).state_dict())
    return ask("run_raven.py", CHECKOUT, request, tmp_path_factory.mktemp("raven"))["latents"]


def ours(case: str, schedule: str = PRESET.schedule, **other: Any) -> Tensor:
    return video_of(generator_over(tree_of(1), Incremental(**OURS[case] | other), schedule))


@pytest.mark.parametrize("case", CASES)
def test_nine_blocks_have_the_latents_of_the_original(theirs, case, measured):
    """Without a sink, positions may be counted from the window as well: only distances matter."""
    assert measured(difference(ours(case), theirs[case])) < AGREES


def test_the_preset_forgets_what_the_trial_would_see_only_beyond_a_training_clip(theirs, measured):
    apart = per_block(ours("window of 21"), theirs["everything"])
    assert max(apart[:TRAINED]) < AGREES
    assert measured(apart[TRAINED]) > 0.1


FAULTS: dict[str, tuple[float, dict[str, Any]]] = {
    "timesteps that are not rounded": (0.1, {"schedule": "four-step"}),
    "noise levels of the table": (1e-3, {"schedule": "1000,938,833,625"}),
    "no sink": (0.1, {"sink": 0}),
    "a window one block shorter": (0.1, {"window": 9}),
    "positions counted from the window": (0.1, {"relative": True}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(theirs, fault, measured):
    least, changed = FAULTS[fault]
    case = "window of 12, sink of 3"
    assert measured(difference(ours(case, **changed), theirs[case])) > least
