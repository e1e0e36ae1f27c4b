"""One run of the sampler node: from its inputs to frames, latents and report."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import comfyui_version
import torch
from torch import Tensor

from ...sdvg_core.causal_wan.build import Wan, WanShape, build_engine
from ...sdvg_core.causal_wan.presets import Preset
from ...sdvg_core.devices.device import device_clock, versions_on
from ...sdvg_core.engine.delivery import InOrder
from ...sdvg_core.engine.fit import check_given_shape, check_route, check_size
from ...sdvg_core.engine.records import BlockRecord
from ...sdvg_core.engine.roles import Roles
from ...sdvg_core.engine.route import Route, plan_route
from ...sdvg_core.engine.run import Run, plan_run
from ...sdvg_core.engine.speculate import Emitted
from ...sdvg_core.engine.types import blocks_before
from ...sdvg_core.errors import BadInput
from ...sdvg_core.plan.budget import spend
from ...sdvg_core.report.assemble import (
    FAST_NOTE,
    JUDGE_NOTE,
    ModelSettings,
    PartSettings,
    assemble_report,
    notes_on,
    swapped_note,
)
from ...sdvg_core.report.run_report import RunReport
from ...sdvg_core.text.prompts import Conditions
from .checks import check_model, check_pair
from .conditioning import read_conditions, settle_texts, unshown
from .forecast import ended
from .identity import begin_reuse, identify, store_notes
from .job import Job, crop_note, given_frames, given_latents
from .live import LiveRun
from .memory import Memory, memory_of, while_resident
from .model import comfy_wan, compute_dtype, config_of, dictionary_of, file_notes, file_of, preset_of
from .needs import plan_request
from .progress import NodeProgress
from .vae import ComfyCodec, check_decoders, codec_of, is_tae, kind_of_wire

logger = logging.getLogger(__name__)

NO_MODEL = "a video needs a drafter or a target, but neither is wired in; wire in at least one MODEL"
TWO_STARTS = "a video starts from a clip or from an image, but both are wired in; remove one"
FPS = 16.0  # Wan 2.1 was trained at this rate; the video's own rate is set where it is saved


def run_job(job: Job) -> tuple[Tensor, dict[str, Any], RunReport, LiveRun]:
    """Make the video: frames `f h w c` in [0, 1], a LATENT, the report, and what the page saw.

    Raises `BadInput` for any unusable input, before a model is loaded.
    """
    if not job.models:
        raise BadInput(NO_MODEL)
    ineffective = {role: check_model(patcher, role) for role, patcher in job.models.items()}
    check_decoders(job.vae, job.judge_vae, job.tae_kind)
    prompts, of_texts = settle_texts(job.prompts)
    job, bought = _within_budget(replace(job, prompts=prompts))
    with job.router.on_screen():
        job, route = _settle(job)
        presets = {role: _preset(job, role) for role in job.models}
        _check_request(job, route, presets)
    channels = job.main.model.diffusion_model.text_dim
    conditions = read_conditions(job.prompts, channels, scored=route.asked.scorer)
    progress = NodeProgress(
        job.node_id,
        job.blocks,
        sum(_most_steps(preset, presets) for preset in presets.values()),
        workflow_id=job.workflow_id,
        directions=job.directions,
        takes=job.takes,
        fps=FPS,
        prompt=job.prompt_id,
        signature=job.signature,
        before=len(route.clip),
    )
    memory = memory_of(job, presets)
    of_start = (*crop_note(job), *unshown(job.prompts, route.spans[-1].index))
    said = (*of_texts, *of_start, *_of_files(job), *bought, *_decoded_by(job), *_swapped(job), *memory.plan)
    notes = (*(note for role in job.models for note in ineffective[role]), *said)
    for line in notes:
        logger.info("SDVG: %s", line)
    progress.say("\n".join(said))

    def make() -> tuple[Tensor, Tensor, RunReport]:
        # The engine, which holds the K/V caches, is built in here so that it is freed on return.
        run = _plan(job, presets, conditions, memory, progress)
        try:
            frames, latents, records = _make(run, progress)
        finally:
            ended(progress.live, memory.patchers)
        return frames, latents, _report(job, run, presets, conditions, records, (*notes, *store_notes()))

    try:
        frames, latents, report = while_resident(memory, make)
        progress.done(report)
    finally:
        progress.give_up()
    samples = job.main.model.process_latent_out(latents)
    return frames, {"samples": samples.cpu()}, report, progress.live


def _within_budget(job: Job) -> tuple[Job, tuple[str, ...]]:
    """Return the job with the router that its budget buys, and a sentence that says so."""
    if job.router.budget is None:
        return job, ()
    if len(job.models) < 2:
        raise BadInput("a budget is spent on two models, but only one is wired in; wire in a drafter and a target")
    models = {role: (patcher, _preset(job, role)) for role, patcher in job.models.items()}
    size = {"width": job.width, "height": job.height, "blocks": job.blocks}
    request = plan_request(models, job.decoders, None, job.execution, **size)
    given = blocks_before(given_frames(job), request.block_frames)
    bought = spend(job.router.budget, job.router.config, replace(request, given_blocks=given))
    return replace(job, router=replace(job.router, config=bought.router, budget=None)), (bought.note,)


def _settle(job: Job) -> tuple[Job, Route]:
    """Return the job with only the MODELs that its run may ask for, and the run's route."""
    # Without a MODEL that is not asked for, blocks may have another size.
    job = job.only(_route(job).asked)
    return job, _route(job)


def _route(job: Job) -> Route:
    return plan_route(
        job.router.config,
        blocks=job.blocks,
        block_frames=preset_of(job.main).block_frames,
        there=Roles(
            drafter=job.drafter is not None,
            target=job.target is not None,
            scorer=job.router.scorer is not None,
        ),
        given_frames=given_frames(job),
        directions=job.directions,
        takes=job.takes,
    )


def _check_request(job: Job, route: Route, presets: Mapping[str, Preset]) -> None:
    """Raise `BadInput` for a size, a route or a start that these models cannot handle."""
    if len(presets) == 2:
        same = presets["drafter"].identity == presets["target"].identity
        check_pair(job.drafter, job.target, one_schedule=same)
    stride = ComfyCodec.spatial_stride
    check_size(job.width, job.height, stride * job.main.model.diffusion_model.patch_size[1])
    if job.continue_from is not None and job.start_image is not None:
        raise BadInput(TWO_STARTS)
    if job.continue_from is not None:
        rows, columns = job.height // stride, job.width // stride
        check_given_shape(job.continue_from["samples"].shape, ComfyCodec.latent_channels, rows, columns)
    drafter, target = (_shape(role, job, presets) for role in ("drafter", "target"))
    pixels = "drafter" in presets and presets["drafter"].policy == "recompute"
    check_route(
        drafter,
        target,
        ComfyCodec.latent_channels,
        route.router,
        route.spans,
        ahead_from_pixels=job.execution.overlap and pixels,
        drafter_context=job.drafter_context,
    )


def _most_steps(preset: Preset, presets: Mapping[str, Preset]) -> int:
    """Return the denoising steps of one of the run's blocks, perhaps made as several of the model's own."""
    pieces = max(other.block_frames for other in presets.values()) // preset.block_frames
    return pieces * max(len(preset.steps), len(preset.first_steps))


def _preset(job: Job, role: str) -> Preset:
    preset, schedule = preset_of(job.models[role]), job.schedules.get(role)
    return replace(preset, schedule=schedule) if schedule else preset


def _shape(role: str, job: Job, presets: Mapping[str, Preset]) -> WanShape:
    """Return the shape of a model; one that is absent is like the other."""
    there = role if role in presets else next(iter(presets))
    return WanShape.of(role, config_of(job.models[there].model.diffusion_model), presets[there])


def _of_files(job: Job) -> tuple[str, ...]:
    """Return what to tell of the MODELs' files, each note once."""
    return tuple(dict.fromkeys(note for patcher in job.models.values() for note in file_notes(patcher)))


def _decoded_by(job: Job) -> tuple[str, ...]:
    fast = (FAST_NOTE,) if is_tae(job.vae) else ()
    return (*fast, JUDGE_NOTE) if job.judge_vae is not None else fast


def _swapped(job: Job) -> tuple[str, ...]:
    if len(job.models) < 2:
        return ()
    return swapped_note(*(config_of(patcher.model.diffusion_model) for patcher in (job.drafter, job.target)))


def _plan(
    job: Job, presets: Mapping[str, Preset], conditions: Conditions, memory: Memory, progress: NodeProgress
) -> Run:
    codecs = {role: codec_of(vae, job.tae_kind) for role, vae in job.decoders.items()}
    codec = codecs["vae"]
    wans: dict[str, Wan] = {
        role: comfy_wan(patcher, presets[role], kv_fp8=job.execution.kv_fp8) for role, patcher in job.models.items()
    }
    engine = build_engine(
        wans.get("drafter"),
        wans.get("target"),
        codec,
        job.router.scorer,
        judge=codecs.get("judge"),
        overlap=job.execution.overlap,
        before_pass=progress.before_pass,
    )
    models = {role: (patcher, presets[role]) for role, patcher in job.models.items()}
    identities = identify(models, job.decoders, job.router.scorer, job.execution, job.tae_kind)
    return plan_run(
        engine,
        job.router.config,
        conditions,
        blocks=job.blocks,
        seed=job.seed,
        width=job.width,
        height=job.height,
        directions=job.directions,
        takes=job.takes,
        drafter_context=job.drafter_context,
        given=given_latents(job, codec),
        reuse=begin_reuse(job.reuse_bytes, identities),
        ahead=job.main.load_device if job.execution.overlap else None,
        side=job.vae.device,
        clock=device_clock(*memory.devices),
    )


def _make(run: Run, progress: NodeProgress) -> tuple[Tensor, Tensor, list[BlockRecord]]:
    """Return frames `f h w c`, latents `b c t h w` and the records."""
    progress.begin(len(run.reused))
    shown: list[Tensor] = []
    timeline, pixels = run.nothing, InOrder(lambda frames: shown.append(frames.cpu()))
    of_reused = iter(run.reused)
    for number, again in enumerate(run.replay(), len(run.reused) - len(run.before)):
        pixels.add(again.delivered)
        timeline = again.timeline
        if number >= 0:
            progress.block(next(of_reused), again.preview)
    records = list(run.reused)
    with closing(cast("Generator[Emitted, None, None]", run.blocks(timeline))) as blocks:
        for emitted in blocks:
            progress.block(emitted.record, emitted.preview)
            pixels.add(emitted.delivered)
            records.append(emitted.record)
            timeline = emitted.timeline
            if progress.stop_asked:
                break
    for blocks_left in pixels.finish():
        progress.delivering(blocks_left)
    return joined(shown), timeline.history.latents(0, timeline.history.frames), records


def joined(pieces: Sequence[Tensor]) -> Tensor:
    """Return pieces of a video, `1 f c h w`, as one `f h w c`. A long video has gigabytes, so it is copied once."""
    return torch.cat([piece[0].movedim(1, -1) for piece in pieces])


def _report(
    job: Job,
    run: Run,
    presets: Mapping[str, Preset],
    conditions: Conditions,
    records: list[BlockRecord],
    notes: tuple[str, ...],
) -> RunReport:
    texts = [condition.gate_text for _, condition in conditions.entries]
    models = {role: _model_settings(patcher, presets[role]) for role, patcher in job.models.items()}
    device = str(job.main.load_device)
    return assemble_report(
        run,
        records,
        PartSettings(
            drafter=models.get("drafter"),
            target=models.get("target"),
            vae=_vae_settings(job, job.vae),
            judge=_vae_settings(job, job.judge_vae) if job.judge_vae is not None else None,
            text_encoder={"file": None, "dtype": None},
            device=device,
            side_device=str(job.vae.device),
            execution=job.execution,
        ),
        fps=FPS,
        versions={**versions_on(device), "comfyui": comfyui_version.__version__},
        notes=(*notes, *notes_on(job.execution, job.router.scorer, texts)),
        continue_from=None if job.continue_from is None else "LATENT",
        start_image=None if job.start_image is None else "IMAGE",
    )


HOST = "comfyui"
"""The name in the report for kernels and layers that ComfyUI chooses."""


def _vae_settings(job: Job, vae: Any) -> dict[str, Any]:
    kind = kind_of_wire(vae, job.tae_kind) if is_tae(vae) else None
    return {"file": None, "dtype": _name(vae.vae_dtype), "layers": HOST, "tae_kind": kind}


def _model_settings(patcher: Any, preset: Preset) -> ModelSettings:
    return ModelSettings(
        file=file_of(patcher),
        dictionary=dictionary_of(patcher),
        size=config_of(patcher.model.diffusion_model).size,
        preset=preset,
        dtype=_name(compute_dtype(patcher)),
        attention=HOST,
        quantisation=None,
        bytes=patcher.model_size(),
        loras_and_patches=len(patcher.patches),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
