"""How a causal model is run: its blocks, schedule and context, and the presets of the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ..errors import BadInput
from .execution import AUTO
from .fields import check_fields, setting
from .schedules import Schedule, get_schedule

Weights = Literal["auto", "ema", "raw"]
"""The state dict to take of a training checkpoint: averaged, or as trained."""
ContextPolicy = Literal["recompute", "incremental"]
"""How a model gets its context."""
ContextMemory = Literal["window", "deep-sink", "memrope"]
"""What never leaves the window: the sink; its first four sevenths; or the sink and two running means."""
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
    schedule: str = setting("four-step", check=get_schedule)
    first_schedule: str | None = setting(None, check=get_schedule)
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
