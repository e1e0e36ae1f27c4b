"""Compile the layers of a MODEL, or note why they cannot be compiled.

Like the command line, compile each layer except its attentions. ComfyUI's modules cast and patch weights in their
forward, so whether a compiler can trace them depends on how they were loaded; we trace a few tokens first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from comfy.model_patcher import ModelPatcher
from torch import nn
from torch._dynamo.exc import TorchDynamoException

from ...sdvg_core.causal_wan.forward import PLAIN_STAGES, Stages, compiled_stages, denoise_pass, project_text
from ...sdvg_core.devices.compiling import INDUCTOR, check_compile
from ...sdvg_core.errors import first_line
from .job import Job
from .model import origin_of, patcher_dtype
from .self_check import TIMESTEP, pass_inputs, small_inputs

SIZES = 4
"""Video sizes for which the compiled layers of a MODEL are kept: the compiler gives up after eight shapes."""

_KEPT: WeakKeyDictionary[nn.Module, dict[Hashable, Stages]] = WeakKeyDictionary()
"""Compiled stages of each model, by width, height and patches."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The stages of a MODEL's layers, compiled or plain, and a note on them for the user."""

    stages: Stages = PLAIN_STAGES
    note: str = ""


def layers_of(job: Job) -> Mapping[str, Layers]:
    """Return the layers of the MODELs that make a job's blocks, by role. They are loaded.

    Raises `BadInput` if compilation was asked for and this machine has no compiler.
    """
    return {
        role: _layers(role, patcher, job.size, controlled=role in job.controls)
        for role, patcher in job.models_used.items()
    }


def _layers(role: str, patcher: ModelPatcher, size: tuple[int, int], *, controlled: bool) -> Layers:
    mode = origin_of(patcher).compile
    if mode == "off":
        return Layers()
    check_compile(mode, patcher.load_device, "set compile to off on the loader")
    kept = _KEPT.setdefault(patcher.model.diffusion_model, {})
    key = (*size, patcher.patches_uuid)
    fault = "the blocks of its control run with it" if controlled else _placed(patcher)
    if key not in kept:
        fault = fault or _untraceable(patcher)
    if fault:
        return Layers(note=f"The {role} runs uncompiled: {fault}.")
    stages = kept.pop(key, None) or compiled_stages(INDUCTOR)
    kept[key] = stages  # the newest
    if len(kept) > SIZES:
        del kept[next(iter(kept))]
    return Layers(stages, f"The {role} runs compiled, so it rounds differently from an uncompiled one.")


def _placed(patcher: ModelPatcher) -> str:
    """Return why the placement of a MODEL's weights rules out compilation, or an empty string."""
    if patcher.is_dynamic():
        return "dynamic VRAM fetches its weights inside the layers; start ComfyUI with --disable-dynamic-vram"
    if patcher.loaded_size() < patcher.model_size():
        return "part of its weights is copied to the card in every pass"
    return ""


def _untraceable(patcher: ModelPatcher) -> str:
    """Trace the layers of a loaded MODEL on a few tokens; return why that failed, or an empty string."""
    tree = patcher.model.diffusion_model
    x, text, ops = small_inputs(patcher, patcher_dtype(patcher))
    stages = compiled_stages(_traced)
    try:
        with torch.inference_mode():
            inputs = pass_inputs(tree, x, project_text(tree, text, ops), ops)
            denoise_pass(tree, x, TIMESTEP, replace(inputs, stages=stages))
    except TorchDynamoException as error:
        return f"the compiler cannot follow ComfyUI's layers ({first_line(error)})"
    return ""


def _traced(graph: Any, _: Any) -> Callable[..., Any]:
    """Compiler backend that runs the traced graph as it is."""
    run: Callable[..., Any] = graph.forward
    return run
