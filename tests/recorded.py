"""Passes recorded without a GPU, and a tiny engine that is carried out by passes of one's own.

A recorder for CUDA cannot run here. Its stand-in keeps to the same rule: what it plays works on the memory that was
there when it was made, and writes its result over the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tiny import EchoCodec, make_engine, make_generator
from torch import Tensor

from sdvg_core.causal_wan.context import AnchorEncoder
from sdvg_core.causal_wan.passes import Passes
from sdvg_core.engine.parts import Engine

STEPS = "1000,750,500,250"
Play = Callable[[], Tensor | None]


class Recorder:
    """Stands in for CUDA graphs, and counts recordings and plays."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, work: Play) -> Play:
        self.recorded += 1
        result = work()

        def play() -> Tensor | None:
            self.played += 1
            made = work()
            if result is None:
                return None
            assert made is not None
            return result.copy_(made)

        return play


def engine_with(policy: str, passes: Callable[[], Passes], **options: Any) -> Engine:
    """The tiny engine of `make_engine`, each model with passes of its own."""
    codec = EchoCodec()
    common = {"encoder": AnchorEncoder(codec.encode), "schedule": STEPS, **options}
    drafter = make_generator(1, codec, policy, name="drafter", passes=passes(), **common)
    target = make_generator(2, codec, policy, name="target", passes=passes(), **common)
    return replace(make_engine(policy, **options), drafter=drafter, target=target, codec=codec)
