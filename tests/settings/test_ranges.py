"""The range of every number that a user can set: its edges are taken, and what lies beyond is refused."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.settings.context import Preset, Recompute, Rolling
from sdvg_core.settings.fields import settings_of
from sdvg_core.settings.load import LoadOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import At, Budget, Custom, First, Gate, Quantile, Route, Stride, WorstFrame

CONTROLLED = partial(VideoRequest, control="depth.mp4", control_mask="mask.png")
PRESET = partial(Preset, name="custom")
CUSTOM = partial(Custom, type("Router", (), {"keep": max, "needs_scorer": False})())
RANGES: dict[Any, dict[str, tuple[float, float | None]]] = {
    CONTROLLED: {
        "blocks": (1, 100_000),
        "seed": (0, 2**64 - 1),
        "width": (16, None),
        "height": (16, None),
        "fps": (0.001, 1000),
        "context_blocks": (0, 100_000),
        "block_length": (1, 64),
        "colour_hold": (0, 1),
        "control_strength": (0, 10),
        "control_edge": (0, 256),
    },
    LoadOptions: {"vram": (0.0001, 1_000_000)},
    PRESET: {"block_frames": (1, 2**20), "draft_steps": (1, None)},
    Recompute: {"context_frames": (1, 2**20)},
    Rolling: {"window": (1, 2**20), "sink": (0, 2**20), "trained": (1, 2**20)},
    Route: {"handover": (0, None), "target_steps": (0, None)},
    Gate: {"forced_blocks": (0, None), "bail_out": (0, None)},
    CUSTOM: {"forced_blocks": (0, None), "bail_out": (0, None)},
    First: {"n": (0, None)},
    At: {},
    Stride: {"n": (1, 4096), "forced_blocks": (0, None)},
    WorstFrame: {"margin": (0, None)},
    Quantile: {"q": (0, 1)},
    Budget: {"share": (0.01, 1)},
}
CASES = [(kind, name, *edges) for kind, ranges in RANGES.items() for name, edges in ranges.items()]


def class_of(kind: Any) -> type:
    return kind.func if isinstance(kind, partial) else kind


def beyond(edge: float, side: float, *, whole: bool) -> float:
    """Return the next number on a side of an edge, a whole one for a field that takes no other."""
    if whole:
        return edge + 1 if side > edge else edge - 1
    return math.nextafter(edge, side)


@pytest.mark.parametrize(
    ("kind", "name", "least", "most"), CASES, ids=[f"{class_of(kind).__name__}-{name}" for kind, name, *_ in CASES]
)
def test_range_includes_its_edges_and_no_more(kind: Any, name: str, least: float, most: float | None) -> None:
    """Catches: a limit that moved, or went. Ranges are stated here, as one read from the field proves nothing."""
    whole = float not in settings_of(class_of(kind))[name].kinds
    outside = [beyond(least, -math.inf, whole=whole)]
    inside = [least]
    if most is not None:
        outside.append(beyond(most, math.inf, whole=whole))
        inside.append(most)
    for number in inside:
        assert getattr(kind(**{name: number}), name) == number
    for number in outside:
        with pytest.raises(BadInput, match=r" is .*; give .* (to|more)"):
            kind(**{name: number})


def test_every_range_is_stated_here() -> None:
    """Catches: a new number whose limits nothing holds."""
    stated = {class_of(kind): set(ranges) for kind, ranges in RANGES.items()}
    for kind, names in stated.items():
        assert names == {name for name, setting in settings_of(kind).items() if setting.least is not None}
