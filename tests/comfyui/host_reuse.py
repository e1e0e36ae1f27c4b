"""Jobs that re-use what earlier ones made, and the same videos from nothing."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from host_run import Parts, make_job, video_of
from sdvg_pack.nodes.host import identity
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.sockets import RouterValue
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.engine.store import GIGABYTE, Store

TWO_STEPS = {"drafter": "1000,625", "target": "1000,625"}


def scored(parts: Parts, tau: float, **changes: Any) -> Job:
    router = RouterValue(RouterConfig(tau=tau, **changes.pop("router", {})), parts.scorer)
    return make_job(
        parts,
        script="a" * changes.pop("count", 6),
        router=router,
        reuse_bytes=GIGABYTE,
        **{"schedules": TWO_STEPS, **changes},
    )


def alone(job: Job) -> Any:
    """The video of a job that re-uses nothing, and leaves the store as it is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(identity, "_STORE", Store(0))
        return video_of(replace(job, reuse_bytes=0))


@functools.cache
def middle_tau(parts: Parts) -> float:
    """A tau that some drafts reach and others miss."""
    report = alone(scored(parts, -3.0))[2]
    scores = sorted(one.decision.score for one in report.blocks if one.decision.score is not None)
    return scores[len(scores) // 2]
