"""The layers of a MODEL, compiled: which can be, and why others run as they are.

All of a layer but its attentions is compiled, as on the command line. ComfyUI's modules cast and add their patches inside, so
whether a compiler can follow them depends on how they were loaded; they are tried on a few tokens first.
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

from ...sdvg_core.causal_wan.forward import PLAIN, Stages, compiled_stages, denoise_pass, project_text
from ...sdvg_core.devices.execution import INDUCTOR, check_compile
from ...sdvg_core.errors import first_line
from .job import Job
from .model import compute_dtype, origin_of
from .self_check import TIMESTEP, pass_inputs, small_inputs

SIZES = 4
"""Sizes of video for which the compiled layers of a MODEL are kept: the compiler counts shapes, and stops at eight."""

_KEPT: WeakKeyDictionary[nn.Module, dict[Hashable, Stages]] = WeakKeyDictionary()
"""By width, height and patches."""


@dataclass(frozen=True, slots=True)
class Layers:
    """How the layers of a MODEL run, and what a person is told about it."""

    stages: Stages = PLAIN
    note: str = ""


def layers_of(job: Job) -> Mapping[str, Layers]:
    """Return how the layers of a job's loaded MODELs run, by role.

    Raises `BadInput` where compiling was asked for and this machine has no compiler.
    """
    size = (job.request.width, job.request.height)
    return {
        role: _layers(role, patcher, size, controlled=role in job.controls) for role, patcher in job.models.items()
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
    stages = kept[key] = kept.pop(key, None) or compiled_stages(INDUCTOR)
    if len(kept) > SIZES:
        del kept[next(iter(kept))]
    return Layers(stages, f"The layers of the {role} are compiled, and round otherwise than uncompiled ones.")


def _placed(patcher: ModelPatcher) -> str:
    """Say why the layers of a loaded MODEL cannot be compiled where its weights are; nothing if they can."""
    if patcher.is_dynamic():
        return "dynamic VRAM fetches weights inside its layers; start ComfyUI with --disable-dynamic-vram"
    if patcher.loaded_size() < patcher.model_size():
        return "part of its weights is copied to the card in every pass"
    return ""


def _untraceable(patcher: ModelPatcher) -> str:
    """Say why the compiler cannot follow the layers of a loaded MODEL, tried on a few tokens; nothing if it can."""
    tree = patcher.model.diffusion_model
    x, text, ops = small_inputs(patcher, compute_dtype(patcher))
    stages = compiled_stages(_traced)
    try:
        with torch.inference_mode():
            inputs = pass_inputs(tree, x, project_text(tree, text, ops), ops)
            denoise_pass(tree, x, TIMESTEP, replace(inputs, stages=stages))
    except TorchDynamoException as error:
        return f"the compiler cannot follow ComfyUI's layers ({first_line(error)})"
    return ""


def _traced(graph: Any, _: Any) -> Callable[..., Any]:
    """Run what the compiler read, without making code of it."""
    run: Callable[..., Any] = graph.forward
    return run
