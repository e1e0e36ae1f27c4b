"""Memory: what a run needs beside the weights, one request to ComfyUI for all of it, and what to say about it.

ComfyUI counts weights. Keys and values, the VAE's feature cache and activations are counted here, so that it does
not fill the device with weights first. All bytes are estimates from shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import comfy.model_management as management
import torch
from comfy.model_patcher import ModelPatcher
from comfy.sd import VAE

from ...sdvg_core.causal_wan.forward import token_grid
from ...sdvg_core.causal_wan.generator import REMEMBERED_PROMPTS
from ...sdvg_core.errors import BadInput

# The Wan 2.1 VAE's decode state at any size: 944 286 720 values at 480 x 832, counted on its layers.
VAE_STATE_VALUES_PER_PIXEL = 2364.5
# The committed one, and the one that a block is being decoded into.
VAE_STATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes that a run needs on one device beside weights. `working`: the most that any one step needs for a while."""

    keys_values: int = 0
    text: int = 0
    vae_state: int = 0
    working: int = 0

    def __add__(self, other: Needs) -> Needs:
        held = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "working"}
        return Needs(**held, working=max(self.working, other.working))

    @property
    def total(self) -> int:
        """All of them."""
        return self.keys_values + self.text + self.vae_state + self.working


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model of the run: what the plan calls it, its bytes, and the device it works on."""

    name: str
    bytes: int
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A device's memory in bytes: all of it, and what a run can have once ComfyUI has made room."""

    total: int
    usable: int


def weights_of(name: str, patcher: ModelPatcher) -> Weights:
    """Return what the plan needs to know of a patcher's model."""
    return Weights(name=name, bytes=int(patcher.model_size()), device=patcher.load_device)


def model_needs(
    tree: Any,
    *,
    cache_frames: int,
    block_frames: int,
    size: tuple[int, int],
    dtype: torch.dtype,
    text_rows: int = 512,
) -> Needs:
    """Return what a causal model needs. `cache_frames`: latent frames in its K/V cache; `size`: latents' (h, w)."""
    _, rows, columns = token_grid(tree, (1, *size))
    tokens, layers = rows * columns, len(tree.blocks)
    width, inner = tree.dim, tree.ffn_dim
    # The most that is alive at once, in widths of the model: 11 in attention, and in the feed-forward 4 beside its middle
    # and the activation of that. Counted on the published sizes and rounded up; a test keeps it true.
    values = block_frames * tokens * max(12 * width, 5 * width + 2 * inner)
    return Needs(
        keys_values=2 * layers * cache_frames * tokens * width * dtype.itemsize,
        text=2 * layers * text_rows * width * dtype.itemsize * REMEMBERED_PROMPTS,
        working=values * dtype.itemsize,
    )


def vae_needs(vae: VAE, *, block_frames: int, size: tuple[int, int]) -> Needs:
    """Return what decoding block by block needs. `size`: latents' (h, w). Its layers' part is ComfyUI's estimate."""
    pixels = math.prod(size) * 8 * 8
    layers = vae.memory_used_decode((1, vae.latent_channels, 1, *size), vae.vae_dtype)
    shown = 2 * 4 * 3 * 4 * block_frames * pixels  # float32 RGB, four pixel frames a latent frame, twice
    return Needs(
        vae_state=int(VAE_STATES * VAE_STATE_VALUES_PER_PIXEL * pixels) * vae.vae_dtype.itemsize,
        working=int(layers) + shown,
    )


def load_together(patchers: Sequence[ModelPatcher], needs: Mapping[torch.device, Needs]) -> None:
    """Load all models of a run, one request for each device, the model that works most last.

    Models of separate requests are moved out for one another. The last one gets its place first; the others share
    what is left, and their rest is copied over on use. `needs`: of each device, kept free of weights.
    """
    for device in dict.fromkeys(patcher.load_device for patcher in patchers):
        room = needs[device].total if device in needs else 0
        management.load_models_gpu(
            [patcher for patcher in patchers if patcher.load_device == device],
            memory_required=room,
            minimum_memory_required=room,
        )


@contextmanager
def in_use(patchers: Sequence[ModelPatcher]) -> Iterator[None]:
    """Tell every patcher that its model is about to run, and, whatever happens, that it has.

    Both call what other packs hang on a MODEL; if that raises, the other patchers are told all the same.
    """
    with ExitStack() as told:
        for patcher in patchers:
            told.callback(patcher.cleanup)
            patcher.pre_run()
        yield


def read_room(device: torch.device) -> Room:
    """Return a device's memory; what ComfyUI holds on a GPU now counts as usable, for it can be moved out."""
    total, free = int(management.get_total_memory(device)), int(management.get_free_memory(device))
    if device.type == "cpu":
        return Room(total=total, usable=free)
    held = sum(p.loaded_size() for p in management.loaded_models() if p.load_device == device)
    return Room(total=total, usable=max(0, free + held - int(management.extra_reserved_memory())))


def describe_plan(models: Sequence[Weights], needs: Needs, room: Room, device: torch.device) -> list[str]:
    """Say in sentences what of a run will lie on `device`, what will be copied there, and whether it fits.

    `models`: those of the run, in the order of `load_together`; the ones of other devices are left out.
    """
    here = [model for model in models if model.device == device]
    weights = sum(model.bytes for model in here)
    if device.type == "cpu":
        return [
            f"cpu: {_gb(weights)} of weights and {_gb(needs.total)} for {_parts(needs)} in main memory, of which "
            f"{_gb(room.usable)} are free; nothing is moved"
        ]
    lines = [f"{device}: {_gb(needs.total)} of {_gb(room.usable)} for {_parts(needs)}"]
    left = room.usable - needs.total
    if left < 0:
        return [*lines, f"{device}: it does not fit, {_gb(-left)} are missing before any weights"]
    for model in reversed(here):
        stays = min(model.bytes, left)
        left -= stays
        fate = f"stays there, {_gb(stays)}"
        if stays < model.bytes:
            fate = f"{_gb(stays)} stay there, {_gb(model.bytes - stays)} are copied over in every pass"
        lines.append(f"{device}: {model.name}, {fate}")
    fits = weights + needs.total <= room.usable
    return [*lines, f"{device}: everything fits" if fits else f"{device}: it runs, slowed down by the copying"]


def out_of_memory(models: Sequence[Weights], needs: Needs, room: Room, device: torch.device) -> BadInput:
    """Return the error for a run that ran out of memory, with the numbers and three settings that would help."""
    weights = sum(model.bytes for model in models if model.device == device)
    return BadInput(
        f"expected room on {device} for {_parts(needs)}, together {_gb(needs.total)}, beside up to {_gb(weights)} of "
        f"weights, but of its {_gb(room.total)} only {_gb(room.usable)} can be had; lower width and height, or choose "
        "weight dtype fp8_e4m3fn in the loaders, or lower window and context frames of the custom preset"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's memory ran out."""
    return isinstance(error, Exception) and bool(management.is_oom(error))


def _parts(needs: Needs) -> str:
    return (
        f"keys and values ({_gb(needs.keys_values + needs.text)}), the VAE's state ({_gb(needs.vae_state)}) and "
        f"working memory ({_gb(needs.working)})"
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
