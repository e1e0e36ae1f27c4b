"""Options that have no effect without another one."""

from __future__ import annotations

from typing import Any

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.settings.request import VideoRequest

NEEDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "strength": ("light", {"restyle": "clip.mp4"}),
    "control_mask": ("mask.png", {"control": "depth.mp4"}),
    "control_strength": (0.5, {"control": "depth.mp4"}),
    "control_edge": (4, {"control": "depth.mp4", "control_mask": "alpha"}),
}
"""By option: a value, and the options that it needs, of which the last is left out."""


@pytest.mark.parametrize("name", NEEDS)
def test_option_without_effect_is_refused(name: str) -> None:
    """Catches: an option that is passed over, as what it is about is not there."""
    value, needed = NEEDS[name]
    VideoRequest(**{name: value}, **needed)
    others = dict(list(needed.items())[:-1])
    with pytest.raises(BadInput, match="no effect without"):
        VideoRequest(**{name: value}, **others)


def test_usual_value_needs_nothing() -> None:
    """Catches: a default, stated, that is refused."""
    usual = VideoRequest()
    assert VideoRequest(**{name: getattr(usual, name) for name in NEEDS}) == usual
