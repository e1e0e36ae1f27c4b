"""A run that works ahead on tiny models, and what tests of it share."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from tiny import PROMPT, frames_of, latents_of, make_noise

from sdvg_core.engine.lane import Lane
from sdvg_core.engine.overlap import speculate_overlapped
from sdvg_core.engine.parts import Engine
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.speculate import Emitted
from sdvg_core.engine.types import plan_spans

CPU = torch.device("cpu")
# A window of nine latent frames is full from the third block on: there a wrong guess has overwritten something.
ENGINE: dict[str, Any] = {"policy": "incremental", "window": 9, "sink": 3}
SECONDS = 30.0  # how long a test waits before it says that something did not come


def run_ahead(engine: Engine, router: RouterConfig, *, blocks: int = 9, condition_of=lambda _: PROMPT, **options):
    spans = plan_spans(blocks, engine.target.block_frames)
    return list(speculate_overlapped(engine, router, spans, make_noise(), condition_of, device=CPU, **options))


class EagerLane(Lane):
    """A lane that has done its work before it returns: every wrong guess is made to its end."""

    def submit(self, work):
        done: Future = Future()
        done.set_result(work())
        return done


def same(ahead: list[Emitted], alone: list[Emitted]) -> None:
    assert torch.equal(latents_of(ahead), latents_of(alone))
    assert torch.equal(frames_of(ahead), frames_of(alone))
    assert [e.record.decision for e in ahead] == [e.record.decision for e in alone]
