"""Denoising schedules: explicit (timestep, sigma) pairs of the flow-matching table with shift 5.

A model predicts v = noise - x0 at x_t = (1 - sigma) x0 + sigma noise. Source: Wan 2.1's flow schedule as the
few-step causal models use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from ..errors import BadInput, quoted
from .fields import float32

SHIFT = 5.0
TABLE_LENGTH = 1000
MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step: the model's timestep (0 to 1000) and the noise level sigma (0 to 1)."""

    timestep: float
    sigma: float


Schedule = tuple[Step, ...]


@cache
def shifted_table() -> Schedule:
    """Return the table, rounded to float32 as in the published code; the last sigma is 0.00498, not 0.

    Its levels from 1 to 0 are those of `torch.linspace` on a processor that rounds a product and its sum once.
    """
    step = float32(-1 / TABLE_LENGTH)
    half = TABLE_LENGTH // 2
    near = [float32(1 + step * number) for number in range(half)]
    far = [float32(-step * (TABLE_LENGTH - number)) for number in range(half, TABLE_LENGTH)]
    sigmas = [
        float32(float32(SHIFT * level) / float32(1 + float32((SHIFT - 1) * level))) for level in (*near, *far)
    ]
    return tuple(Step(float32(sigma * 1000), sigma) for sigma in sigmas)


@lru_cache
def nearest_sigma(timestep: float) -> float:
    """Return the sigma of the table entry with the nearest timestep, as in the reference code."""
    return min(shifted_table(), key=lambda step: abs(step.timestep - timestep)).sigma


def warped(positions: Sequence[int]) -> Schedule:
    """Return the steps at unshifted positions 1000 .. 0; position 0 is a real pass at timestep 0."""
    timesteps = [shifted_table()[TABLE_LENGTH - p].timestep if p else 0.0 for p in positions]
    return tuple(Step(t, nearest_sigma(t)) for t in timesteps)


def raw(timesteps: Sequence[float]) -> Schedule:
    """Return the steps at the given timesteps, unshifted."""
    return tuple(Step(float(t), nearest_sigma(t)) for t in timesteps)


def lowered(schedule: Schedule, share: float) -> Schedule:
    """Scale the unshifted positions of the steps by `share`, rounded down; 1 changes nothing.

    Source: Krea Realtime's strength for video to video.
    """
    if share == 1:
        return schedule
    levels = [step.timestep / 1000 for step in schedule]
    positions = [TABLE_LENGTH * level / (SHIFT - (SHIFT - 1) * level) for level in levels]
    # The shift and its inverse are rounded, and 600 must not become 599.
    return warped([int(round(position, 3) * share + 1e-6) for position in positions])


SCHEDULES: dict[str, Callable[[], Schedule]] = {
    # 1000, 937.5, 833.33, 625: what both models were trained on, and the paper's "4 steps".
    "four-step": lambda: warped((1000, 750, 500, 250)),
    # The same plus the trailing 0, which the authors' code and Krea's default run as a real fifth pass.
    "reference5": lambda: warped((1000, 750, 500, 250, 0)),
    # Krea's "4 for performance": 1000, 908.84, 713.98, 0. The positions are its rounded linspace.
    "krea4": lambda: warped((1000, 666, 333, 0)),
    # 1000, 833.33 and 1000: Causal-Forcing++, whose first block takes four steps.
    "two-step": lambda: warped((1000, 500)),
    "one-step": lambda: warped((1000,)),
    "raw4": lambda: raw((1000, 750, 500, 250)),
    # RAVEN's: four-step in whole numbers, and the noise level is the timestep.
    "rounded4": lambda: tuple(Step(float(t), t / 1000) for t in (1000, 938, 833, 625)),
}


def get_schedule(name: str) -> Schedule:
    """Return a schedule by name, or from timesteps such as `1000,750,500`. Raises `BadInput` for other text."""
    if isinstance(name, str) and name in SCHEDULES:
        return SCHEDULES[name]()
    try:
        timesteps = [float(part) for part in name.split(",", MOST_STEPS)]
    except (ValueError, AttributeError):
        names = ", ".join(SCHEDULES)
        raise BadInput(
            f"there is no schedule {quoted(name)}; choose {names}, or timesteps as 1000,750,500"
        ) from None
    falling = all(a > b for a, b in pairwise(timesteps))
    if not (falling and timesteps[0] <= 1000 and timesteps[-1] >= 0):
        raise BadInput(f"the timesteps {quoted(name)} do not fall from 1000 at most to 0; put them in order")
    return raw(timesteps)
