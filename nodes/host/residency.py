"""ComfyUI's memory: how much there is, one request for all models of a run, and marking them as in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import comfy.model_management as management
import comfy.model_patcher
import torch
from comfy.model_patcher import ModelPatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A device's memory in bytes: the total, and what a run can use once ComfyUI has made room."""

    total: int
    usable: int


def patcher_of(model: torch.nn.Module, *, load_device: torch.device, offload_device: torch.device) -> ModelPatcher:
    """Return what lets ComfyUI manage a module of ours."""
    # Older versions have no CoreModelPatcher.
    kind = getattr(comfy.model_patcher, "CoreModelPatcher", ModelPatcher)
    return kind(model, load_device=load_device, offload_device=offload_device)


def load_together(patchers: Sequence[ModelPatcher], room: Mapping[torch.device, int]) -> None:
    """Load all models of a run, with one request per device.

    In separate requests, ComfyUI would move one model out to load the next. In one request, the last model gets its
    place first; what the first ones have no room for is copied over on use. So the target comes first, and last the
    scorer, of which ComfyUI can copy no part.
    `room`: the bytes to keep free of weights, per device.
    """
    for device in dict.fromkeys(patcher.load_device for patcher in patchers):
        others = room.get(device, 0)
        management.load_models_gpu(
            [patcher for patcher in patchers if patcher.load_device == device],
            memory_required=others,
            minimum_memory_required=others,
        )


@contextmanager
def in_use(patchers: Sequence[ModelPatcher]) -> Iterator[None]:
    """Notify every patcher that its model is about to run, and that it has finished, however it ends.

    Both run callbacks that other packs attach to a MODEL. If one raises, the other patchers are still notified.
    """
    with ExitStack() as after:
        for patcher in patchers:
            after.callback(patcher.cleanup)
            patcher.pre_run()
        yield


def read_room(device: torch.device) -> Room:
    """Return a device's memory. What ComfyUI holds on a GPU now counts as usable, since it can be moved out."""
    total, free = int(management.get_total_memory(device)), int(management.get_free_memory(device))
    if device.type == "cpu":
        return Room(total=total, usable=free)
    held = sum(p.loaded_size() for p in management.loaded_models() if p.load_device == device)
    return Room(total=total, usable=max(0, free + held - int(management.extra_reserved_memory())))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's memory ran out."""
    return isinstance(error, Exception) and bool(management.is_oom(error))
