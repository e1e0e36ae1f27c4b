"""How a causal model is run: its blocks, schedule and context, and the presets of the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

from ..errors import BadInput, quoted
from .execution import AUTO
from .fields import check_fields, setting, settings_of
from .schedules import Schedule, get_schedule

Weights = Literal["auto", "ema", "raw"]
"""The state dict to take of a training checkpoint: averaged, or as trained."""
ContextMemory = Literal["window", "deep-sink", "memrope"]
"""What never leaves the window: the sink, four sevenths of the window, or the sink and two running means."""
MOST_CONTEXT_FRAMES = 1 << 20
"""Latent frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """The newest `context_frames` latent frames are passed again before each block.

    Once the video's first frame has left them, the oldest is encoded again from its pixels, as a clip begins with
    one pixel frame. `keep_first_frame`: the video's first frame takes its place, so nothing is encoded. See
    `RecomputedContext`.
    """

    context_frames: int = setting(3, least=1, most=MOST_CONTEXT_FRAMES)
    keep_first_frame: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def anchor_horizon(self) -> int:
        """Number of newest latent frames whose last pixel frame is kept, as it may be encoded again."""
        return 0 if self.keep_first_frame else self.context_frames

    def cache_frames(self, block_frames: int) -> int:
        """Return the number of latent frames whose keys and values are kept."""
        return self.context_frames + block_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """A cache of `window` latent frames, the current block included, of which the first `sink` never leave.

    For `relative`, `trained`, `recache` and `flush` see `RollingContext`. `context_memory`: all but `window` imply
    relative positions.
    """

    window: int = setting(21, least=1, most=MOST_CONTEXT_FRAMES)
    sink: int = setting(0, least=0, most=MOST_CONTEXT_FRAMES)
    relative: bool = False
    trained: int | None = setting(None, least=1, most=MOST_CONTEXT_FRAMES)
    recache: bool = False
    flush: bool = False
    context_memory: ContextMemory = "window"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.recache and self.flush:
            raise BadInput("a new prompt either recaches or flushes the window; choose one of them")

    @property
    def anchor_horizon(self) -> int:
        """Number of newest latent frames whose pixels the context may need: none."""
        return 0

    @property
    def rotates_later(self) -> bool:
        """True if keys are stored unrotated, and rotated when they are read."""
        return self.relative or self.context_memory != "window"

    @property
    def kept_frames(self) -> int:
        """Number of pinned cache slots (sink and memory)."""
        if self.context_memory == "deep-sink":
            return max(self.sink, 4 * self.window // 7)
        return max(self.sink, 1) + 2 if self.context_memory == "memrope" else self.sink

    def cache_frames(self, block_frames: int) -> int:
        """Return the number of latent frames whose keys and values are kept."""
        return self.window


Context = Recompute | Rolling
CONTEXTS: Mapping[str, type[Context]] = {"recompute": Recompute, "incremental": Rolling}
"""How a model gets its context, by the words that users choose."""
ContextName = Literal["recompute", "incremental"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings of one family of checkpoints. All counts are latent frames.

    `schedule`: name or timesteps; `first_schedule`: of the video's first block, None for the same. `draft_steps`:
    number of steps of a draft, None for all. `weights`: state dict of a training checkpoint.
    Raises `BadInput` for values that contradict each other.
    """

    name: str
    block_frames: int = setting(3, least=1, most=MOST_CONTEXT_FRAMES)
    schedule: str = setting("four-step", check=get_schedule)
    first_schedule: str | None = setting(None, check=get_schedule)
    draft_steps: int | None = setting(None, least=1)
    context: Context = Recompute()
    weights: Weights = AUTO

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.context, Rolling):
            least = self.context.kept_frames + self.block_frames
            if self.context.window < least:
                fault = f"a window of {self.context.window} has no room for sink and one block"
                raise BadInput(f"{fault}; give {least} or more")
        if self.draft_steps is not None:
            most = max(len(self.steps), len(self.first_steps))
            if self.draft_steps > most:
                raise BadInput(f"drafts cannot stop after {self.draft_steps} of {most} steps; give 1 to {most}")

    @property
    def key(self) -> str:
        """The settings that a block's bits depend on, as text for cache keys."""
        return repr((self.context, self.block_frames, self.steps, self.first_steps, self.draft_steps))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for the report."""
        return {
            "preset": self.name,
            "block_frames": self.block_frames,
            "schedule": [step.timestep for step in self.steps],
            "first_schedule": [step.timestep for step in self.first_steps],
            **({"draft_steps": self.draft_steps} if self.draft_steps else {}),
            "policy": context_name(self.context),
            **{name: value for name, value in asdict(self.context).items() if value is not None},
        }

    @property
    def steps(self) -> Schedule:
        """The denoising steps of a block."""
        return get_schedule(self.schedule)

    @property
    def first_steps(self) -> Schedule:
        """The denoising steps of the video's first block."""
        return get_schedule(self.first_schedule or self.schedule)

    @property
    def steps_made(self) -> int:
        """Number of denoising steps of a draft."""
        return min(self.draft_steps or len(self.steps), len(self.steps))


def context_name(context: Context) -> str:
    """Return the word that users choose for a context."""
    [name] = (name for name, kind in CONTEXTS.items() if isinstance(context, kind))
    return name


ROLLING = Rolling(relative=True)
FRAMEWISE = {"block_frames": 1, "context": ROLLING, "weights": "ema"}
FEW_STEPS = {**FRAMEWISE, "first_schedule": "four-step"}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "self-forcing-1.3b": {"weights": "ema"},
    "krea-14b": {},
    "causal-forcing": {"context": ROLLING, "weights": "raw"},
    "causal-forcing-framewise": FRAMEWISE,
    "causal-forcing-2step": {**FEW_STEPS, "schedule": "two-step"},
    "causal-forcing-1step": {**FEW_STEPS, "schedule": "one-step"},
    "one-forcing": {**FEW_STEPS, "schedule": "one-step", "weights": "raw"},
    # Source: scripts/infer_self_gradient_forcing.sh and wan/modules/causal_model.py (top_aligned), in the copy that
    # alphaXiv published with its reproduction. Read on 2026-11-28.
    "self-gradient-forcing": {"context": Rolling(window=12, sink=3, relative=True, trained=21), "weights": "ema"},
    "self-gradient-forcing-framewise": {**FRAMEWISE, "context": Rolling(sink=4, relative=True)},
    # Source: raven_sample100.yaml and trailing.py of mvp-ai-lab/RAVEN, read on 2026-11-28. Its clips have 21 latent
    # frames and see all of them; the window from there on is ours.
    "raven": {"context": ROLLING, "schedule": "rounded4"},
    "longlive-1.0": {"context": Rolling(window=12, sink=3, recache=True), "weights": "raw"},
    "custom": {},
}
"""Preset -> fields that differ from `Preset`'s defaults. Published files: weights/model_files.py."""
SWITCHED: Mapping[str, Rolling] = {"krea-14b": Rolling(window=6), "custom": ROLLING}
"""Preset that recomputes -> the cache that it has if the user asks for one."""


@cache
def get_preset(name: str) -> Preset:
    """Return a preset by name. Raises `BadInput` with the list of names."""
    if not isinstance(name, str) or name not in PRESETS:
        raise BadInput(f"there is no preset {quoted(name)}; choose among {', '.join(PRESETS)}")
    return Preset(name=name, **PRESETS[name])


def changed_preset(preset: Preset, changes: Mapping[str, Any], kind_name: str | None = None) -> Preset:
    """Return a preset with other values, of itself or of its context. `kind_name`: of another kind, in `CONTEXTS`.

    Raises `BadInput` for a value that the context does not read.
    """
    kind = CONTEXTS[kind_name] if kind_name else type(preset.context)
    context = preset.context
    if not isinstance(context, kind):
        context = SWITCHED.get(preset.name, Rolling()) if kind is Rolling else Recompute()
    of_context = context_changes(kind, changes)
    if foreign := foreign_changes(kind, changes):
        name = foreign[0].replace("_", "-")
        [other] = CONTEXTS.keys() - {context_name(context)}
        fault = f"cache={context_name(context)} reads no {name}"
        raise BadInput(f"{fault}; leave it out, or choose cache={other}")
    others = {name: value for name, value in changes.items() if name not in of_context}
    return replace(preset, **others, context=replace(context, **of_context))


def context_changes(kind: type[Context], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some changes to a preset that are of its context."""
    return {name: value for name, value in changes.items() if name in settings_of(kind)}


def foreign_changes(kind: type[Context], changes: Mapping[str, Any]) -> list[str]:
    """Return the names of changes that another kind of context reads."""
    others = [name for other in CONTEXTS.values() if other is not kind for name in settings_of(other)]
    return [name for name in changes if name in others]
