"""A ComfyUI MODEL as a block generator: our causal forward pass over the modules that ComfyUI loaded.

It calls modules and never reads their weights, so LoRA, fp8, GGUF, offloaded and paged weights work as in ComfyUI.
ComfyUI's own causal forward is not called, so that nodes and command line share one. Latents stay normalised here;
those of LATENT sockets are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import comfy.model_management
import torch
from comfy.ldm.flux.math import apply_rope1
from comfy.ldm.modules.attention import optimized_attention
from comfy.ldm.wan.model import WanModel, sinusoidal_embedding_1d
from comfy.model_patcher import ModelPatcher
from torch import Tensor

from ...sdvg_core.causal_wan.attention import TorchOps
from ...sdvg_core.causal_wan.checkpoint import GIVE_VACE, foreign
from ...sdvg_core.causal_wan.config import WanConfig
from ...sdvg_core.causal_wan.context import Wan
from ...sdvg_core.causal_wan.forward import PLAIN_STAGES, Stages
from ...sdvg_core.causal_wan.presets import guess_preset
from ...sdvg_core.devices.device import dtype_name
from ...sdvg_core.engine.inputs import CONTROL_CHANNELS
from ...sdvg_core.errors import BadInput
from ...sdvg_core.settings.context import Preset
from ...sdvg_core.settings.execution import CompileMode
from ...sdvg_core.weights.kitchen import INT8, W4A8
from ...sdvg_core.weights.model_files import VARIANTS, family_of
from .vae import LATENT_CHANNELS


class ComfyOps(TorchOps):
    """Operations of the forward pass by ComfyUI: casts, attention kernel and rotary positions.

    `options`: the MODEL's transformer options, of which only an attention override is used.
    """

    def __init__(self, dtype: torch.dtype, options: Mapping[str, Any]) -> None:
        self.dtype = dtype
        self.options = dict(options)

    def cast(self, parameter: Tensor, like: Tensor) -> Tensor:
        """Return `parameter` in the dtype and on the device of `like`."""
        cast: Tensor = comfy.model_management.cast_to(parameter, dtype=like.dtype, device=like.device)
        return cast

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with the kernel chosen by ComfyUI or the MODEL."""
        return self.attend(None, q, k, v)

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with the kernel that newer versions of ComfyUI read for `module` from its file, else as `attention`."""
        flat = (part.flatten(2) for part in (q, k, v))
        preferred = getattr(module, "comfy_attention", None)
        more = {} if preferred is None else {"preferred_attention": preferred}
        out: Tensor = optimized_attention(*flat, heads=q.shape[2], transformer_options=self.options, **more)
        return out

    def sinusoid(self, times: Tensor, width: int) -> Tensor:
        """Return ComfyUI's embedding of each time: cosines, then sines, float32."""
        embedded: Tensor = sinusoidal_embedding_1d(width, times.flatten()).unflatten(0, times.shape)
        return embedded

    def rope(self, tree: Any, first: int, grid: tuple[int, int, int], device: torch.device) -> Tensor:
        """Return ComfyUI's rotary table in float32: in half precision, positions above 256 would coincide."""
        sizes = (tokens * patch for tokens, patch in zip(grid, tree.patch_size, strict=True))
        table: Tensor = tree.rope_encode(*sizes, t_start=first, device=device, dtype=torch.float32)
        return table

    def rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        """Rotate `b l n d` by the table."""
        rotated: Tensor = apply_rope1(x, rope)
        return rotated


def settle_attention(device: torch.device) -> None:
    """Attend to one token, so that the first run of a process gives the same bits as later ones.

    In a process's first attention on a GPU, torch ignores the kernel priority that ComfyUI sets, so the call rounds
    differently.
    """
    token = torch.zeros(1, 1, 1, 64, dtype=torch.float16, device=device)
    torch.nn.functional.scaled_dot_product_attention(token, token, token)


def comfy_wan(
    patcher: ModelPatcher,
    preset: Preset,
    *,
    kv_fp8: bool = False,
    control: ModelPatcher | None = None,
    stages: Stages = PLAIN_STAGES,
) -> Wan:
    """Return a block generator over a MODEL that passed `check_model`. Loads nothing: see `memory`.

    `kv_fp8`: keep keys and values in float8_e4m3fn. `control`: the VACE MODEL whose control blocks run with it.
    `stages`: of its layers, compiled or plain.
    """
    return Wan(
        tree=patcher.model.diffusion_model,
        ops=ComfyOps(patcher_dtype(patcher), patcher.model_options.get("transformer_options", {})),
        preset=preset,
        device=patcher.load_device,
        kv_fp8=kv_fp8,
        stages=stages,
        control=None if control is None else control.model.diffusion_model,
    )


def patcher_dtype(patcher: ModelPatcher) -> torch.dtype:
    """Return the dtype of activations, keys and values, even of a MODEL that is not loaded yet.

    Select Model Device and others set it by a patch, which the model itself shows only after loading.
    """
    dtype: torch.dtype = patcher.get_model_object("manual_cast_dtype") or patcher.model.get_dtype()
    return dtype


def form_of(weight: Tensor) -> Literal["int8", "w4a8"] | None:
    """Return the format of a weight, if it is one that `convert` makes."""
    layout = getattr(weight, "_layout_cls", None)
    forms: dict[str, Literal["int8", "w4a8"]] = {INT8.layout: "int8", W4A8.layout: "w4a8"}
    return forms.get(layout) if layout else None


def config_of(tree: Any) -> WanConfig:
    """Return the sizes of a loaded Wan model, whose attributes have the names of `WanConfig`."""
    sizes = {f.name: getattr(tree, f.name) for f in fields(WanConfig)}
    return WanConfig(**{**sizes, "patch_size": tuple(tree.patch_size)})


CHOOSE_PRESET = "wire it through SDVG Drafter Loader or SDVG Target Loader, which name one"

# --- the origin of a MODEL, attached to it: attachments survive the clones that LoRA and device nodes make

ORIGIN = "sdvg_origin"
"""Attachment with a MODEL's `Origin`."""
CONTROL = "sdvg_control"
"""Attachment with the VACE MODEL whose control blocks run with it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """Where a MODEL came from, as recorded by our loaders; all defaults for a MODEL of another loader.

    `preset`: None to guess it when the MODEL is used. `state_dict`: the chosen one of a file with several.
    `notes`: on that choice and on the file's name. `compile`: the mode chosen on the loader.
    """

    preset: Preset | None = None
    file: Path | None = None
    state_dict: str | None = None
    notes: tuple[str, ...] = ()
    compile: CompileMode = "off"


def origin_of(patcher: ModelPatcher) -> Origin:
    """Return a MODEL's origin."""
    return patcher.get_attachment(ORIGIN) or Origin()


def attach_origin(patcher: ModelPatcher, **known: Any) -> ModelPatcher:
    """Set fields of the origin attached to a MODEL, and return the MODEL."""
    patcher.set_attachments(ORIGIN, replace(origin_of(patcher), **known))
    return patcher


def preset_of(patcher: ModelPatcher) -> Preset:
    """Return a MODEL's preset, or guess it from its size. Raises `BadInput` for a size without a preset."""
    return origin_of(patcher).preset or guess_preset(config_of(patcher.model.diffusion_model), CHOOSE_PRESET)


# --- checks of the MODELs wired in, before anything is loaded

# The plain model, and the same weights under ComfyUI's own causal forward, which ours does not call.
CLASSES = ("WanModel", "CausalWanModel")

HONOURED = ("transformer_options", "optimized_attention_override")
WRAPPERS = "a wrapper around the sampler's calls (compilation, caching, context windows)"
# Key of a patch in a MODEL's options -> its name in a note.
OPTIONS = {
    "patches": "a patch of its attention or blocks",
    "patches_replace": "a replacement of its blocks",
    "wrappers": WRAPPERS,
    "torch_compile_kwargs": WRAPPERS,
    "callbacks": "a callback of the sampler",
    "rope_options": "scaled or shifted rotary positions",
    "context_handler": "context windows",
    "model_function_wrapper": "a wrapper around the model's call",
    "denoise_mask_function": "a denoising mask function",
    "sampler_cfg_function": "a guidance function",
    "sampler_pre_cfg_function": "a guidance function",
    "sampler_post_cfg_function": "a guidance function",
    "sampler_calc_cond_batch_function": "a guidance function",
}
MAY_BE_EMPTY = (bool, int, float, str, list, tuple, set, type(None))


def check_model(patcher: ModelPatcher, role: str) -> tuple[str, ...]:
    """Return notes on patches of a MODEL that have no effect here. `role`: "drafter" or "target".

    Raises `BadInput` unless it is a Wan 2.1 text-to-video model.
    """
    kind = describe_foreign(patcher)
    if kind:
        raise foreign(f"the {role}", kind)
    return tuple(
        f"The {role} carries {what}, which has no effect on block-by-block sampling."
        for what in dict.fromkeys(_ineffective(patcher))
    )


def describe_foreign(patcher: ModelPatcher) -> str | None:
    """Describe a MODEL that is not a Wan 2.1 text-to-video model; return None if it is one."""
    tree = getattr(patcher.model, "diffusion_model", None)
    if not isinstance(tree, WanModel):
        return f"a model of another family ({type(patcher.model).__name__})"
    kind = family_of((name for name, _ in tree.named_children()), VARIANTS)
    if kind:
        return kind
    if tree.in_dim != LATENT_CHANNELS or tree.out_dim != LATENT_CHANNELS:
        return f"{tree.in_dim} input and {tree.out_dim} output channels, not {LATENT_CHANNELS}"
    if tree.patch_size[0] != 1:
        return f"tokens of {tree.patch_size[0]} latent frames, not 1"
    if tree.model_type != "t2v" or type(tree).__name__ not in CLASSES:
        return f"a Wan model of another kind ({type(tree).__name__}, {tree.model_type})"
    return None


def check_control(patcher: ModelPatcher, control: ModelPatcher, role: str) -> None:
    """Raise `BadInput` unless `control` has VACE control blocks that fit a MODEL. `role`: the MODEL's."""
    ours = patcher.model.diffusion_model
    theirs = getattr(getattr(control, "model", None), "diffusion_model", None)
    blocks = len(getattr(theirs, "vace_blocks", ()))
    if theirs is None or not blocks or theirs.vace_patch_embedding.in_channels != CONTROL_CHANNELS:
        raise BadInput(f"the MODEL in control has no VACE blocks; {GIVE_VACE}")
    if theirs.dim != ours.dim or theirs.ffn_dim != ours.ffn_dim or ours.num_layers % blocks:
        raise BadInput(f"control is for a width of {theirs.dim}, and the {role} has {ours.dim}; {GIVE_VACE}")
    patches = [tuple(theirs.vace_patch_embedding.kernel_size), tuple(ours.patch_size)]
    if patches[0] != patches[1]:
        raise BadInput(f"control has tokens of {patches[0]}, and the {role} of {patches[1]}; {GIVE_VACE}")
    if control.load_device != patcher.load_device:
        places = f"on {patcher.load_device} and its control on {control.load_device}"
        raise BadInput(f"the {role} is {places}; choose one device for both")
    dtypes = [dtype_name(patcher_dtype(part)) for part in (patcher, control)]
    if dtypes[0] != dtypes[1]:
        raise BadInput(f"the {role} computes in {dtypes[0]} and its control in {dtypes[1]}; load both in one dtype")


def check_loras(models: Mapping[str, ModelPatcher]) -> None:
    """Raise `BadInput` if drafter and target are one loaded model with different LoRAs."""
    if len({id(patcher.model) for patcher in models.values()}) < len({p.patches_uuid for p in models.values()}):
        raise BadInput("drafter and target are one loaded model with different LoRAs; load the file twice")


def _ineffective(patcher: ModelPatcher) -> Iterator[str]:
    options: Mapping[str, Any] = patcher.model_options
    for name, value in (*options.items(), *options.get("transformer_options", {}).items()):
        # Removed patches leave empty nested dicts.
        if name not in HONOURED and _filled(value):
            yield OPTIONS.get(name, f"the option {name}")
    if _filled(patcher.wrappers):
        yield WRAPPERS
    if patcher.hook_patches:
        yield "hooks (scheduled LoRAs)"
    if "model_sampling" in patcher.object_patches:
        yield "a sampling shift (the schedule states its noise levels itself)"


def _filled(value: Any) -> bool:
    """True if nested dicts and lists hold a value."""
    if isinstance(value, Mapping):
        return any(_filled(part) for part in value.values())
    # A tensor of several values has no truth value.
    return bool(value) if isinstance(value, MAY_BE_EMPTY) else True
