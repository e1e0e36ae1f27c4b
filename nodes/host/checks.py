"""Check what is wired in before anything is loaded: refuse it with a reason, or note which parts have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from comfy.ldm.wan.model import WanModel
from comfy.model_patcher import ModelPatcher

from ...sdvg_core.causal_wan.control_files import GIVE_VACE
from ...sdvg_core.causal_wan.refusals import ADDITIONS, GIVE_T2V, INPUT_CHANNELS
from ...sdvg_core.devices.device import dtype_name
from ...sdvg_core.engine.control import CHANNELS
from ...sdvg_core.errors import BadInput
from .model import compute_dtype

LATENT_CHANNELS = 16
# The plain model, and the same weights under ComfyUI's own causal forward (which ours does not call).
CLASSES = ("WanModel", "CausalWanModel")

HONOURED = ("transformer_options", "optimized_attention_override")
WRAPPERS = "a wrapper around the sampler's calls (compilation, caching, context windows)"
# Where a MODEL's options keep a patch -> what the artist calls it.
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
    """Return notes on the parts of a MODEL that have no effect here. `role`: "drafter" or "target".

    Raises `BadInput` unless it is a Wan 2.1 text-to-video model.
    """
    found = describe_foreign(patcher)
    if found:
        raise BadInput(f"the {role} is {found}; {GIVE_T2V}")
    return tuple(
        f"the {role} carries {what}, which has no effect on block-by-block sampling"
        for what in dict.fromkeys(_ineffective(patcher))
    )


def describe_foreign(patcher: ModelPatcher) -> str | None:
    """Describe a MODEL in words; None if it is a Wan 2.1 text-to-video model."""
    base = getattr(patcher, "model", None)
    tree = getattr(base, "diffusion_model", None)
    if tree is None:
        return f"a {type(patcher).__name__}, which holds no diffusion model"
    if not isinstance(tree, WanModel):
        return f"a model of another family ({type(base).__name__})"
    for module, what in ADDITIONS.items():
        if getattr(tree, module, None) is not None:
            return what
    if tree.in_dim != LATENT_CHANNELS or tree.out_dim != LATENT_CHANNELS:
        return INPUT_CHANNELS.get(tree.in_dim, f"a Wan model with {tree.in_dim} input channels")
    if tree.model_type != "t2v" or type(tree).__name__ not in CLASSES:
        return f"a Wan model of another kind ({type(tree).__name__}, {tree.model_type})"
    return None


def check_control(patcher: ModelPatcher, control: Any, role: str) -> None:
    """Raise `BadInput` unless `control` has the control blocks of VACE for a MODEL. `role`: the MODEL's."""
    ours, theirs = patcher.model.diffusion_model, getattr(getattr(control, "model", None), "diffusion_model", None)
    blocks = len(getattr(theirs, "vace_blocks", ()))
    if not blocks or theirs.vace_patch_embedding.in_channels != CHANNELS:
        raise BadInput(f"the MODEL in control has no VACE blocks; {GIVE_VACE}")
    if theirs.dim != ours.dim or theirs.ffn_dim != ours.ffn_dim or ours.num_layers % blocks:
        raise BadInput(f"control is for a width of {theirs.dim}, and the {role} has {ours.dim}; {GIVE_VACE}")
    if control.load_device != patcher.load_device:
        places = f"on {patcher.load_device} and its control on {control.load_device}"
        raise BadInput(f"the {role} is {places}; choose one device for both")
    dtypes = [dtype_name(compute_dtype(one)) for one in (patcher, control)]
    if dtypes[0] != dtypes[1]:
        raise BadInput(f"the {role} computes in {dtypes[0]} and its control in {dtypes[1]}; load both alike")


def check_loras(models: Mapping[str, ModelPatcher]) -> None:
    """Raise `BadInput` if drafter and target are one loaded model with different LoRAs."""
    if len({id(patcher.model) for patcher in models.values()}) < len({p.patches_uuid for p in models.values()}):
        raise BadInput("ComfyUI cannot give both roles, one loaded model, different LoRAs; load the file twice")


def _ineffective(patcher: ModelPatcher) -> Iterator[str]:
    options: Mapping[str, Any] = patcher.model_options
    for name, value in (*options.items(), *options.get("transformer_options", {}).items()):
        # Patches that were removed again leave empty nested dicts behind.
        if name not in HONOURED and _filled(value):
            yield OPTIONS.get(name, f"the option {name}")
    if _filled(patcher.wrappers):
        yield WRAPPERS
    if patcher.hook_patches:
        yield "hooks (scheduled LoRAs)"
    if "model_sampling" in patcher.object_patches:
        yield "a sampling shift (the schedule states its noise levels itself)"


def _filled(value: Any) -> bool:
    """Whether nested dicts and lists hold anything."""
    if isinstance(value, Mapping):
        return any(_filled(part) for part in value.values())
    # A tensor has no single truth.
    return bool(value) if isinstance(value, MAY_BE_EMPTY) else True
