"""The memory of a run: plan it before loading, request it from ComfyUI at once, and release it.

ComfyUI counts weights, but not our keys and values, the VAE's state or activations; without a request for these it
would fill the device with weights. The sizes come from `sdvg_core.memory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher

from ...sdvg_core.causal_wan.generator import REMEMBERED_PROMPTS
from ...sdvg_core.devices.device import dtype_name
from ...sdvg_core.errors import BadInput
from ...sdvg_core.loading.load import memory_request
from ...sdvg_core.memory.plan import PART_NAMES, PHASE_NAMES, gigabytes, memory_notes, savings
from ...sdvg_core.memory.sizes import (
    FRAGMENTS,
    GB,
    IN_COMFYUI,
    PlanRequest,
    Sizes,
    Stored,
    owner,
    phase_parts,
    workers,
)
from .job import Job
from .model import form_of, patcher_dtype
from .sockets import HostScorer

SPARE = FRAGMENTS - 4 * GB // 10
"""Bytes to leave to the allocator. ComfyUI leaves 0.4 GB more, or the value of `--reserve-vram`."""

DYNAMIC = (
    "Dynamic VRAM did not keep all weights on the card. On 24 GB, ComfyUI started with --disable-dynamic-vram was 1.6 "
    "times as fast (random weights, one H100)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes needed on one device in addition to weights, in the phase that needs most.

    `step`: the phase. `parts`: bytes by part; names as in `sdvg_core.memory`.
    """

    step: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self.parts.values())


def plan_request(job: Job) -> PlanRequest:
    """Return the job as a request to the core's planner."""
    # The core knows one dtype for both models; if they differ, take the wider.
    dtype = max(map(patcher_dtype, job.models.values()), key=lambda d: d.itemsize)
    request = replace(
        memory_request(job.headers, *job.size, job.request.blocks),
        dtype=dtype_name(dtype),
        vae_dtype=dtype_name(job.vae.vae_dtype),
        execution=replace(IN_COMFYUI, kv_dtype=job.execution.kv_dtype),
        prompts=max(len(job.prompts), REMEMBERED_PROMPTS if job.live else 0),  # more may come
        drafter_stored=stored_form(job.models["drafter"]) if "drafter" in job.models else "plain",
    )
    scorer = job.router.scorer
    if not isinstance(scorer, HostScorer):
        return request
    return replace(request, reward=scorer.config, reward_dtype=dtype_name(scorer.dtype))


def needs_of(
    request: PlanRequest, devices: Mapping[str, torch.device], *, stored: Stored
) -> dict[torch.device, Needs]:
    """Return the bytes that each device needs in addition to weights.

    `devices`: the device of each model, by role; a phase of a role that is missing counts nothing. `stored`: how
    the target's weights are.
    """
    sizes = Sizes.of(request, stored=stored)
    steps = phase_parts(request, sizes)
    needs_by_device: dict[torch.device, Needs] = {}
    for step, worker in workers(request).items():
        if worker not in devices:
            continue
        for device in dict.fromkeys(devices.values()):
            parts = {
                part: size
                for part, size in steps[step].items()
                if part not in sizes.weights and devices.get(owner(part, worker)) == device
            }
            needs = Needs(step=step, parts=parts)
            most = needs_by_device.get(device, needs)
            needs_by_device[device] = max(most, needs, key=lambda n: n.total)
    return needs_by_device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """The memory that a run requests from ComfyUI.

    `request`: for the core's planner. `models`: by name, the target first. `needs`: further bytes on each device.
    """

    request: PlanRequest
    models: dict[str, ModelPatcher]
    needs: dict[torch.device, Needs]

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices that the models run on."""
        return tuple(patcher.load_device for patcher in self.models.values())

    @property
    def lazy(self) -> tuple[str, ...]:
        """Names of the models under dynamic VRAM, which loads each weight when it is first used."""
        return tuple(name for name, patcher in self.models.items() if patcher.is_dynamic())

    @property
    def incomplete(self) -> bool:
        """True if dynamic VRAM holds less than a tenth of a model: it has yet to load it (small weights always stay)."""
        return any(10 * self.models[name].loaded_size() < weights_of(self.models[name]) for name in self.lazy)

    @property
    def plan(self) -> tuple[str, ...]:
        """What stays on each device, what will be copied, and whether it fits; one sentence each."""
        return tuple(
            line
            for device, needs in self.needs.items()
            for line in describe_plan(_on(device, self.models), needs, usable_on(device), device, self.lazy)
        )

    def load(self) -> None:
        """Load all models at once; again after another model, such as a text encoder, took their place."""
        if self.lazy:
            mm.soft_empty_cache()  # dynamic VRAM cannot use what torch keeps from an earlier run
        load_together(tuple(self.models.values()), {device: needs.total for device, needs in self.needs.items()})

    def prioritise(self) -> None:
        """Rank the models under dynamic VRAM as at load: the target gives way first, then the drafter.

        When the card is short, ComfyUI's allocator takes a model's rank away, and ComfyUI ranks only at load.
        """
        for name in self.lazy:
            if (weights := self.models[name]._vbar_get()) is not None:
                weights.prioritize()

    def measured(self) -> tuple[str, ...]:
        """Return notes on a finished run: how much of each model the GPU held, and the measured and planned peak."""
        device = self.devices[0]
        if device.type != "cuda":
            return ()
        sizes = _on(device, self.models)
        # Dynamic VRAM counts whole pages, so cap at the size; the allocator's peak does not include its weights.
        loaded = {name: (min(int(self.models[name].loaded_size()), size), size) for name, size in sizes.items()}
        lazy = [name for name in loaded if name in self.lazy]
        planned = sum(loaded[name][0] for name in loaded if name not in lazy) + self.needs[device].total
        moved = any(10 * loaded[name][0] < 9 * loaded[name][1] for name in lazy)
        peak = int(torch.cuda.max_memory_allocated(device))
        return (*memory_notes(loaded, planned, peak, lazy=lazy), *([DYNAMIC] if moved else []))


def memory_of(job: Job) -> Memory:
    """Return the memory of a run, without loading anything."""
    controls = {f"{role} control": control for role, control in job.controls.items()}
    patchers = {**job.models_used, **controls, "vae": job.vae.patcher}
    if isinstance(job.router.scorer, HostScorer):
        patchers["scorer"] = job.router.scorer.patcher
    request = plan_request(job)
    # One MODEL in both roles is loaded once.
    duplicates = {"drafter"} if job.headers.one_model else set()
    duplicates |= (
        {"drafter control"} if len({id(control) for control in controls.values()}) < len(controls) else set()
    )
    return Memory(
        request=request,
        models={role: patcher for role, patcher in patchers.items() if role not in duplicates},
        needs=needs_of(
            request,
            {role: patcher.load_device for role, patcher in patchers.items()},
            stored=stored_form(job.main),
        ),
    )


def stored_form(patcher: ModelPatcher) -> Stored:
    """Return how a MODEL's linear weights are stored."""
    forms = {form_of(weight) for weight in patcher.model.parameters()} - {None}
    if forms:
        return "int8" if "int8" in forms else "w4a8"
    return "fp8" if patcher.model_dtype().itemsize == 1 else "plain"


@contextmanager
def resident(memory: Memory) -> Iterator[None]:
    """Load all models at once, and keep them loaded inside the `with` block.

    Call `pre_run()` of every patcher first and `cleanup()` at the end, even after an error: other packs attach
    callbacks to both.
    """
    if memory.devices[0].type == "cuda":
        torch.cuda.reset_peak_memory_stats(memory.devices[0])
    memory.load()
    with ExitStack() as after:
        for patcher in memory.models.values():
            after.callback(patcher.cleanup)
            patcher.pre_run()
        yield


def load_together(patchers: Sequence[ModelPatcher], room: Mapping[torch.device, int]) -> None:
    """Load all models of a run, with one request per device. `room`: bytes to keep free of weights, by device.

    With separate requests, ComfyUI would offload one model to load the next. In one request it places the last model
    first and streams what does not fit of the others, so the target comes first, and the scorer, which ComfyUI can
    only load whole, last. Dynamic VRAM favours the first model instead: there the target comes last, as most blocks
    need the drafter.
    """
    for device in dict.fromkeys(patcher.load_device for patcher in patchers):
        others = room.get(device, 0) + (0 if device.type == "cpu" else SPARE)
        models = [patcher for patcher in patchers if patcher.load_device == device]
        lazy = [patcher for patcher in models if patcher.is_dynamic()]
        mm.load_models_gpu(
            [*(patcher for patcher in models if patcher not in lazy), *reversed(lazy)],
            memory_required=others,
            minimum_memory_required=others,
        )


def usable_on(device: torch.device) -> int:
    """Return the bytes of a device that a run can use: free ones, and those of models that ComfyUI can offload."""
    free = int(mm.get_free_memory(device))
    if device.type == "cpu":
        return free
    # None stands for a MODEL that was dropped while its weights are in use.
    loaded = [patcher for patcher in mm.loaded_models() if patcher is not None]
    movable: int = sum(patcher.loaded_size() for patcher in loaded if patcher.load_device == device)
    return max(0, free + movable - int(mm.extra_reserved_memory()) - SPARE)


def check_room(memory: Memory) -> None:
    """Raise `BadInput` if a run does not fit on a GPU even with all weights streamed. Loads nothing."""
    for device, needs in memory.needs.items():
        # ComfyUI can only load the scorer whole.
        least = needs.total + _on(device, memory.models).get("scorer", 0)
        if device.type == "cuda" and least > usable_on(device):
            raise _refusal(memory, device, f"too little memory on {device}")


def refusal_of(memory: Memory) -> BadInput:
    """Return the error for a run that ran out of memory, with numbers and remedies."""
    mm.soft_empty_cache()
    device = max(memory.needs, key=lambda d: memory.needs[d].total)
    return _refusal(memory, device, f"out of memory on {device}")


def _refusal(memory: Memory, device: torch.device, fault: str) -> BadInput:
    needs = memory.needs[device]
    usable = usable_on(device)
    weights = sum(_on(device, memory.models).values())
    total = int(mm.get_total_memory(device))
    return BadInput(
        f"{fault}: the run needs {gigabytes(needs.total)} besides up to {gigabytes(weights)} of "
        f"weights, and {gigabytes(usable)} of {gigabytes(total)} can be used ({_parts(needs)}); "
        + " or ".join((*savings(memory.request, usable), "lower width and height"))
    )


def _on(device: torch.device, models: Mapping[str, ModelPatcher]) -> dict[str, int]:
    """Return the bytes of weights of each model that runs on a device."""
    return {name: weights_of(patcher) for name, patcher in models.items() if patcher.load_device == device}


def weights_of(patcher: ModelPatcher) -> int:
    """Return the bytes of a MODEL's weights on its device; under dynamic VRAM, modules hold the file's dtype."""
    modules = patcher.model.modules() if patcher.is_dynamic() else ()
    widened: int = sum(
        parameter.numel() * (dtype.itemsize - parameter.dtype.itemsize)
        for module in modules
        for name, parameter in module.named_parameters(recurse=False)
        if (dtype := getattr(module, f"{name}_comfy_model_dtype", None))
    )
    return int(patcher.model_size()) + widened


def describe_plan(
    models: Mapping[str, int], needs: Needs, usable: int, device: torch.device, lazy: Collection[str] = ()
) -> list[str]:
    """Return sentences on what stays on `device`, what will be copied there, and whether it fits.

    `models`: bytes by name, in the order of `load_together`. `lazy`: names under dynamic VRAM. `usable`: bytes.
    """
    weights = sum(models.values())
    if device.type == "cpu":
        return [
            f"cpu: the run takes {gigabytes(weights)} of weights and {gigabytes(needs.total)} besides, and "
            f"{gigabytes(usable)} of the computer's memory are free. {_parts(needs)}"
        ]
    needed = f"besides weights, the run needs {gigabytes(needs.total)} of {gigabytes(usable)}"
    lines = [f"{device}: {needed}. {_parts(needs)}"]
    left = usable - needs.total
    if (missing := models.get("scorer", 0) - left) > 0:
        return [*lines, f"{device}: it does not fit: with the scorer alone, {gigabytes(missing)} are missing"]
    for name, size in reversed([*models.items()]):
        if name in lazy:
            lines.append(
                f"{device}: {PART_NAMES[name]}, {gigabytes(size)} come as they are used, and stay if they fit"
            )
            continue
        stays = min(size, left)
        left -= stays
        copied = f", {gigabytes(size - stays)} are copied over in every pass" if stays < size else ""
        lines.append(f"{device}: {PART_NAMES[name]}, {gigabytes(stays)} stay there{copied}")
    fits = weights + needs.total <= usable
    return [
        *lines,
        f"{device}: everything fits" if fits else f"{device}: it runs, but slower, as not all weights fit",
    ]


def _parts(needs: Needs) -> str:
    parts = sorted(needs.parts.items(), key=lambda item: -item[1])
    inside = ", ".join(f"{PART_NAMES.get(name, name)} {gigabytes(size)}" for name, size in parts)
    return f"Peak while {PHASE_NAMES[needs.step]}: {inside}"
