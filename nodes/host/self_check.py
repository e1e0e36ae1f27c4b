"""Check before a run, on a few tokens, that ComfyUI's forward and ours agree.

Our forward calls the parts of ComfyUI's layers one by one, so a newer ComfyUI may compute something else around them.
A check of the version would reject those that still agree, and miss packs that patch the classes. So one layer with
the head, one control block and two latent frames of the VAE run both ways on random inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_management as mm
import comfyui_version
import torch
from comfy.latent_formats import Wan21
from comfy.model_patcher import ModelPatcher
from comfy.quant_ops import QuantizedTensor
from comfy.sd import VAE
from torch import Tensor, nn

from ...sdvg_core.causal_wan.cache import CacheSlots, KVCache
from ...sdvg_core.causal_wan.forward import ControlBranch, Pass, TextKV, denoise_pass, project_text, token_grid
from ...sdvg_core.devices.device import dtype_name
from ...sdvg_core.engine.inputs import CONTROL_CHANNELS, Control
from ...sdvg_core.errors import BadInput, first_line
from .job import Job
from .model import ComfyOps, patcher_dtype
from .vae import ComfyCodec, is_tae

FRAMES = 2
SIDE = 2
"""Tokens, or latent pixels for the VAE, along height and width."""
CHECKED_WORDS = 5
TIMESTEP = 500.0
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01}
"""Largest relative difference that is rounding, by dtype; `COARSE` for other dtypes and quantised weights."""
COARSE = 0.06
OVERRIDE = "optimized_attention_override"
CASTS = "comfy_cast_weights"
"""Attribute of a layer that casts its weights to the input's dtype."""
HOST_CHANGED = (AttributeError, TypeError, ValueError, LookupError, RuntimeError, AssertionError)
"""Errors that a call of a changed module raises."""

Both = Callable[[torch.dtype], tuple[Tensor, Tensor]]
"""Function that runs a part in a dtype and returns ComfyUI's result and ours."""

_CHECKED: WeakKeyDictionary[nn.Module, tuple[Any, Mapping[str, float]]] = WeakKeyDictionary()


@torch.inference_mode()
def check_host(job: Job) -> dict[str, float]:
    """Compare ComfyUI's forward with ours on a job's models, once each; return the largest differences by dtype.

    Raises `BadInput` if they differ by more than rounding. Of an offloaded model, only the compared parts are copied
    to its device.
    """
    differences: dict[str, float] = {}

    def compare(patcher: ModelPatcher, part: str, dtypes: tuple[torch.dtype, ...], both: Both) -> None:
        for name, difference in _compared(patcher, part, dtypes, both).items():
            differences[name] = max(difference, differences.get(name, 0.0))

    for role, patcher in job.models_used.items():
        dtypes = tuple(dict.fromkeys((patcher_dtype(patcher), torch.float32)))
        compare(patcher, f"layer 1 of the {role}", dtypes, partial(_layer, patcher))
        if control := job.controls.get(role):
            compare(control, f"control block 1 of the {role}", dtypes, partial(_control_block, patcher, control))
    if not is_tae(job.vae):
        compare(job.vae.patcher, "the VAE", (job.vae.vae_dtype,), lambda dtype: _decoded(job.vae))
    return differences


def _compared(patcher: ModelPatcher, part: str, dtypes: tuple[torch.dtype, ...], both: Both) -> Mapping[str, float]:
    """Return the relative difference by dtype, memoised until patches, device or host change."""
    override = patcher.model_options.get("transformer_options", {}).get(OVERRIDE)
    host = f"ComfyUI {comfyui_version.__version__}"
    key = (host, patcher.patches_uuid, patcher.load_device, dtypes, id(override))
    known, differences = _CHECKED.get(patcher.model, (None, {}))
    if known == key:
        return differences
    differences = {}
    # Layers that round their inputs to 8 bits (fp8_e4m3fn_fast too) turn a last-digit difference into a large step.
    weights = patcher.model.parameters()
    quantised = any(isinstance(weight, QuantizedTensor) or weight.element_size() == 1 for weight in weights)
    for dtype in dtypes:
        name = dtype_name(dtype)
        try:
            theirs, ours = (result.float() for result in both(dtype))
            difference = float((ours - theirs).norm() / theirs.norm())
        except HOST_CHANGED as error:
            if mm.is_oom(error):
                raise
            if differences:
                continue  # quantised layers may accept only the MODEL's own dtype, which agreed
            fault = f"{host} cannot be compared with this pack at {part} ({first_line(error)})"
            raise BadInput(f"{fault}; use the command line, or another ComfyUI") from error
        if not bool(theirs.isfinite().all()):
            continue  # random inputs may overflow; a run checks its own latents
        if not difference <= (COARSE if quantised else TOLERANCE.get(dtype, COARSE)):
            fault = f"{host} computes {part} differently from this pack ({difference:.0e} apart in {name})"
            raise BadInput(f"{fault}; use the command line, or another ComfyUI")
        differences[name] = difference
    _CHECKED[patcher.model] = (key, differences)
    return differences


def _layer(patcher: ModelPatcher, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Run a MODEL cut to one layer by its class's forward and by ours."""
    tree = _with_layers(patcher.model.diffusion_model, blocks=1)
    x, text, ops = small_inputs(patcher, dtype)
    with _casting(tree):
        ours = denoise_pass(tree, x.clone(), TIMESTEP, pass_inputs(tree, x, project_text(tree, text, ops), ops))
        times = torch.full((1,), TIMESTEP, device=x.device)
        # The class's forward: one that a pack put on the object has no effect on block-by-block sampling.
        theirs = type(tree).forward(tree, x, times, text, transformer_options=ops.options)
    return theirs, ours


def _control_block(patcher: ModelPatcher, control: ModelPatcher, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Run the embedding and first block of a control module over a MODEL's tokens; return both hints."""
    tree = _with_layers(patcher.model.diffusion_model, blocks=0)
    module = _with_layers(control.model.diffusion_model, vace_blocks=1)
    block = module.vace_blocks[0]
    x, text, ops = small_inputs(patcher, dtype)
    tokens, e6 = (_random(seed, 1, count, tree.dim).to(x) for seed, count in ((3, FRAMES * SIDE**2), (4, 6)))
    context = _random(5, 1, CONTROL_CHANNELS, *x.shape[2:]).to(x)
    with _casting(module), _casting(tree.text_embedding):
        inputs = pass_inputs(tree, x, (), ops)
        branch = ControlBranch(module, 1, project_text(tree, text, ops, [block]), [Control(context)], ops)
        h = tokens.unflatten(1, (FRAMES, -1))
        ours = branch.begin(h, e6[:, None].expand(-1, FRAMES, -1, -1), inputs)(0, torch.zeros_like(h)).flatten(1, 2)
        embedded = module.vace_patch_embedding(context.float()).to(dtype).flatten(2).transpose(1, 2)
        words = tree.text_embedding(text)
        theirs, _ = block(
            embedded, x=tokens, e=e6, freqs=inputs.rope, context=words, transformer_options=ops.options
        )
    return theirs, ours


def _decoded(vae: VAE) -> tuple[Tensor, Tensor]:
    """Decode two latent frames at once by ComfyUI, and one by one by ours; return pixels in [-1, 1]."""
    z = _random(6, 1, ComfyCodec.latent_channels, FRAMES, SIDE, SIDE)
    codec = ComfyCodec(vae)
    first, state = codec.decode(z[:, :, :1])
    second, _ = codec.decode(z[:, :, 1:], state)
    ours = torch.cat((first, second), dim=1)
    whole = vae.first_stage_model.decode(Wan21().process_out(z).to(vae.device, vae.vae_dtype))
    theirs = vae.process_output(whole.to(torch.float32, copy=True)).movedim(1, 2)
    return 2 * theirs - 1, 2 * ours - 1


def small_inputs(patcher: ModelPatcher, dtype: torch.dtype) -> tuple[Tensor, Tensor, ComfyOps]:
    """Return random latents `b c t h w`, a random prompt `b m c`, and our operations with the MODEL's attention."""
    tree = patcher.model.diffusion_model
    sizes = (patch * count for patch, count in zip(tree.patch_size, (FRAMES, SIDE, SIDE), strict=True))
    options = patcher.model_options.get("transformer_options", {})
    attention = {name: value for name, value in options.items() if name == OVERRIDE}
    x = _random(1, 1, tree.in_dim, *sizes).to(patcher.load_device, dtype)
    text = _random(2, 1, CHECKED_WORDS, tree.text_dim).to(patcher.load_device, dtype)
    return x, text, ComfyOps(dtype, attention)


def _with_layers(tree: nn.Module, **counts: int) -> Any:
    """Return a shallow copy of a tree with its module lists cut to `counts`."""
    shortened = copy.copy(tree)
    lists = {name: nn.ModuleList([*getattr(tree, name)][:count]) for name, count in counts.items()}
    shortened._modules = {**tree._modules, **lists}
    return shortened


def pass_inputs(tree: Any, x: Tensor, text: TextKV, ops: ComfyOps) -> Pass:
    """Return the inputs of a pass over a clip's first block."""
    grid = token_grid(tree, x.shape[2:])
    cache = KVCache(tree, FRAMES, grid[1] * grid[2], ops.dtype, x.device)
    slots = CacheSlots(0, tuple(range(FRAMES)), FRAMES)
    return Pass(text, cache, slots, ops.rope(tree, 0, grid, x.device), ops)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def _casting(tree: nn.Module) -> Iterator[None]:
    """Let all layers cast their weights to the input's dtype, even if ComfyUI switched that off at load."""
    switched = [module for module in tree.modules() if getattr(module, CASTS, True) is False]
    stated = [module for module in switched if CASTS in vars(module)]
    for module in switched:
        setattr(module, CASTS, True)
    try:
        yield
    finally:
        for module in switched:
            delattr(module, CASTS)
        for module in stated:
            setattr(module, CASTS, False)
