"""The timesteps of each schedule, as its authors state them."""

from __future__ import annotations

import pytest

from sdvg_core.settings.schedules import SCHEDULES, get_schedule

TIMESTEPS = {
    "four-step": [1000, 937.5, 833.33, 625],
    "reference5": [1000, 937.5, 833.33, 625, 0],
    "krea4": [1000, 908.84, 713.98, 0],
    "two-step": [1000, 833.33],
    "one-step": [1000],
    "raw4": [1000, 750, 500, 250],
    "rounded4": [1000, 938, 833, 625],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_has_its_authors_timesteps(name: str) -> None:
    """Catches: a step of one schedule that moved."""
    assert [step.timestep for step in get_schedule(name)] == pytest.approx(TIMESTEPS[name], abs=0.01)
