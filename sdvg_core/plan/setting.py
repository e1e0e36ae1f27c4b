"""Ways to lay out a run on one device, the bytes each step then needs, and the cost of copying.

The drafter, the scorer and the VAE's state may leave the device while the target generates a block, and the target
while it does not. A target that still does not fit is streamed: the part without room is copied over in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from .request import PlanRequest
from .sizes import layer_bytes, state_bytes, weight_bytes, working_bytes
from .work import context_passes

SIDE = ("vae", "judge", "scorer")
MOVABLE = ("drafter", "scorer", "vae state")
# Layers of a streamed target on the device: the one at work, and the next one on its way.
LAYERS_IN_FLIGHT = 2


def workers(request: PlanRequest) -> Mapping[str, str]:
    """Return the model that does each step, which decides where the step's temporary buffers lie."""
    usual = {"draft": "drafter", "decode": "vae", "score": "scorer", "target": "target"}
    return {**usual, "decode": "judge", "deliver": "vae"} if request.judge else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to lay out a run.

    `fp8`: the target's linear weights are fp8. `away`: the parts of `MOVABLE` that leave while the target works.
    `target_away`: the target leaves while it is idle. `streamed`: the target is never on the device as a whole.
    """

    fp8: bool = False
    away: tuple[str, ...] = ()
    target_away: bool = False
    streamed: bool = False

    @property
    def stays(self) -> bool:
        """Whether everything is on the device all the time."""
        return not (self.away or self.target_away or self.streamed)


def settings() -> Iterator[Setting]:
    """Yield every setting, the plain ones first."""
    aways = [away for count in range(len(MOVABLE) + 1) for away in combinations(MOVABLE, count)]
    for streamed in (False, True):
        for fp8 in (False, True):
            for target_away in (False, True):
                for away in aways:
                    yield Setting(fp8=fp8, away=away, target_away=target_away, streamed=streamed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """Bytes of a run's parts with a bfloat16 or an fp8 target, computed once."""

    weights: Mapping[str, int]
    states: Mapping[str, int]
    working: Mapping[str, int]
    layer: int
    passes: int

    @classmethod
    def of(cls, request: PlanRequest, *, fp8: bool) -> Sizes:
        """Count them."""
        return cls(
            weights=weight_bytes(request, fp8=fp8),
            states=state_bytes(request),
            working=working_bytes(request, fp8=fp8),
            layer=layer_bytes(request.target, request.itemsize("dtype"), fp8=fp8),
            passes=request.steps_of("target") + context_passes(request.target_preset),
        )


Parts = dict[str, dict[str, int]]
"""For every step, the parts on the device, in bytes."""


def step_parts(request: PlanRequest, sizes: Sizes, setting: Setting) -> Parts:
    """Return the parts on any device in every step; of a streamed target only the layers in flight."""
    return {step: _parts_of(step, request, sizes, setting) for step in workers(request)}


def split_parts(parts: Parts, request: PlanRequest) -> tuple[Parts, Parts]:
    """Split the parts into those on the device of drafter and target, and those with VAE, judge and scorer."""
    at = workers(request)
    beside = {step: {n: size for n, size in of.items() if owner(n, at[step]) in SIDE} for step, of in parts.items()}
    with_models = {step: {n: size for n, size in of.items() if n not in beside[step]} for step, of in parts.items()}
    return with_models, beside


def owner(part: str, worker: str) -> str:
    """Return the model a part belongs to: buffers to the step's `worker`, other parts to the model they name."""
    return worker if part == "working" else part.split()[0]


def _parts_of(step: str, request: PlanRequest, sizes: Sizes, setting: Setting) -> dict[str, int]:
    weights, states = sizes.weights, sizes.states
    worker = workers(request)[step]
    parts = {**{name: weights[name] for name in request.decoders}, "working": sizes.working[step]}
    for name in ("drafter", "scorer"):
        if not (step == "target" and name in setting.away):
            parts[name] = weights[name]
    if step == "target" or not setting.target_away:
        parts["target"] = LAYERS_IN_FLIGHT * sizes.layer if setting.streamed else weights["target"]
    if not (step == "target" and "vae state" in setting.away):
        # The committed state, and while a draft is decoded or scored, the next one.
        decoding = step == "deliver" if request.judge else step in ("decode", "score")
        parts["vae state"] = states["vae state"] * (2 if decoding else 1)
    if request.judge:
        parts["judge state"] = states["judge state"] * (2 if step in ("decode", "score") else 1)
    for name, (_, preset) in request.models.items():
        parts[f"{name} text keys and values"] = states[f"{name} text keys and values"]
        if name == worker or preset.policy == "incremental":
            parts[f"{name} keys and values"] = states[f"{name} keys and values"]
    return parts


def most(parts: Mapping[str, Mapping[str, int]]) -> int:
    """Return the bytes of the step that needs most; 0 if there are no steps."""
    return max((sum(step.values()) for step in parts.values()), default=0)


def with_target(parts: Mapping[str, Mapping[str, int]], sizes: Sizes, setting: Setting, room: float) -> Parts:
    """Return the steps with as much of a streamed target on the device as fits."""
    steps = {name: dict(step) for name, step in parts.items()}
    if setting.streamed:
        there = [step for step in steps.values() if "target" in step]
        spare = int(room) - max(sum(step.values()) for step in there)
        for step in there:
            step["target"] = min(step["target"] + max(spare, 0), sizes.weights["target"])
    return steps


def copied_bytes(parts: Mapping[str, Mapping[str, int]], sizes: Sizes, setting: Setting) -> int:
    """Return the bytes copied to or from the device for every block that the target generates."""
    target = parts["target"]["target"]
    streamed = sizes.passes * (sizes.weights["target"] - target)
    back = sum(sizes.weights[name] for name in setting.away if name in sizes.weights)
    # Weights have a copy in main memory and are dropped; the state changes, so it goes out and comes back.
    state = 2 * sizes.states["vae state"] if "vae state" in setting.away else 0
    return streamed + back + state + (target if setting.target_away else 0)
