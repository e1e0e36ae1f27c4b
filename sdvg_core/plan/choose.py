"""The fastest way to lay a run out in the memory there is, or what is missing for the smallest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import BadInput
from .request import PlanRequest
from .setting import Setting, Sizes, copied_bytes, most, settings, split_parts, step_parts, with_target
from .sizes import GB, TEXT_ENCODER_BYTES
from .work import step_seconds

# How much smaller a video is tried, along each side, if none of the asked size fits.
SHRINK_STEPS = 20
# Its activations are small beside its weights.
TEXT_ENCODER_SLACK = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Predicted seconds of a block by what becomes of it, and of the whole video.

    `accepted`: drafted, decoded, scored. `rejected`: that, and made and decoded again by the target. `forced`: the
    first one, by the target alone. `copying`: the part of a rejected block that is copying; `video`: all blocks.
    """

    accepted: float
    rejected: float
    forced: float
    copying: float
    video: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """How a run is to be laid out on a device with `vram` GB (1e9 bytes), and what to expect of it.

    `parts`: for every step (draft, decode, score, target) which parts lie there, in bytes; `beside`: which lie on
    the second device, if there is one. `seconds`: None if it does not fit; then `setting` is the smallest one, and
    `would_fit` the largest size of that shape that does fit, in pixels.
    """

    vram: float
    request: PlanRequest
    setting: Setting
    sizes: Sizes
    parts: Mapping[str, Mapping[str, int]]
    beside: Mapping[str, Mapping[str, int]]
    seconds: BlockSeconds | None
    would_fit: tuple[int, int] | None = None

    @property
    def fits(self) -> bool:
        """Whether the run fits."""
        return self.seconds is not None

    @property
    def peak(self) -> int:
        """Bytes of the step that needs most."""
        return most(self.parts)

    @property
    def missing(self) -> int:
        """Bytes by which it does not fit; 0 if it does."""
        return max(0, self.peak - int(self.vram * GB))

    @property
    def streamed_share(self) -> float:
        """The share of the target's weights that is copied over in every pass."""
        return 1 - self.parts["target"]["target"] / self.sizes.weights["target"]

    @property
    def text_encoder_on_device(self) -> bool:
        """Whether the text encoder has room, which leaves before the other models come."""
        return self.vram * GB >= TEXT_ENCODER_BYTES * TEXT_ENCODER_SLACK

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        request = self.request
        return {
            "vram_gb": self.vram,
            "fits": self.fits,
            "width": request.width,
            "height": request.height,
            "blocks": request.blocks,
            "drafter": {"size": request.drafter.size, "preset": request.drafter_preset.name},
            "target": {"size": request.target.size, "preset": request.target_preset.name},
            "target_weights": "float8_e4m3fn" if self.setting.fp8 else request.dtype,
            "dtype": request.dtype,
            "overlap": request.execution.overlap,
            "side_device": request.side,
            "compile": request.execution.compile,
            "vae_layers": request.execution.vae_layers,
            "vae_dtype": request.vae_dtype,
            "reward_dtype": request.reward_dtype,
            "everything_stays": self.setting.stays,
            "away_while_target_works": list(self.setting.away),
            "target_away_while_idle": self.setting.target_away,
            "target_streamed_share": self.streamed_share,
            "text_encoder_on_device": self.text_encoder_on_device,
            "peak_bytes": self.peak,
            "side_peak_bytes": most(self.beside),
            "missing_bytes": self.missing,
            "would_fit": list(self.would_fit) if self.would_fit else None,
            "bytes": {step: dict(parts) for step, parts in self.parts.items()},
            "side_bytes": {step: dict(parts) for step, parts in self.beside.items()},
            "seconds": asdict(self.seconds) if self.seconds else None,
            "rejected": request.rejected,
            "pcie_gb_per_second": request.pcie,
            "rates": request.rates.name,
            "rates_source": request.rates.source,
        }


def plan(vram: float, request: PlanRequest | None = None) -> Plan:
    """Return the fastest layout of a run in `vram` GB (1e9 bytes); by default, of the real pair at 832x480.

    A card sold as 24 GB holds 25.8e9 bytes: give 24, and the rest is left to the driver and to fragmentation.
    Raises `BadInput` if `vram` is no amount of memory.
    """
    if not (vram > 0 and math.isfinite(vram)):
        raise BadInput(f"expected the device's memory as GB above 0, but got {vram}; give a number such as 24")
    request = request or PlanRequest()
    candidates = _candidates(vram, request)
    fitting = [candidate for candidate in candidates if candidate.missing == 0]
    if fitting:
        return min((_timed(candidate) for candidate in fitting), key=_worse)
    smallest = min(candidates, key=lambda candidate: (candidate.peak, not candidate.setting.fp8))
    return replace(smallest, would_fit=_smaller_size(vram, request))


def _candidates(vram: float, request: PlanRequest) -> list[Plan]:
    sizes = {fp8: Sizes.of(request, fp8=fp8) for fp8 in (False, True)}
    found = []
    for setting in settings():
        of = sizes[setting.fp8]
        parts, beside = step_parts(request, of, setting), dict[str, dict[str, int]]()
        if request.side:
            parts, beside = split_parts(parts)
        parts = with_target(parts, of, setting, vram * GB)
        plan = Plan(vram=vram, request=request, setting=setting, sizes=of, parts=parts, beside=beside, seconds=None)
        found.append(plan)
    return found


def _worse(candidate: Plan) -> tuple[float, bool, int]:
    assert candidate.seconds is not None
    return candidate.seconds.video, candidate.setting.fp8, candidate.peak


def _timed(candidate: Plan) -> Plan:
    request, setting = candidate.request, candidate.setting
    step = step_seconds(request, fp8=setting.fp8)
    copying = copied_bytes(candidate.parts, candidate.sizes, setting) / (request.pcie * GB)
    judged = step["decode"] + step["score"]
    # Begun ahead, a draft is made while another device decodes and judges the block before it.
    ahead = request.execution.overlap and request.side
    accepted = max(step["drafter"], judged) if ahead else step["drafter"] + judged
    rejected = accepted + step["target"] + step["decode"] + copying
    forced = step["first target"] + step["first decode"] + copying
    later = (1 - request.rejected) * accepted + request.rejected * rejected
    seconds = BlockSeconds(
        accepted=accepted,
        rejected=rejected,
        forced=forced,
        copying=copying,
        video=forced + (request.blocks - 1) * later,
    )
    return replace(candidate, seconds=seconds)


def _smaller_size(vram: float, request: PlanRequest) -> tuple[int, int] | None:
    """Return the largest size of about the same shape that fits; None if none does."""
    for step in range(SHRINK_STEPS - 1, 0, -1):
        width, height = (int(side * step / SHRINK_STEPS) // 16 * 16 for side in (request.width, request.height))
        if min(width, height) >= 16:
            smaller = replace(request, width=width, height=height)
            if any(candidate.missing == 0 for candidate in _candidates(vram, smaller)):
                return width, height
    return None
