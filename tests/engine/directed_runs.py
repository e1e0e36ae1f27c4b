"""Runs over tiny models that the user directs block by block."""

from __future__ import annotations

from typing import Any

from tiny import PROMPT, SIZE, EchoCodec, make_engine

from sdvg_core.engine.parts import Engine
from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.router import Reason, RouterConfig
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.speculate import Emitted


def directed(
    letters: str = "",
    router: RouterConfig | None = None,
    *,
    takes: str = "",
    blocks: int = 6,
    engine: Engine | None = None,
    **options: Any,
) -> list[Emitted]:
    """Run as all surfaces do, on the tiny models."""
    planned = plan_run(
        engine or make_engine(),
        router or RouterConfig(tau=0.3),
        lambda _: PROMPT,
        blocks=blocks,
        seed=42,
        width=SIZE[1] * EchoCodec.spatial_stride,
        height=SIZE[0] * EchoCodec.spatial_stride,
        directions=letters,
        takes=takes,
        **options,
    )
    return list(planned.blocks())


def records(emitted: list[Emitted]) -> list[BlockRecord]:
    return [one.record for one in emitted]


def reasons(emitted: list[Emitted]) -> list[Reason]:
    return [one.record.decision.reason for one in emitted]
