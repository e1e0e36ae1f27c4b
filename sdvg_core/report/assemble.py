"""A report from what a run was given and did: settings of one shape wherever it was started, and its notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Protocol

from ..causal_wan.presets import Preset
from ..causal_wan.schedule import get_schedule
from ..devices.execution import Execution
from ..engine.parts import Scorer
from ..engine.records import BlockRecord
from ..engine.run import Run
from .run_report import RunReport, predict_target_only

OVERLAP_NOTE = (
    "Blocks were started while the ones before them were decoded: their seconds are those they were waited for."
)
FP8_NOTE = "Keys and values were kept in float8_e4m3fn: latents differ from those of a run that keeps them whole."


class ReportedScorer(Scorer, Protocol):
    """A scorer that also knows what to say of a prompt."""

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return what a reader of scores under this prompt must know."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How one transformer was run. None where the host that loaded it does not tell.

    `file`: its name without folders. `attention`: the kernel's name. `bytes`: of its weights. `loras_and_patches`:
    how many weights a host has patched.
    """

    file: str | None
    size: str
    preset: Preset
    dtype: str
    attention: str
    quantisation: str | None
    bytes: int
    loras_and_patches: int = 0

    def as_dict(self, execution: Execution) -> dict[str, Any]:
        """Return it as JSON values."""
        preset = self.preset
        recompute = preset.policy == "recompute"
        return {
            "file": self.file,
            "size": self.size,
            "preset": preset.name,
            "block_frames": preset.block_frames,
            "schedule": [step.timestep for step in get_schedule(preset.schedule)],
            "policy": preset.policy,
            **(
                {"context_frames": preset.context_frames}
                if recompute
                else {"window": preset.window, "sink": preset.sink}
            ),
            "dtype": self.dtype,
            "kv_dtype": execution.kv_dtype if execution.kv_fp8 else self.dtype,
            "attention": self.attention,
            "quantisation": self.quantisation,
            "bytes": self.bytes,
            "loras_and_patches": self.loras_and_patches,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSettings:
    """What the report says of a run's parts. `vae`, `text_encoder`: file, dtype and more, as JSON values.

    `device`: of the transformers; `side_device`: of VAE and scorer.
    """

    drafter: ModelSettings
    target: ModelSettings
    vae: Mapping[str, Any]
    text_encoder: Mapping[str, Any]
    device: str
    side_device: str
    execution: Execution


def assemble_report(
    run: Run,
    records: Sequence[BlockRecord],
    parts: PartSettings,
    *,
    fps: float,
    versions: Mapping[str, str],
    notes: tuple[str, ...],
    continue_from: str | None,
    start_image: str | None,
) -> RunReport:
    """Return the report of a run. `continue_from`, `start_image`: what it started from, by name."""
    # Next to a draft on the same device, decoding takes longer than it would for the target alone.
    shared = parts.execution.overlap and parts.device == parts.side_device
    seconds, source = (None if shared else predict_target_only(records)) or (None, None)
    return RunReport(
        settings={
            **_part_settings(run, parts),
            "router": asdict(run.router),
            "seed": run.noise.seed,
            "blocks": len(run.spans),
            "width": run.noise.width * run.engine.codec.spatial_stride,
            "height": run.noise.height * run.engine.codec.spatial_stride,
            "drafter_context": run.drafter_context,
            "latent_frames_given": run.given_frames,
            "continue_from": continue_from,
            "start_image": start_image,
        },
        versions=versions,
        blocks=tuple(records),
        fps=fps,
        notes=notes,
        target_only_seconds=seconds,
        target_only_source=source,
    )


def _part_settings(run: Run, parts: PartSettings) -> dict[str, Any]:
    scorer = dict(run.engine.scorer.describe()) if run.engine.scorer else {"name": "none"}
    scorer.pop("notes", None)
    return {
        "drafter": parts.drafter.as_dict(parts.execution),
        "target": parts.target.as_dict(parts.execution),
        "vae": dict(parts.vae),
        "text_encoder": dict(parts.text_encoder),
        "scorer": scorer,
        "device": parts.device,
        "side_device": parts.side_device,
        "overlap": parts.execution.overlap,
        "compile": parts.execution.compile,
    }


def notes_on(
    execution: Execution,
    scorer: ReportedScorer | None,
    gate_texts: Iterable[str],
    kernel_notes: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return what a reader of the report must know, in sentences: of the scores, and of whatever is not exact."""
    of_scorer = scorer.describe()["notes"] if scorer else ()
    of_prompts = [scorer.prompt_notes(text) for text in dict.fromkeys(gate_texts)] if scorer else []
    return (
        *of_scorer,
        *kernel_notes,
        *((FP8_NOTE,) if execution.kv_fp8 else ()),
        *((OVERLAP_NOTE,) if execution.overlap else ()),
        *chain.from_iterable(of_prompts),
    )
