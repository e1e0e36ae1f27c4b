"""Load a checkpoint file as a MODEL, and a control module for it.

ComfyUI's loader reads the file itself if it can, and handles scaled fp8 there; otherwise we hand it a state dict with
names that it knows. ComfyUI loads only whole VACE checkpoints, so we build control modules ourselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import comfy.ops
import comfy.sd
import torch
from comfy.ldm.wan.model import VaceWanAttentionBlock
from comfy.model_patcher import ModelPatcher
from comfy.quant_ops import QUANT_ALGOS

from ...sdvg_core.causal_wan.checkpoint import (
    EMBEDDING,
    PUBLISHED_DRAFTER,
    PUBLISHED_TARGET,
    WanCheckpoint,
    fill,
    open_control,
    open_wan,
)
from ...sdvg_core.causal_wan.config import HEAD_DIM, WAN_1_3B, WanConfig, control_shapes
from ...sdvg_core.causal_wan.presets import notes_by_name, preset_by_name
from ...sdvg_core.engine.inputs import CONTROL_CHANNELS
from ...sdvg_core.errors import BadInput
from ...sdvg_core.memory.plan import Plan, plan
from ...sdvg_core.memory.sizes import SOLD_UNIT, PlanRequest
from ...sdvg_core.settings.context import Preset, Rolling, Weights
from ...sdvg_core.settings.execution import AUTO
from ...sdvg_core.weights.model_files import smaller_file
from ...sdvg_core.weights.pickles import NO_CHOICE, Choice, choice_note
from ...sdvg_core.weights.weight_file import SAFETENSORS, open_weights
from .model import attach_origin, config_of, origin_of, patcher_dtype

UNQUANTISED = "none"

# Widget value -> model options, as in ComfyUI's own loader.
WEIGHT_DTYPES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
    "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True},
    "fp8_e5m2": {"dtype": torch.float8_e5m2},
}

HOST_NAMINGS = ("Wan names", "Wan names under model", "Wan names under model.diffusion_model")
"""Namings that ComfyUI's own loader reads."""


def load_checkpoint(
    path: str,
    weight_dtype: str,
    preset: Preset | None,
    weights: Weights = AUTO,
    role: str = "target",
    *,
    flush: bool = False,
) -> ModelPatcher:
    """Load a checkpoint as a MODEL with its `Origin` attached.

    `weight_dtype`: a key of `WEIGHT_DTYPES`, or `auto`. `preset`: None to take it from the file's name, or guess it
    when the model is used. `weights`: which state dict of a training checkpoint. `flush`: empty the window at a new
    prompt, unless the model was trained to recache it. Raises `BadInput` like `load_model`.
    """
    file = Path(path)
    known = with_flush(preset or preset_by_name(file), flush=flush)
    choice = Choice(weights, known.weights if known else AUTO)
    dtype_note = ""
    if weight_dtype == AUTO:
        weight_dtype, dtype_note = choose_weight_dtype(open_wan(path, choice), known, role)
    model = load_model(path, weight_dtype, choice)
    notes = notes_by_name(file, config_of(model.model.diffusion_model), stated=preset is not None)
    notes += (dtype_note,) if dtype_note else ()
    return attach_origin(model, preset=known, file=file, notes=(*origin_of(model).notes, *notes))


def with_flush(preset: Preset | None, *, flush: bool) -> Preset | None:
    """Return a preset that, if `flush`, empties the window at a new prompt, unless it recaches it."""
    rolling = preset.context if preset and isinstance(preset.context, Rolling) else None
    if preset and rolling and flush and not rolling.recache:
        return replace(preset, context=replace(rolling, flush=True))
    return preset


def load_model(path: str, weight_dtype: str, choice: Choice = NO_CHOICE, **host_options: Any) -> ModelPatcher:
    """Load a checkpoint as a MODEL. Raises `BadInput` if it is not a causal Wan 2.1 text-to-video model.

    `choice`: which state dict of a training checkpoint. `host_options`: arguments that ComfyUI adds when it reloads a
    MODEL for another device.
    """
    checkpoint = open_wan(path, choice)
    file = checkpoint.weights
    _check_quantised(checkpoint, weight_dtype)
    options = dict(WEIGHT_DTYPES[weight_dtype])
    unusual = _unusual_sizes(checkpoint.config)
    stated = all(f'"{name}"' in file.metadata.get("config", "") for name in unusual)
    if file.path.suffix in SAFETENSORS and checkpoint.naming in HOST_NAMINGS and stated:
        return comfy.sd.load_diffusion_model(path, model_options=options, **host_options)
    metadata = {"config": json.dumps({"transformer": unusual})} if unusual else None
    host_options["metadata"] = metadata
    # Keep no reference to the state dict, so that ComfyUI can free each weight after copying it.
    model = comfy.sd.load_diffusion_model_state_dict(_state_dict(checkpoint), options, **host_options)
    # Without this, ComfyUI's device nodes do not move the MODEL.
    model.cached_patcher_init = (load_model, (path, weight_dtype, choice))
    taken = choice_note(file.path.name, file.state_dict, file.state_dicts, choice)
    return attach_origin(model, state_dict=file.state_dict or None, notes=(taken,) if taken else ())


def _check_quantised(checkpoint: WanCheckpoint, weight_dtype: str) -> None:
    """Raise `BadInput` for int8 or 4 bits that this ComfyUI does not read, or that should be rounded once more."""
    name = checkpoint.weights.path.name
    for form in {layer.form.name: layer.form for layer in checkpoint.quantisation.layers.values()}.values():
        if form.stated not in QUANT_ALGOS:
            fault = f"{name} is {form.name}, which ComfyUI reads from {form.comfyui} on"
            raise BadInput(f"{fault}; update it, or take the int8 or fp8 file")
        if weight_dtype not in ("default", AUTO):
            raise BadInput(f"{name} is {form.name} already; set weight precision to default")


def _unusual_sizes(config: WanConfig) -> dict[str, Any]:
    """Return the sizes that ComfyUI cannot infer from shapes; empty for the published models."""
    usual = {name: getattr(WAN_1_3B, name) for name in ("text_dim", "freq_dim", "patch_size")}
    usual["num_heads"] = config.dim // HEAD_DIM
    stated = {name: getattr(config, name) for name, value in usual.items() if getattr(config, name) != value}
    if "patch_size" in stated:  # ComfyUI divides the head's rows by 2 x 2
        stated["out_dim"] = config.out_dim
    return stated


def _state_dict(checkpoint: WanCheckpoint) -> dict[str, Any]:
    file = checkpoint.weights
    if checkpoint.quantisation.label != UNQUANTISED and checkpoint.quantisation.side:
        fault = f"{file.path.name} is {checkpoint.quantisation.label}, under names of its own ({file.layout})"
        raise BadInput(f"{fault}; convert it to safetensors, or take the unquantised checkpoint")
    return {name: file[name] for name in file}


# --- weight_dtype `auto`


def choose_weight_dtype(checkpoint: WanCheckpoint, preset: Preset | None, role: str) -> tuple[str, str]:
    """Return the weight dtype for a checkpoint on ComfyUI's device, and a note if there was a choice.

    Only a target on a GPU has a choice. It depends on the card's size, not on its free memory, so that a machine
    makes the same video every time. `preset`: None if it is not known yet.
    """
    device = mm.get_torch_device()
    if role != "target" or device.type != "cuda" or checkpoint.quantisation.label != UNQUANTISED:
        return "default", ""
    planned = plan_card(int(mm.get_total_memory(device)), checkpoint.config, preset)
    chosen = "fp8_e4m3fn" if planned.fp8 else "default"
    request = planned.request
    copies = any(planned.copied.values()) or planned.fp8
    smaller = f"; {smaller_file(checkpoint.weights.path)}" if copies else ""
    return chosen, (
        f"weight_dtype auto is {chosen} for {checkpoint.weights.path.name}: planned for {request.width}x{request.height} on "
        f"a card of {planned.vram:.0f} GB, with a drafter of {request.drafter.config.size}, VAE and scorer{smaller}."
    )


def plan_card(total: int, target: WanConfig, preset: Preset | None) -> Plan:
    """Return the memory plan for a target with the published other models, on a card of `total` bytes."""
    usual = PUBLISHED_DRAFTER
    model = replace(PUBLISHED_TARGET, config=target, preset=preset or PUBLISHED_TARGET.preset)
    # A drafter's blocks must divide the target's.
    drafter = usual if model.block_frames % usual.block_frames == 0 else replace(usual, preset=model.preset)
    return plan(total / SOLD_UNIT, PlanRequest(target=model, drafter=drafter), card=True)


OPERATIONS = comfy.ops.disable_weight_init


class HostControlTree(torch.nn.Module):
    """The control blocks of a VACE MODEL under their names."""

    dim: int
    ffn_dim: int


class ControlModel(torch.nn.Module):
    """The control blocks of a VACE MODEL under its names, on the meta device until they are filled."""

    manual_cast_dtype = None

    def __init__(self, config: WanConfig, blocks: int, dtype: torch.dtype) -> None:
        super().__init__()
        settings = {"operations": OPERATIONS, "device": "meta", "dtype": dtype}
        sizes = (config.dim, config.ffn_dim, config.num_heads, (-1, -1), True, True, config.eps)
        tree = HostControlTree()
        tree.dim = config.dim
        tree.ffn_dim = config.ffn_dim
        self._dtype = dtype
        tree.vace_blocks = torch.nn.ModuleList(
            VaceWanAttentionBlock("t2v_cross_attn", *sizes, block_id=number, operation_settings=settings)
            for number in range(blocks)
        )
        patch = {"kernel_size": config.patch_size, "stride": config.patch_size}
        tree.vace_patch_embedding = OPERATIONS.Conv3d(CONTROL_CHANNELS, config.dim, **patch, device="meta")
        self.diffusion_model = tree

    def get_dtype(self) -> torch.dtype:
        """Return the compute dtype."""
        return self._dtype


def load_control_file(path: str, model: ModelPatcher, role: str) -> ModelPatcher:
    """Load a file's control module for a MODEL, in its compute dtype. Raises `BadInput` if it is for another size."""
    config = config_of(model.model.diffusion_model)
    dtype = patcher_dtype(model)
    checkpoint = open_control(open_weights(path), config, role)
    control = ControlModel(config, checkpoint.blocks, dtype)
    names = control_shapes(config, checkpoint.blocks)
    embedding = [name for name in names if name.startswith(EMBEDDING)]
    blocks = [name for name in names if name not in embedding]
    # ComfyUI keeps the embedding in float32 with blocks of any dtype.
    fill(control.diffusion_model, checkpoint, embedding, torch.device("cpu"), torch.float32)
    fill(control.diffusion_model, checkpoint, blocks, torch.device("cpu"), dtype)
    return comfy.model_patcher.CoreModelPatcher(control, model.load_device, model.offload_device)
