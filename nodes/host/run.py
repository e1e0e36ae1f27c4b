"""One run of the sampler node: from what is wired in to frames, latents and report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import comfy.utils
import comfyui_version
import torch
from torch import Tensor

from ...sdvg_core.causal_wan.backends import AUTO
from ...sdvg_core.causal_wan.presets import Preset
from ...sdvg_core.causal_wan.schedule import get_schedule
from ...sdvg_core.devices.environment import versions_on
from ...sdvg_core.engine.history import timeline_from_latents
from ...sdvg_core.engine.noise import KeyedNoise
from ...sdvg_core.engine.overlap import speculate_overlapped
from ...sdvg_core.engine.parts import Engine
from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.engine.spans import plan_spans, spans_of_clip
from ...sdvg_core.engine.speculate import Emitted, speculate
from ...sdvg_core.engine.types import Block
from ...sdvg_core.errors import BadInput
from ...sdvg_core.pipeline.described import FP8_NOTE, OVERLAP_NOTE
from ...sdvg_core.pipeline.loading import device_clock
from ...sdvg_core.report.run_report.run_report import RunReport, predict_target_only
from ...sdvg_core.text.prompts import Conditions
from ..sockets import PromptEntry, RouterValue
from .checks import check_model, check_pair
from .conditioning import read_conditions
from .engine import build_engine
from .memory import memory_of, while_resident
from .model import compute_dtype
from .presets import preset_of
from .progress import NodeProgress
from .vae import ComfyCodec, check_vae

logger = logging.getLogger(__name__)

FPS = 16.0  # what Wan 2.1 was trained at; the video's own rate is set where it is saved


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What is wired into the sampler, as it came."""

    drafter: Any
    target: Any
    vae: Any
    router: RouterValue
    prompts: tuple[PromptEntry, ...]
    width: int
    height: int
    blocks: int
    seed: int
    schedule: str | None
    drafter_context: str
    overlap: bool
    kv_dtype: str
    continue_from: dict[str, Any] | None
    start_image: Tensor | None
    node_id: str | None
    workflow_id: str | None

    @property
    def kv_fp8(self) -> bool:
        """Whether keys and values are kept in float8_e4m3fn."""
        return self.kv_dtype != AUTO


def run_job(job: Job) -> tuple[Tensor, dict[str, Any], RunReport]:
    """Make the video: frames `f h w c` in [0, 1], a LATENT, and the report.

    Raises `BadInput` for anything wired in that cannot be used, before a model is loaded.
    """
    notes = (*check_model(job.drafter, "drafter"), *check_model(job.target, "target"))
    check_pair(job.drafter, job.target)
    check_vae(job.vae)
    check_size(job)
    drafter, target = _presets(job)
    channels = job.target.model.diffusion_model.text_dim
    conditions = read_conditions(job.prompts, channels, scored=job.router.scorer is not None)
    codec = ComfyCodec(job.vae)
    progress = NodeProgress(
        job.node_id, job.blocks, len(get_schedule(target.schedule)), workflow_id=job.workflow_id
    )
    memory = memory_of(job, drafter, target)
    plan = memory.plan
    for line in plan:
        logger.info("SDVG memory: %s", line)
    progress.say("\n".join(plan))

    def make() -> tuple[Tensor, Tensor, list[BlockRecord]]:
        # The engine, which holds keys and values, is built in here and is gone with it.
        clock = device_clock(*memory.devices)
        engine = build_engine(job, drafter, target, codec, progress)
        return _make(job, engine, conditions, _given(job, codec), target.block_frames, progress, clock)

    frames, latents, records = while_resident(memory, make)
    # Beside a draft on the same device, decoding takes longer than it would for the target alone.
    shared = job.overlap and job.vae.device == job.target.load_device
    target_only = (None if shared else predict_target_only(records)) or (None, None)
    report = RunReport(
        settings=_settings(job, drafter, target),
        versions={**versions_on(str(job.target.load_device)), "comfyui": comfyui_version.__version__},
        blocks=tuple(records),
        fps=FPS,
        notes=(*notes, *plan, *_scorer_notes(job, conditions), *_notes_on(job)),
        target_only_seconds=target_only[0],
        target_only_source=target_only[1],
    )
    samples = job.target.model.process_latent_out(latents)
    return frames, {"samples": samples.cpu()}, report


def check_size(job: Job) -> None:
    """Raise `BadInput` unless width and height fit the VAE and the patches, and the clip to go on from."""
    for name, size in (("width", job.width), ("height", job.height)):
        if size % 16:
            lower = max(size // 16, 1) * 16
            raise BadInput(f"expected {name} as a multiple of 16, but got {size}; use {lower} or {lower + 16}")
    if job.continue_from is None:
        return
    if job.start_image is not None:
        raise BadInput("expected a clip to go on from or a start image, but both are wired in; remove one")
    shape = tuple(job.continue_from["samples"].shape)
    wanted = (job.height // 8, job.width // 8)
    if len(shape) != 5 or shape[0] != 1 or shape[1] != ComfyCodec.latent_channels or shape[3:] != wanted:
        raise BadInput(
            f"expected a video LATENT of one clip, 1 x 16 x frames x {wanted[0]} x {wanted[1]}, to go on from, but got "
            f"{' x '.join(map(str, shape))}; wire in the sampler's own latent, and set the size it was made in"
        )


def _presets(job: Job) -> tuple[Preset, Preset]:
    presets = preset_of(job.drafter), preset_of(job.target)
    if job.schedule is None:
        return presets
    return replace(presets[0], schedule=job.schedule), replace(presets[1], schedule=job.schedule)


def _given(job: Job, codec: ComfyCodec) -> Tensor | None:
    """Return the latents before the first new block, normalised, or None."""
    if job.continue_from is not None:
        return job.target.model.process_latent_in(job.continue_from["samples"].float())
    if job.start_image is None:
        return None
    image = job.start_image[:1, :, :, :3].movedim(-1, 1)
    fitted = comfy.utils.common_upscale(image, job.width, job.height, "lanczos", "center")
    return codec.encode(fitted[:, None])


def _make(
    job: Job,
    engine: Engine,
    conditions: Conditions,
    given: Tensor | None,
    block_frames: int,
    progress: NodeProgress,
    clock: Callable[[], float],
) -> tuple[Tensor, Tensor, list[BlockRecord]]:
    """Run the loop; return frames `f h w c`, latents `b c t h w` and the records."""
    spans = spans_of_clip(given.shape[2], block_frames) if given is not None else ()
    blocks = tuple(Block(s, given[:, :, s.start : s.stop], conditions(s.index)) for s in spans)
    timeline, shown = timeline_from_latents(blocks, engine.codec, engine.horizon)
    noise = KeyedNoise(seed=job.seed, channels=16, height=job.height // 8, width=job.width // 8)
    frames = [] if shown is None else [shown.cpu()]
    records = []
    for emitted in _loop(job)(
        engine,
        job.router.config,
        plan_spans(job.blocks, block_frames, timeline.history.frames),
        noise,
        conditions,
        drafter_context=job.drafter_context,
        start=timeline,
        clock=clock,
    ):
        progress.block(emitted.record, emitted.frames)
        frames.append(emitted.frames.cpu())
        records.append(emitted.record)
        timeline = emitted.timeline
    video = torch.cat(frames, dim=1)[0].movedim(1, -1).contiguous()
    return video, timeline.history.latents(0, timeline.history.frames), records


def _loop(job: Job) -> Callable[..., Iterator[Emitted]]:
    return partial(speculate_overlapped, device=job.drafter.load_device) if job.overlap else speculate


def _settings(job: Job, drafter: Preset, target: Preset) -> dict[str, Any]:
    router = asdict(job.router.config)
    router["script"] = "".join("a" if keep else "r" for keep in job.router.config.script)
    scorer = dict(job.router.scorer.describe()) if job.router.scorer else {"name": "none"}
    scorer.pop("notes", None)
    return {
        "drafter": _model_settings(job.drafter, drafter, job.kv_dtype),
        "target": _model_settings(job.target, target, job.kv_dtype),
        "scorer": scorer,
        "router": router,
        "seed": job.seed,
        "blocks": job.blocks,
        "width": job.width,
        "height": job.height,
        "drafter_context": job.drafter_context,
        "overlap": job.overlap,
        "device": str(job.target.load_device),
        "side_device": str(job.vae.device),
    }


def _model_settings(patcher: Any, preset: Preset, kv_dtype: str) -> dict[str, Any]:
    names = ("block_frames", "schedule", "policy", "context_frames", "window", "sink")
    return {
        "preset": preset.name,
        **{name: getattr(preset, name) for name in names},
        "loras_and_patches": len(patcher.patches),
        "bytes": patcher.model_size(),
        "kv_dtype": str(compute_dtype(patcher)).removeprefix("torch.") if kv_dtype == AUTO else kv_dtype,
    }


def _scorer_notes(job: Job, conditions: Conditions) -> tuple[str, ...]:
    if job.router.scorer is None:
        return ()
    scorer = job.router.scorer
    texts = dict.fromkeys(condition.gate_text for _, condition in conditions.entries)
    return (*scorer.describe()["notes"], *(note for text in texts for note in scorer.scorer.prompt_notes(text)))


def _notes_on(job: Job) -> tuple[str, ...]:
    """Return what was done beside the plain and exact, in the command line's sentences."""
    return (*([FP8_NOTE] if job.kv_fp8 else []), *([OVERLAP_NOTE] if job.overlap else []))
