"""What a route that was taken would cost the published pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..engine.records import BlockRecord
from ..engine.router import RouterConfig
from .choose import BlockSeconds, seconds_without_copying
from .request import PlanRequest


def route_seconds(records: Sequence[BlockRecord], request: PlanRequest) -> tuple[float, float]:
    """Return the predicted seconds of a route, and of target-only for as many blocks.

    Everything stays on the device. `records`: of a whole clip, in order. `request`: the models, the size and the
    rates; its router and its number of blocks are not looked at.
    """
    handovers = {0, *(record.handover for record in records)}
    seconds = {
        steps: seconds_without_copying(replace(request, router=RouterConfig(handover=steps))) for steps in handovers
    }
    of_block = partial(_block_seconds, seconds=seconds)
    alone = seconds[0].first + (len(records) - 1) * seconds[0].by_target
    return math.fsum(map(of_block, records)), alone


def _block_seconds(record: BlockRecord, seconds: dict[int, BlockSeconds]) -> float:
    predicted = seconds[record.handover]
    if record.decision.accepted:
        return predicted.accepted if record.decision.scored else predicted.unscored
    if record.decision.scored:
        return predicted.rejected
    return predicted.by_target if record.span.start else predicted.first
