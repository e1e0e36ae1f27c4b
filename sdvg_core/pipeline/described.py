"""What a report says of how models were loaded and run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..causal_wan.backends import AUTO, AttentionBackend
from ..causal_wan.checkpoint import WanCheckpoint
from ..causal_wan.presets import Preset
from ..causal_wan.schedule import get_schedule

if TYPE_CHECKING:
    from .loading import LoadOptions

OVERLAP_NOTE = (
    "Blocks were begun beside the decoding of those before them: their seconds are those they were waited for."
)
FP8_NOTE = "Keys and values were kept in float8_e4m3fn: latents differ from those of a run that keeps them whole."


def describe_model(
    found: WanCheckpoint, preset: Preset, options: LoadOptions, kernel: AttentionBackend
) -> dict[str, Any]:
    """Return how a transformer is run, as JSON values."""
    policy = (
        {"context_frames": preset.context_frames}
        if preset.policy == "recompute"
        else {"window": preset.window, "sink": preset.sink}
    )
    dtype = options.dtype or str(found.dtype).removeprefix("torch.")
    return {
        "file": found.weights.path.name,
        "size": found.config.size,
        "preset": preset.name,
        "block_frames": preset.block_frames,
        "schedule": [step.timestep for step in get_schedule(preset.schedule)],
        "policy": preset.policy,
        **policy,
        "dtype": dtype,
        "kv_dtype": dtype if options.kv_dtype == AUTO else options.kv_dtype,
        "attention": kernel.name,
        "quantisation": found.quantisation.label,
    }


def notes_on(options: LoadOptions, kernels: Iterable[AttentionBackend]) -> tuple[str, ...]:
    """Return what was done beside the plain and exact, in sentences."""
    rounded = [] if options.kv_dtype == AUTO else [FP8_NOTE]
    ahead = [OVERLAP_NOTE] if options.overlap else []
    return (*filter(None, dict.fromkeys(kernel.note for kernel in kernels)), *rounded, *ahead)
