"""One run of the sampler node: from its inputs to frames, latents and report."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import comfy.utils
import comfyui_version
import torch
from torch import Tensor

from ...sdvg_core.causal_wan.build import Wan, WanShape, build_engine
from ...sdvg_core.causal_wan.presets import Preset
from ...sdvg_core.devices.device import device_clock
from ...sdvg_core.devices.environment import versions_on
from ...sdvg_core.engine.fit import check_route, check_scorer
from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.engine.run import Run, plan_run
from ...sdvg_core.engine.size import check_given_shape, check_size
from ...sdvg_core.errors import BadInput
from ...sdvg_core.report.assemble import ModelSettings, PartSettings, assemble_report, notes_on
from ...sdvg_core.report.run_report import RunReport
from ...sdvg_core.text.prompts import Conditions
from .checks import check_model, check_pair
from .conditioning import read_conditions
from .job import Job
from .memory import Memory, memory_of, while_resident
from .model import comfy_wan, compute_dtype, config_of
from .presets import file_of, preset_of
from .progress import NodeProgress
from .vae import ComfyCodec, check_vae

logger = logging.getLogger(__name__)

FPS = 16.0  # Wan 2.1 was trained at this rate; the video's own rate is set where it is saved


def run_job(job: Job) -> tuple[Tensor, dict[str, Any], RunReport]:
    """Make the video: frames `f h w c` in [0, 1], a LATENT, and the report.

    Raises `BadInput` for any unusable input, before a model is loaded.
    """
    notes = (*check_model(job.drafter, "drafter"), *check_model(job.target, "target"))
    check_pair(job.drafter, job.target)
    check_vae(job.vae)
    drafter, target = (_wan(job, patcher) for patcher in (job.drafter, job.target))
    check_request(job, drafter, target)
    channels = job.target.model.diffusion_model.text_dim
    conditions = read_conditions(job.prompts, channels, scored=job.router.scorer is not None)
    progress = NodeProgress(
        job.node_id, job.blocks, len(_shape("target", target).timesteps), workflow_id=job.workflow_id
    )
    memory = memory_of(job, drafter.preset, target.preset)
    plan = memory.plan
    for line in plan:
        logger.info("SDVG memory: %s", line)
    progress.say("\n".join(plan))

    def make() -> tuple[Tensor, Tensor, RunReport]:
        # The engine, which holds the K/V caches, is built in here so that it is freed on return.
        run = _plan(job, drafter, target, conditions, memory, progress)
        frames, latents, records = _make(run, progress)
        return frames, latents, _report(job, run, conditions, records, (*notes, *plan))

    frames, latents, report = while_resident(memory, make)
    samples = job.target.model.process_latent_out(latents)
    return frames, {"samples": samples.cpu()}, report


def check_request(job: Job, drafter: Wan, target: Wan) -> None:
    """Raise `BadInput` for a size, a route or a start that these models cannot handle."""
    stride = ComfyCodec.spatial_stride
    check_size(job.width, job.height, stride * target.tree.patch_size[1])
    if job.continue_from is not None and job.start_image is not None:
        raise BadInput("a video starts from a clip or from an image, but both are wired in; remove one")
    if job.continue_from is not None:
        rows, columns = job.height // stride, job.width // stride
        check_given_shape(job.continue_from["samples"].shape, ComfyCodec.latent_channels, rows, columns)
    check_scorer(job.router.config, there_is_one=job.router.scorer is not None)
    check_route(
        _shape("drafter", drafter),
        _shape("target", target),
        ComfyCodec.latent_channels,
        job.router.config,
        blocks=job.blocks,
        frames_given=job.continue_from["samples"].shape[2]
        if job.continue_from
        else int(job.start_image is not None),
        ahead_from_pixels=job.execution.overlap and drafter.preset.policy == "recompute",
        drafter_context=job.drafter_context,
    )


def _wan(job: Job, patcher: Any) -> Wan:
    preset = preset_of(patcher)
    if job.schedule is not None:
        preset = replace(preset, schedule=job.schedule)
    return comfy_wan(patcher, preset, kv_fp8=job.execution.kv_fp8)


def _shape(name: str, wan: Wan) -> WanShape:
    return WanShape.of(name, config_of(wan.tree), wan.preset)


def _plan(
    job: Job, drafter: Wan, target: Wan, conditions: Conditions, memory: Memory, progress: NodeProgress
) -> Run:
    codec = ComfyCodec(job.vae)
    engine = build_engine(
        drafter,
        target,
        codec,
        job.router.scorer,
        overlap=job.execution.overlap,
        before_pass=progress.before_pass,
    )
    return plan_run(
        engine,
        job.router.config,
        conditions,
        blocks=job.blocks,
        seed=job.seed,
        width=job.width,
        height=job.height,
        drafter_context=job.drafter_context,
        given=_given(job, codec),
        ahead=job.drafter.load_device if job.execution.overlap else None,
        clock=device_clock(*memory.devices),
    )


def _given(job: Job, codec: ComfyCodec) -> Tensor | None:
    """Return the latents before the first new block, normalised, or None."""
    if job.continue_from is not None:
        return job.target.model.process_latent_in(job.continue_from["samples"].float())
    if job.start_image is None:
        return None
    image = job.start_image[:1, :, :, :3].movedim(-1, 1)
    fitted = comfy.utils.common_upscale(image, job.width, job.height, "lanczos", "center")
    return codec.encode(fitted[:, None])


def _make(run: Run, progress: NodeProgress) -> tuple[Tensor, Tensor, list[BlockRecord]]:
    """Return frames `f h w c`, latents `b c t h w` and the records."""
    timeline, shown, records = run.nothing, [], []
    for after, frames in run.replay():
        shown.append(frames.cpu())
        timeline = after
    for emitted in run.blocks(timeline):
        progress.block(emitted.record, emitted.frames)
        shown.append(emitted.frames.cpu())
        records.append(emitted.record)
        timeline = emitted.timeline
    video = torch.cat(shown, dim=1)[0].movedim(1, -1).contiguous()
    return video, timeline.history.latents(0, timeline.history.frames), records


def _report(
    job: Job, run: Run, conditions: Conditions, records: list[BlockRecord], notes: tuple[str, ...]
) -> RunReport:
    texts = [condition.gate_text for _, condition in conditions.entries]
    return assemble_report(
        run,
        records,
        PartSettings(
            drafter=_model_settings(job.drafter, preset_of(job.drafter), job.schedule),
            target=_model_settings(job.target, preset_of(job.target), job.schedule),
            vae={"file": None, "dtype": _name(job.vae.vae_dtype), "layers": HOST},
            text_encoder={"file": None, "dtype": None},
            device=str(job.target.load_device),
            side_device=str(job.vae.device),
            execution=job.execution,
        ),
        fps=FPS,
        versions={**versions_on(str(job.target.load_device)), "comfyui": comfyui_version.__version__},
        notes=(*notes, *notes_on(job.execution, job.router.scorer, texts)),
        continue_from=None if job.continue_from is None else "LATENT",
        start_image=None if job.start_image is None else "IMAGE",
    )


HOST = "comfyui"
"""The name in the report for kernels and layers that ComfyUI chooses."""


def _model_settings(patcher: Any, preset: Preset, schedule: str | None) -> ModelSettings:
    return ModelSettings(
        file=file_of(patcher),
        size=config_of(patcher.model.diffusion_model).size,
        preset=replace(preset, schedule=schedule) if schedule else preset,
        dtype=_name(compute_dtype(patcher)),
        attention=HOST,
        quantisation=None,
        bytes=patcher.model_size(),
        loras_and_patches=len(patcher.patches),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
