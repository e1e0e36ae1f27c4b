"""Whole videos of tiny random models on a device."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from lab.benchmarks.variants import OURS, Case, parse_route, set_up
from sdvg_core.devices.device import device_clock
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.speculate import EmittedBlock
from tests.support.random_models import TINY, Models, random_models

BLOCKS = 5


def models_on(device: torch.device) -> Models:
    """Return models with the CPU's numbers on a device: a GPU's generator draws others."""
    models = random_models(TINY, torch.device("cpu"))
    for _, module in models.parts:
        module.to(device)
    return Models(
        **{name: getattr(models, name) for name in ("drafter", "target", "vae", "scorer", "condition")},
        device=device,
    )


def make_blocks(models: Models, route: str = "r=2") -> list[EmittedBlock]:
    setup = set_up([OURS], models, TINY)[OURS.name]
    case = Case(route=parse_route(route, BLOCKS), variant=OURS)
    clock = device_clock(models.device)
    run = plan_run(
        case.engine(setup, clock),
        case.route.rule,
        lambda _: models.condition,
        blocks=BLOCKS,
        seed=3,
        width=TINY.width,
        height=TINY.height,
        clock=clock,
    )
    return list(run.blocks())


def latents(blocks: list[EmittedBlock]) -> Tensor:
    return torch.cat([emitted.block.latents.cpu() for emitted in blocks], dim=2)


def digest(blocks: list[EmittedBlock]) -> str:
    frames = torch.cat([emitted.frames.cpu() for emitted in blocks], dim=1)
    return hashlib.sha256(latents(blocks).numpy().tobytes() + frames.numpy().tobytes()).hexdigest()
