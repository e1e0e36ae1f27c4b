"""Clips with a guide, a control or a video to restyle, over the tiny models."""

from __future__ import annotations

import torch

from sdvg_core.engine.inputs import CONTROL_CHANNELS, ControlClip
from sdvg_core.engine.run import Run
from sdvg_core.settings.request import Strength
from tests.support.tiny import (
    CONFIG,
    SIZE,
    generator_of,
    latents_shown,
    make_engine,
    make_framewise,
    planned,
    random_module,
)

BLOCKS, STEPS = 4, "1000,900,800,625"
DEPTH, SCRIBBLE = (
    torch.randn(1, CONTROL_CHANNELS, 3 * BLOCKS, *SIZE, generator=generator_of(seed)) for seed in (77, 78)
)
INPUT = DEPTH[:, : CONFIG.in_dim]


def controlled(*clips):
    return {"controls": clips}


def restyled(*strengths, source=INPUT, blocks=BLOCKS):
    """One strength, or one for each block."""
    return {"source": source, "strengths": strengths * blocks if len(strengths) == 1 else strengths}


def engine_of(policy="recompute", *, blocks=1, framewise=False, **options):
    make = make_framewise if framewise else make_engine
    return make(policy, **{"schedule": STEPS, "control": random_module(9, blocks=blocks), **options})


def run_of(engine, router, guide, **options) -> Run:
    return planned(engine, router, **{"blocks": BLOCKS, **guide, **options})


def made(*asked, **options):
    return latents_shown(run_of(*asked, **options))


CONTROL, LIGHT = ControlClip(DEPTH), Strength(skip=2)
