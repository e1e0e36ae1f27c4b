"""Random changes of a job, one after the other: each run makes what one from nothing makes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from host_clip import with_lora
from host_reuse import TWO_STEPS, alone, middle_tau, scored
from host_run import Parts, load_parts, same_video, video_of
from host_tiny import generator_of
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.presets import attach_preset
from sdvg_pack.nodes.sockets import PromptEntry
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return load_parts(tmp_path_factory.mktemp("parts"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_random_changes_one_after_the_other_make_what_runs_from_nothing_make(parts: Parts, seed: int) -> None:
    random_changes(parts, seed, 3)


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_make_what_runs_from_nothing_make(parts: Parts, seed: int) -> None:
    random_changes(parts, 1000 + seed, 2)


def random_changes(parts: Parts, seed: int, steps: int) -> None:
    """Every other seed with the other context policy, and one in three with overlap."""
    dice = random.Random(seed)
    if seed % 2:
        parts = replace(parts, drafter=incremental(parts.drafter), target=incremental(parts.target))
    tau = middle_tau(parts) if seed % 2 == 0 else 0.0
    job = scored(parts, tau, count=5, overlap=seed % 3 == 0)
    video_of(job)
    for _ in range(steps):
        name = dice.choice(sorted(CHANGES))
        job = replace(job, **CHANGES[name](dice, job, tau))
        assert same_video(video_of(job), alone(job)), name


def incremental(patcher: Any) -> Any:
    return attach_preset(patcher.clone(), get_preset("custom").replace(policy="incremental", window=9, sink=3))


def _router(dice: random.Random, job: Job, tau: float) -> dict[str, Any]:
    config = replace(
        job.router.config,
        tau=tau + dice.choice((-1.0, -0.01, 0.0, 0.01, 1.0)),
        forced_blocks=dice.choice((0, 1, 1, 2)),
    )
    return {"router": replace(job.router, config=config)}


def _prompt(dice: random.Random, job: Job, tau: float) -> dict[str, Any]:
    embedding = torch.randn(1, 512, 32, generator=generator_of(dice.randint(1, 3)))
    return {"prompts": (job.prompts[0], PromptEntry(dice.randint(1, 4), [[embedding, {}]], "a storm"))}


Change = Callable[[random.Random, Job, float], dict[str, Any]]
CHANGES: dict[str, Change] = {
    "router": _router,
    "prompt": _prompt,
    "directions": lambda dice, job, tau: {
        "blocks": 5,
        "directions": "".join(dice.choice("..tdar") for _ in range(5)),
    },
    "takes": lambda dice, job, tau: {"takes": f"{dice.randint(1, 5)}:{dice.randint(1, 3)}", "blocks": 5},
    "blocks": lambda dice, job, tau: {"blocks": dice.randint(1, 7), "directions": "", "takes": ""},
    "seed": lambda dice, job, tau: {"seed": dice.randint(1, 2)},
    "schedule": lambda dice, job, tau: {
        "schedules": {**TWO_STEPS, "drafter": dice.choice(("1000,625", "1000,500"))}
    },
    "LoRA": lambda dice, job, tau: {"target": with_lora(job.target)},
    "swap": lambda dice, job, tau: {"drafter": job.target, "target": job.drafter},
    "drafter context": lambda dice, job, tau: (
        {} if job.execution.overlap else {"drafter_context": dice.choice(("committed", "own"))}
    ),
}
