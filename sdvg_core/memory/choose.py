"""Lay out a run in the available memory so that a pass copies least, or count what the smallest layout lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..errors import BadInput
from .request import PlanRequest
from .sizes import GB, Sizes, card_bytes, most, phase_parts, split_parts, streamed_layers, streaming

# Steps along each side in the search for a smaller size that fits.
SHRINK_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The layout of a run in `vram` GB, of which it can use `usable` bytes.

    `fp8`: whether the target's linear weights are fp8. `parts`: bytes on the device by phase (draft, decode, score,
    target) and part; `side_parts`: on the second device, if any. `streamed`: number of streamed layers by
    transformer. If the run does not fit, this is the smallest layout, and `would_fit` a smaller size in pixels that
    fits, or None.
    """

    vram: float
    usable: int
    request: PlanRequest
    fp8: bool
    sizes: Sizes
    parts: Mapping[str, Mapping[str, int]]
    side_parts: Mapping[str, Mapping[str, int]]
    streamed: Mapping[str, int]
    would_fit: tuple[int, int] | None = None

    @property
    def fits(self) -> bool:
        """True if the run fits."""
        return self.missing == 0

    @property
    def peak(self) -> int:
        """Bytes of the phase that needs most."""
        return most(self.parts)

    @property
    def missing(self) -> int:
        """Bytes missing for the run to fit; 0 if it fits."""
        return max(0, self.peak - self.usable)

    @property
    def copied(self) -> Mapping[str, int]:
        """Bytes of each transformer's weights that are copied in every pass."""
        return {role: count * self.sizes.layers[role] for role, count in self.streamed.items()}


def plan(vram: float, request: PlanRequest, *, card: bool = False) -> Plan:
    """Return the layout of a run in `vram` GB (1e9 bytes) that copies least in a pass.

    `card`: `vram` is the size of a card as sold, of which `card_bytes()` can be used.
    Raises `BadInput` for an invalid amount.
    """
    if not (vram > 0 and math.isfinite(vram)):
        raise BadInput(f"the device's memory is {vram} GB; give a number such as 24")
    candidates = _candidates(vram, card_bytes(vram) if card else int(vram * GB), request)
    if fitting := [candidate for candidate in candidates if candidate.fits]:
        return min(fitting, key=lambda layout: (sum(layout.copied.values()), layout.fp8, layout.peak))
    return replace(_smallest(candidates), would_fit=_smaller_size(candidates[0]))


def least_bytes(request: PlanRequest) -> int:
    """Return the peak of the smallest layout of a run."""
    return _smallest(_candidates(0.0, 0, request)).peak


def _smallest(candidates: Sequence[Plan]) -> Plan:
    return min(candidates, key=lambda candidate: (candidate.peak, not candidate.fp8))


def _candidates(vram: float, usable: int, request: PlanRequest) -> list[Plan]:
    """Return every layout: with no layers streamed, the target's, or both models'; each also with fp8."""
    streamable = [role for role in ("target", "drafter") if role in request.parts]
    lay_out = partial(Plan, vram=vram, usable=usable, request=request)
    layouts = []
    for fp8 in (False, True) if request.fp8 is None else (request.fp8,):
        sizes = Sizes.of(request, fp8=fp8)
        whole, side_parts = split_parts(phase_parts(request, sizes), request)
        for count in range(len(streamable) + 1):
            streamed = streamed_layers(whole, request, sizes, streamable[:count], usable)
            parts = streaming(whole, sizes, streamed)
            layouts.append(lay_out(fp8=fp8, sizes=sizes, parts=parts, side_parts=side_parts, streamed=streamed))
    return layouts


def _smaller_size(plan: Plan) -> tuple[int, int] | None:
    """Return the largest size of about the same shape that fits, or None."""
    request = plan.request
    for step in range(SHRINK_STEPS - 1, 0, -1):
        width, height = (
            int(side * step / SHRINK_STEPS) // request.step * request.step
            for side in (request.width, request.height)
        )
        if min(width, height) >= request.step:
            smaller = replace(request, width=width, height=height)
            if any(candidate.fits for candidate in _candidates(plan.vram, plan.usable, smaller)):
                return width, height
    return None
