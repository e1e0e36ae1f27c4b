"""What nodes build from their values, without ComfyUI: the core's constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.causal_wan.schedule import get_schedule
from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.router import RouterConfig, decide, foresee
from sdvg_core.engine.types import Span, plan_spans
from sdvg_core.text.prompts import one_prompt

Values = Mapping[str, Any]


def build_router(values: Values) -> None:
    settings = dict(values)
    config = RouterConfig(**settings)
    config.check_blocks(1)
    for index in (0, 1):
        foresee(config, index, ())
        decide(config, index, torch.tensor([0.1, -1.0]), 0.0)


def build_preset(values: Values) -> None:
    settings = dict(values)
    get_preset(settings.pop("preset", "custom")).replace(**settings)


def build_sampler(values: Values) -> None:
    one_prompt(values.get("prompt", "a ball"))
    get_schedule(values.get("schedule", "four-step"))
    plan_spans(values.get("blocks", 9), 3, 0)
    KeyedNoise(seed=values.get("seed", 42), channels=4, height=2, width=2).draw(Span(0, 0, 1), 0)


BUILDERS: Mapping[str, Callable[[Values], None]] = {
    "router": build_router,
    "preset": build_preset,
    "sampler": build_sampler,
}
