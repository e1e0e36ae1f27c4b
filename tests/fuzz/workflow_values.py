"""What nodes build from their values, without ComfyUI: the core's constructors, and nodes/known.py on stand-ins."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import sdvg_core
from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.causal_wan.schedule import get_schedule
from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.router import RouterConfig, decide, foresee
from sdvg_core.engine.types import Span, plan_spans
from sdvg_core.text.prompts import one_prompt

Values = Mapping[str, Any]
PACK = "fuzzed_pack"


def build_router(values: Values) -> None:
    """Build a router as its node does, and have it decide on two blocks."""
    settings = dict(values)
    config = RouterConfig(**settings)
    config.check_blocks(1)
    for index in (0, 1):
        foresee(config, index, ())
        decide(config, index, torch.tensor([0.1, -1.0]), (), 9)


def build_preset(values: Values) -> None:
    """Build a preset as the loaders do."""
    settings = dict(values)
    get_preset(settings.pop("preset", "custom")).replace(**settings)


def build_sampler(values: Values) -> None:
    """Build what the sampler makes of its plain values."""
    one_prompt(values.get("prompt", "a ball"))
    get_schedule(values.get("schedule", "four-step"))
    plan_spans(values.get("blocks", 9), 3, 0)
    KeyedNoise(seed=values.get("seed", 42), channels=4, height=2, width=2).draw(Span(0, 0, 1), 0)


def build_advice(values: Values) -> None:
    """Work out the advice to update, from the workflow that came along."""
    known = known_module()
    known.numbers(str(values.get("version", "")))
    node = types.SimpleNamespace(hidden=types.SimpleNamespace(extra_pnginfo={"workflow": values.get("workflow")}))
    known.update(node)
    known.workflow_id(node.hidden.extra_pnginfo)


BUILDERS: Mapping[str, Callable[[Values], None]] = {
    "router": build_router,
    "preset": build_preset,
    "sampler": build_sampler,
    "metadata": build_advice,
}


@cache
def known_module() -> Any:
    """Return nodes/known.py as a module of a pack that has nothing of ComfyUI but names."""
    hidden = types.SimpleNamespace(extra_pnginfo="extra_pnginfo")
    io = types.SimpleNamespace(Hidden=hidden, NodeOutput=object, Schema=dict, ComfyNode=object)
    latest = types.ModuleType("comfy_api.latest")
    latest.io = io  # type: ignore[attr-defined]
    sockets = types.ModuleType(f"{PACK}.nodes.sockets")
    sockets.CATEGORY = "SDVG"  # type: ignore[attr-defined]
    values = types.ModuleType(f"{PACK}.nodes.values")
    values.check_values, values.shown = (lambda *_: None), repr  # type: ignore[attr-defined]
    stand_ins = {
        "comfy_api": types.ModuleType("comfy_api"),
        "comfy_api.latest": latest,
        PACK: types.ModuleType(PACK),
        f"{PACK}.nodes": types.ModuleType(f"{PACK}.nodes"),
        f"{PACK}.nodes.sockets": sockets,
        f"{PACK}.nodes.values": values,
        f"{PACK}.sdvg_core": sdvg_core,
        f"{PACK}.sdvg_core.errors": sys.modules["sdvg_core.errors"],
    }
    path = Path(__file__).parents[2] / "nodes" / "known.py"
    spec = importlib.util.spec_from_file_location(f"{PACK}.nodes.known", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module
