"""How to run each published causal checkpoint. It cannot be inferred from a file, which looks like any Wan 2.1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from ..checkpoints.model_files import KNOWN_MODELS, has_name, known_model
from ..checkpoints.pickles import Weights
from ..devices.execution import AUTO, float64_device
from ..errors import BadInput
from ..settings import check_fields, setting
from .config import WanConfig

if TYPE_CHECKING:
    from torch import Tensor

# --- denoising schedules: explicit (timestep, sigma) pairs of the flow-matching table with shift 5. A model
# predicts v = noise - x0 at x_t = (1 - sigma) x0 + sigma noise. Source: Wan 2.1's flow schedule as the few-step
# causal models use it.

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
    """Return the table, in float32 as in the published code; the last sigma is 0.00498, not 0."""
    import torch

    linear = torch.linspace(1, 0, TABLE_LENGTH + 1)[:-1]
    sigmas = SHIFT * linear / (1 + (SHIFT - 1) * linear)
    return tuple(map(Step, (sigmas * 1000).tolist(), sigmas.tolist()))


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
        raise BadInput(f"there is no schedule {name!r:.60}; choose {names}, or timesteps as 1000,750,500") from None
    falling = all(a > b for a, b in pairwise(timesteps))
    if not (falling and timesteps[0] <= 1000 and timesteps[-1] >= 0):
        raise BadInput(f"the timesteps {name!r:.60} do not fall from 1000 at most to 0; put them in order")
    return raw(timesteps)


def predict_clean(x: Tensor, velocity: Tensor, sigma: float) -> Tensor:
    """Return x0 = x - sigma v, computed in float64, in the dtype of `x`."""
    device = float64_device(x.device)
    clean = x.to(device).double() - sigma * velocity.to(device).double()
    return clean.to(x.dtype).to(x.device)


def renoise(clean: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return (1 - sigma) x0 + sigma noise, computed in float32, in the dtype of `clean`."""
    return ((1 - sigma) * clean.float() + sigma * noise.to(clean.device).float()).to(clean.dtype)


# --- presets

ContextPolicy = Literal["recompute", "incremental"]
"""How a model gets its context."""
ContextMemory = Literal["window", "deep-sink", "memrope"]
"""What never leaves the window: the sink; its first four sevenths; or the sink and two running means."""
ANYBODYS = "model.pt"
"""A file name shared by many checkpoints, which does not identify one without its folder."""
MOST_FRAMES = 1 << 20
"""Latent frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings of one family of checkpoints. All counts are latent frames.

    `schedule`: name or timesteps; `first_schedule`: of the clip's first block, None for the same. `draft_steps`:
    number of steps of a draft, None for all. `weights`: state dict of a training checkpoint.
    `policy`: `recompute` passes the newest `context_frames` again before each block (`keep_first_frame`: with the
    clip's first in place of the oldest); see `Recompute`. `incremental` keeps a cache of `window` frames, current
    block included, of which the first `sink` never leave; for `relative`, `trained`, `recache` and `flush` see
    `Incremental`. `context_memory`: all but `window` imply relative positions.
    Settings of the other policy are kept for those who switch.
    Raises `BadInput` for values that contradict each other.
    """

    name: str
    block_frames: int = setting(3, least=1, most=MOST_FRAMES)
    schedule: str = "four-step"
    first_schedule: str | None = None
    draft_steps: int | None = setting(None, least=1)
    policy: ContextPolicy = "recompute"
    context_frames: int = setting(3, least=1, most=MOST_FRAMES)
    keep_first_frame: bool = False
    window: int = setting(21, least=1, most=MOST_FRAMES)
    sink: int = setting(0, least=0, most=MOST_FRAMES)
    relative: bool = False
    trained: int | None = setting(None, least=1, most=MOST_FRAMES)
    recache: bool = False
    flush: bool = False
    context_memory: ContextMemory = "window"
    weights: Weights = AUTO

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window < self.kept_frames + self.block_frames:
            least = self.kept_frames + self.block_frames
            raise BadInput(f"a window of {self.window} has no room for sink and one block; give {least} or more")
        if (self.recache or self.flush) and self.policy != "incremental":
            what = "recache" if self.recache else "flush"
            raise BadInput(f"recompute keeps no window to {what}; leave {what} out, or choose incremental")
        if self.recache and self.flush:
            raise BadInput("a new prompt either recaches or flushes the window; choose one of them")
        if self.keep_first_frame and self.policy != "recompute":
            raise BadInput("keep_first_frame is for the policy recompute; leave it out, or give a sink")
        if self.draft_steps is not None:
            most = max(len(self.steps), len(self.first_steps))
            if self.draft_steps > most:
                raise BadInput(f"drafts cannot stop after {self.draft_steps} of {most} steps; give 1 to {most}")

    @property
    def identity(self) -> str:
        """The settings that a block's bits depend on, as text for cache keys."""
        if self.policy == "recompute":
            context: tuple[object, ...] = (self.context_frames, self.keep_first_frame)
        else:
            context = (self.window, self.sink, self.recache, self.relative, self.flush, self.context_memory)
        if self.trained:
            context = (*context, self.trained)
        return repr((self.policy, context, self.block_frames, self.steps, self.first_steps, self.draft_steps))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for the report, without those of the other policy."""
        return {
            "preset": self.name,
            "block_frames": self.block_frames,
            "schedule": [step.timestep for step in self.steps],
            "first_schedule": [step.timestep for step in self.first_steps],
            **({"draft_steps": self.draft_steps} if self.draft_steps else {}),
            "policy": self.policy,
            **{name: getattr(self, name) for name in CONTEXT_FIELDS[self.policy]},
            **({"trained": self.trained} if self.trained and self.policy == "incremental" else {}),
        }

    @property
    def rotates_later(self) -> bool:
        """True if keys are stored unrotated, and rotated when they are read."""
        return self.policy == "incremental" and (self.relative or self.context_memory != "window")

    @property
    def kept_frames(self) -> int:
        """Number of pinned cache slots (sink and memory)."""
        if self.context_memory == "deep-sink":
            return max(self.sink, 4 * self.window // 7)
        return max(self.sink, 1) + 2 if self.context_memory == "memrope" else self.sink

    @property
    def steps(self) -> Schedule:
        """The denoising steps of a block."""
        return get_schedule(self.schedule)

    @property
    def first_steps(self) -> Schedule:
        """The denoising steps of the clip's first block."""
        return get_schedule(self.first_schedule or self.schedule)

    @property
    def steps_made(self) -> int:
        """Number of denoising steps of a draft."""
        return min(self.draft_steps or len(self.steps), len(self.steps))

    @property
    def anchor_horizon(self) -> int:
        """Number of newest latent frames whose pixels the context may need."""
        return self.context_frames if self.policy == "recompute" and not self.keep_first_frame else 0


FRAMEWISE = {"block_frames": 1, "policy": "incremental", "relative": True, "weights": "ema"}
FEW_STEPS = {**FRAMEWISE, "first_schedule": "four-step"}
SELF_GRADIENT_FORCING = {"policy": "incremental", "relative": True, "weights": "ema"}

CONTEXT_FIELDS: Mapping[ContextPolicy, tuple[str, ...]] = {
    "recompute": ("context_frames", "keep_first_frame"),
    "incremental": ("window", "sink", "relative", "recache", "flush", "context_memory"),
}
"""The fields that each policy reads."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "self-forcing-1.3b": {"weights": "ema"},
    "krea-14b": {"window": 6},
    "causal-forcing": {"policy": "incremental", "relative": True, "weights": "raw"},
    "causal-forcing-framewise": FRAMEWISE,
    "causal-forcing-2step": {**FEW_STEPS, "schedule": "two-step"},
    "causal-forcing-1step": {**FEW_STEPS, "schedule": "one-step"},
    "one-forcing": {**FEW_STEPS, "schedule": "one-step", "weights": "raw"},
    # Source: scripts/infer_self_gradient_forcing.sh and wan/modules/causal_model.py (top_aligned), in the copy that
    # alphaXiv published with its reproduction. Read on 2026-11-28.
    "self-gradient-forcing": {**SELF_GRADIENT_FORCING, "window": 12, "sink": 3, "trained": 21},
    "self-gradient-forcing-framewise": {**SELF_GRADIENT_FORCING, "block_frames": 1, "window": 21, "sink": 4},
    # Source: raven_sample100.yaml and trailing.py of mvp-ai-lab/RAVEN, read on 2026-11-28. Its clips have 21 latent
    # frames and see all of them; the window from there on is ours.
    "raven": {"policy": "incremental", "relative": True, "schedule": "rounded4"},
    "longlive-1.0": {"policy": "incremental", "window": 12, "sink": 3, "recache": True, "weights": "raw"},
    "custom": {"relative": True},
}
"""Preset -> fields that differ from `Preset`'s defaults. Published files: checkpoints/model_files.py."""


@cache
def get_preset(name: str) -> Preset:
    """Return a preset by name. Raises `BadInput` with the list of names."""
    if not isinstance(name, str) or name not in PRESETS:
        raise BadInput(f"there is no preset {name!r:.60}; choose among {', '.join(PRESETS)}")
    return Preset(name=name, **PRESETS[name])


def size_preset(config: WanConfig) -> str | None:
    """Return the name of the likely preset for a published size, else None."""
    return next((model.preset for model in KNOWN_MODELS if model.size == config.size), None)


def guess_preset(config: WanConfig, remedy: str = "name one, such as custom") -> Preset:
    """Return the likely preset for a checkpoint of this size. Raises `BadInput`, with `remedy`, if it has none."""
    name = size_preset(config)
    if name is None:
        size = f"{config.size} ({config.num_layers} blocks of width {config.dim})"
        raise BadInput(f"no preset is known for a model of {size}; {remedy}")
    return get_preset(name)


def preset_by_name(file: Path) -> Preset | None:
    """Return the preset of a known file, or None.

    Raises `BadInput` for a name that several models share, outside their folders, as they run differently.
    """
    if known := known_model(file):
        return get_preset(known.preset)
    if file.name.lower() == ANYBODYS:
        return None
    sharing = [model for model in KNOWN_MODELS if any(has_name(file, PurePath(name).name) for name in model.files)]
    if not sharing:
        return None
    presets = " or ".join(dict.fromkeys(model.preset for model in sharing))
    folders = " or ".join(model.files[0] for model in sharing)
    raise BadInput(f"{len(sharing)} models are {file.name}; state the preset ({presets}) or keep it as {folders}")


def notes_by_name(file: Path, config: WanConfig, *, stated: bool) -> tuple[str, ...]:
    """Return notes on a known file. `stated`: whether the user chose the preset."""
    known = known_model(file)
    if known is None:
        return ()
    notes = [f"{file.name}: {known.warning}."] if known.warning else []
    # The preset of this size needs no note.
    if not stated and size_preset(config) != known.preset:
        notes.append(f"{file.name} is the name of {known.name}, so it runs with the preset {known.preset}.")
    return tuple(notes)
