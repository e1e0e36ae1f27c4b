"""Memory layouts: what lies on the device in each step of a block, and what is copied there in every pass.

Only layouts that are carried out have a name here: everything stays, or layers of the transformers lie in main
memory and are copied over when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .request import PlanRequest
from .sizes import GB, layer_bytes, state_bytes, weight_bytes, working_bytes

SIDE = ("vae", "judge", "scorer")
LAYERS_IN_FLIGHT = 2
"""Layers of a streamed model on the device besides those that stay: the one at work, and the next on its way."""


def workers(request: PlanRequest) -> Mapping[str, str]:
    """Return the model that does each step, which decides where the step's temporary buffers lie."""
    steps = {"draft": "drafter", "decode": "vae", "score": "scorer", "target": "target"}
    if request.judging:
        steps |= {"decode": "judge", "deliver": "vae"}
    return {step: worker for step, worker in steps.items() if worker in request.parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """One way to lay out a run.

    `fp8`: the target's linear weights are fp8. `streamed`: the transformers of which as many layers as have room
    stay on the device, and the others are copied over in every pass; of several, the last keeps most.
    """

    fp8: bool = False
    streamed: tuple[str, ...] = ()


def layouts(request: PlanRequest) -> Iterator[MemoryLayout]:
    """Yield every layout of a request, the plain ones first."""
    streamable = [role for role in ("target", "drafter") if role in request.parts]
    for count in range(len(streamable) + 1):
        for fp8 in (False, True):
            if request.fp8 in (fp8, None):
                yield MemoryLayout(fp8=fp8, streamed=tuple(streamable[:count]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Bytes of a run's parts with a plain or an fp8 target, computed once. `layers`: of one, by transformer."""

    weights: Mapping[str, int]
    states: Mapping[str, int]
    working: Mapping[str, int]
    layers: Mapping[str, int]

    @classmethod
    def of(cls, request: PlanRequest, *, fp8: bool) -> Sizes:
        """Count them."""
        return cls(
            weights=weight_bytes(request, fp8=fp8),
            states=state_bytes(request),
            working=working_bytes(request, fp8=fp8),
            layers={
                role: layer_bytes(config, request.itemsize("dtype"), fp8=fp8 and role == "target")
                for role, (config, _) in request.models.items()
            },
        )


Parts = dict[str, dict[str, int]]
"""For every step, the parts on the device, in bytes."""


def step_parts(request: PlanRequest, sizes: Sizes) -> Parts:
    """Return the parts on any device in every step, as if everything stayed."""
    return {step: _parts_of(step, worker, request, sizes) for step, worker in workers(request).items()}


def _parts_of(step: str, worker: str, request: PlanRequest, sizes: Sizes) -> dict[str, int]:
    states = sizes.states
    parts = {**sizes.weights, "working": sizes.working[step]}
    # The committed state, and while a draft is decoded or scored, the next one.
    decoding = step in ("decode", "score")
    if request.judging:
        # A window's first frame is a pixel frame, for which blocks are decoded while the cache already exists.
        waits = worker in request.models and request.models[worker][1].policy == "recompute"
        decoding = waits or step == "deliver"
        parts["working"] = max(sizes.working[step], sizes.working["deliver"]) if waits else sizes.working[step]
    parts["vae state"] = states["vae state"] * (2 if decoding else 1)
    if request.judging:
        parts["judge state"] = states["judge state"] * (2 if step in ("decode", "score") else 1)
    for name, (_, preset) in request.models.items():
        if name in request.parts:
            parts[f"{name} text keys and values"] = states[f"{name} text keys and values"]
            if name == worker or preset.policy == "incremental":
                parts[f"{name} keys and values"] = states[f"{name} keys and values"]
    return parts


def split_parts(parts: Parts, request: PlanRequest) -> tuple[Parts, Parts]:
    """Split the parts into those on the device of drafter and target, and those with VAE, judge and scorer."""
    at = workers(request)
    beside = {step: {n: size for n, size in of.items() if owner(n, at[step]) in SIDE} for step, of in parts.items()}
    with_models = {step: {n: size for n, size in of.items() if n not in beside[step]} for step, of in parts.items()}
    return with_models, beside


def owner(part: str, worker: str) -> str:
    """Return the model a part belongs to: buffers to the step's `worker`, other parts to the model they name."""
    return worker if part == "working" else part.split()[0]


def most(parts: Mapping[str, Mapping[str, int]]) -> int:
    """Return the bytes of the step that needs most; 0 if there are no steps."""
    return max((sum(step.values()) for step in parts.values()), default=0)


def streamed_layers(
    parts: Parts, request: PlanRequest, sizes: Sizes, layout: MemoryLayout, vram: float
) -> dict[str, int]:
    """Return how many layers of each streamed transformer are copied over in every pass, so that `vram` GB suffice.

    As few as possible, and all of a transformer before any of the next; if all do not suffice, all.
    """
    excess, found = most(parts) - int(vram * GB), {}
    for role in layout.streamed:
        layers, size = request.models[role][0].num_layers, sizes.layers[role]
        # Two layers' room is spent on those in flight.
        found[role] = min(max(-(-excess // size), 1) + LAYERS_IN_FLIGHT, layers)
        excess -= (found[role] - LAYERS_IN_FLIGHT) * size
    return found


def streaming(parts: Parts, sizes: Sizes, layers: Mapping[str, int]) -> Parts:
    """Return the steps with so many layers of each transformer off the device, but for those in flight."""
    off = {role: max(count - LAYERS_IN_FLIGHT, 0) * sizes.layers[role] for role, count in layers.items()}
    return {step: {name: size - off.get(name, 0) for name, size in found.items()} for step, found in parts.items()}
