"""The record of each block: decision, scores and cost. Counters only; rates are derived in the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from ..settings.decision import Decision, Reason
from .inputs import BlockCall
from .types import Block, Cost, Generated, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds spent on a block in each part; `draft` and `target` exclude `context`."""

    draft: float = 0.0
    decode: float = 0.0
    score: float = 0.0
    target: float = 0.0
    context: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return float(sum(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """The record of one block.

    `pixel_frames`: number shown. `prompt`: its text, or a hash of it. `draft`, `target`: cost of each model,
    rejected drafts included; None if it made nothing. `handover`: number of the drafter's steps that the target
    continued. `refined`: number of its first steps that the draft replaced. `left_out`: number of the target's
    steps that were left out. `decodes`: how often the block was decoded. `reused`: an earlier run made the block.
    `drift`: see `drift_of`.
    """

    span: Span
    pixel_frames: int
    prompt: str
    decision: Decision
    draft: Cost | None
    target: Cost | None
    decodes: int
    seconds: Seconds
    handover: int = 0
    refined: int = 0
    left_out: int = 0
    reused: bool = False
    drift: float | None = None

    @property
    def author(self) -> str:
        """The model whose latents were committed."""
        return "drafter" if self.decision.accepted else "target"


class Stopwatch:
    """Measures the seconds of one block by part (perhaps as `Elapsed`), and counts calls."""

    def __init__(self, clock: Callable[[], Any] = time.perf_counter) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Reset for the next block."""
        self.spent: dict[str, Any] = {}
        self.times: dict[str, int] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time inside the `with` block to `name`."""
        began = self._clock()
        yield
        self.spent[name] = self.spent.get(name, 0.0) + (self._clock() - began)
        self.times[name] = self.times.get(name, 0) + 1


def record_block(
    block: Block,
    frames: Tensor,
    decision: Decision,
    draft: Generated | None,
    remake: Generated | None,
    call: BlockCall,
    watch: Stopwatch,
    drift: float | None,
) -> BlockRecord:
    """Return the record of a committed block with pixel frames `frames` (`b f c h w`).

    `draft`, `remake`: results of drafter and target. `call`: to the model that made the block. `watch`: if it
    measured nothing but decoding, the block was re-used and counts no seconds.
    """
    costs = {
        name: replace(made.cost, context_seconds=float(made.cost.context_seconds))
        for name, made in (("draft", draft), ("target", remake))
        if made
    }
    within = {name: cost.context_seconds for name, cost in costs.items()}
    spent = {name: float(seconds) - within.get(name, 0.0) for name, seconds in watch.spent.items()}
    reused = not watch.times.keys() - {"decode"}
    return BlockRecord(
        span=block.span,
        pixel_frames=frames.shape[1],
        prompt=block.condition.text,
        decision=decision,
        decodes=watch.times.get("decode", 0),
        draft=costs.get("draft"),
        target=costs.get("target"),
        handover=len(call.handed_over),
        refined=call.restyle.skip if decision.reason is Reason.REFINED else 0,
        left_out=call.left_out,
        reused=reused,
        drift=drift,
        seconds=Seconds() if reused else Seconds(**spent, context=sum(within.values())),
    )
