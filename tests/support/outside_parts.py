"""Parts as others may write them, for the tests of what is refused of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.outside import checked_parts
from sdvg_core.engine.types import Generated, Span

VAE = SimpleNamespace(latent_channels=16, temporal_stride=4, spatial_stride=8)


class Part(SimpleNamespace):
    """A part with whatever attributes a test gives it."""


@dataclass
class PlainRouter:
    """A dataclass that compares by value, and so has no hash."""

    needs_scorer: bool = False

    def keep(self, index: int, score: float | None) -> bool:
        return index != 1


def model(predictions: Any, **other: Any) -> Part:
    shape = {"name": "m", "block_frames": 3, "latent_channels": 16, "anchor_horizon": 0}
    steps = {"timesteps": (1000.0, 500.0), "first_timesteps": (1000.0, 500.0)}
    return Part(**{**shape, **steps, "generate": lambda call: Generated(predictions), **other})


def call() -> BlockCall:
    noise: Any = SimpleNamespace(draw=lambda span, slot: torch.zeros(1, 16, 3, 8, 8))
    nothing: Any = None
    return BlockCall(nothing, Span(0, 0, 3), noise, nothing)


GOOD = torch.zeros(1, 16, 3, 8, 8)
FRAMES = torch.zeros(1, 9, 3, 8, 8)
FRAMES_64 = torch.zeros(1, 9, 3, 64, 64)


def checked(role: str, part: Part) -> Any:
    return checked_parts({role: part}, VAE)[role]


def describe(wrong: Any) -> Any:
    return checked("scorer", Part(score=1, describe=lambda: wrong)).describe()
