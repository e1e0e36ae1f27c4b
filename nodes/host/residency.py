"""ComfyUI's memory: how much there is, one request for all models of a run, and word to each that it is at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import comfy.model_management as management
import torch
from comfy.model_patcher import ModelPatcher


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


def load_together(patchers: Sequence[ModelPatcher], room: Mapping[torch.device, int]) -> None:
    """Load all models of a run, one request for each device, the model that works most last.

    Models of separate requests are moved out for one another. The last one gets its place first; the others share
    what is left, and their rest is copied over on use. `room`: bytes of each device, kept free of weights.
    """
    for device in dict.fromkeys(patcher.load_device for patcher in patchers):
        beside = room.get(device, 0)
        management.load_models_gpu(
            [patcher for patcher in patchers if patcher.load_device == device],
            memory_required=beside,
            minimum_memory_required=beside,
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's memory ran out."""
    return isinstance(error, Exception) and bool(management.is_oom(error))
