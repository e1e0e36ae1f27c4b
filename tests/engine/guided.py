"""Clips with a guide, a control or a video to restyle, over the tiny models."""

from __future__ import annotations

from functools import cache

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

BLOCKS = 4
STEPS = "1000,900,800,625"


def control_clip(seed):
    return torch.randn(1, CONTROL_CHANNELS, 3 * BLOCKS, *SIZE, generator=generator_of(seed))


DEPTH = control_clip(77)
SCRIBBLE = control_clip(78)
INPUT = DEPTH[:, : CONFIG.in_dim]
CONTROL = ControlClip(DEPTH)
LIGHT = Strength(skip=2)
shared_module = cache(random_module)


def controlled(*clips):
    """Return the options of a run that these control clips guide."""
    return {"controls": clips}


def restyled(*strengths, source=INPUT, blocks=BLOCKS):
    """Return the options of a run that restyles a clip, by one strength or by one for each block."""
    return {"source": source, "strengths": strengths * blocks if len(strengths) == 1 else strengths}


def engine_of(policy="recompute", *, framewise=False, **options):
    """Return an engine of four steps, whose models have a control module."""
    make = make_framewise if framewise else make_engine
    return make(policy, **{"schedule": STEPS, "control": shared_module(9), **options})


def run_of(engine, router, guide, **options) -> Run:
    return planned(engine, router, **{"blocks": BLOCKS, **guide, **options})


def guided_latents(engine, router, guide, **options):
    return latents_shown(run_of(engine, router, guide, **options))
