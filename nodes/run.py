"""Run the sampler node: from its inputs to frames, latents and report.

Checks come first, then memory, then models. The request is resolved by the core, as for the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import comfy.model_management as mm
import comfyui_version
import torch
from comfy.model_patcher import ModelPatcher
from torch import Tensor

from ..sdvg_core.causal_wan.context import Wan
from ..sdvg_core.causal_wan.forward import PLAIN_STAGES
from ..sdvg_core.causal_wan.generator import build_engine
from ..sdvg_core.devices.device import device_clock, dtype_name, versions_on
from ..sdvg_core.engine.inputs import ControlClip
from ..sdvg_core.engine.plan import NO_TARGET_BLOCK, RunPlan, has_partial_blocks, most_handover
from ..sdvg_core.engine.records import BlockRecord
from ..sdvg_core.engine.run import Run
from ..sdvg_core.errors import BadInput, MissingModel
from ..sdvg_core.memory.plan import image_note
from ..sdvg_core.memory.sizes import GB, image_bytes
from ..sdvg_core.report.assemble import ReportedModel, assemble_report, notes_on
from ..sdvg_core.report.run_report import RunReport
from ..sdvg_core.settings.context import Preset
from ..sdvg_core.settings.execution import Execution
from ..sdvg_core.settings.fields import as_json
from ..sdvg_core.settings.request import strength_of
from ..sdvg_core.text.prompts import Conditions, notes_on_starts, taken_as_text
from ..sdvg_core.videos.resolve import ResolvedRequest, budgeted_run, resolve_request
from ..sdvg_core.videos.start import (
    NOTHING,
    ExtendedStart,
    LatentStart,
    LockedStart,
    PictureStart,
    ReadStart,
    RestyledStart,
    Start,
)
from ..sdvg_core.weights.latents import lead_metadata, read_lead
from .host.compiled import Layers, layers_of
from .host.conditioning import read_conditions, read_controls, resolve_texts, states_control, strengths_of
from .host.job import Job, footage_of, start_picture, with_picture_of_start
from .host.loras import naming_loras, notes_on_loras
from .host.memory import Memory, check_room, memory_of, refusal_of, resident, weights_of
from .host.model import (
    check_control,
    check_loras,
    check_model,
    comfy_wan,
    config_of,
    origin_of,
    patcher_dtype,
    settle_attention,
)
from .host.reuse import begin_reuse, store_notes
from .host.self_check import check_host
from .host.vae import ComfyCodec, check_vae, codec_of, kind_of_wire
from .page.answers import ended
from .page.asked import Trace, asked_of_run
from .page.kept import beginnings_of, with_kept
from .page.live import LiveRun
from .page.progress import NodeProgress

logger = logging.getLogger(__name__)

LOADING = "loading: weights come when they are first used, so the first blocks take longer"
LONG_BYTES = GB  # of the frames; from this size on, a note states it


@dataclass(frozen=True, slots=True, eq=False)
class ReadyRun:
    """A checked job and everything for its run; no model is loaded yet.

    `kept_count`: number of blocks kept from an earlier run. `clip_blocks`: number of blocks of the clip before them.
    `asked_blocks`: number of blocks asked for, with the kept ones.
    """

    job: Job
    resolved: ResolvedRequest
    conditions: Conditions
    memory: Memory
    progress: NodeProgress
    kept_count: int
    clip_blocks: int
    asked_blocks: int
    notes: tuple[str, ...]


def run_job(job: Job, kept_blocks: str = "") -> tuple[Tensor, dict[str, Any], RunReport, LiveRun]:
    """Make the video; return frames `f h w c` in [0, 1], a LATENT, the report, and the run as the page saw it.

    `kept_blocks`: number and digest of blocks kept from an earlier run, or empty.
    Raises `BadInput` for any unusable input before a model is loaded, and if memory runs out.
    """
    ready = _prepare(job, kept_blocks)
    progress = ready.progress
    progress.show("\n".join(ready.notes))
    made = None
    try:
        with resident(ready.memory), naming_loras(job.api_prompt, job.node_id):
            if ready.memory.incomplete:
                progress.show("\n".join((LOADING, *ready.notes)))
            made = _make(ready, shows_clip=job.continues)
        progress.done(made[2])
        for line in ready.memory.measured():
            progress.show(line)
    except Exception as error:
        if not mm.is_oom(error):
            raise
    finally:
        progress.give_up()
    if made is None:
        # Inside the handler, our error would keep a reference to the first one, and so to the tensors of every stack
        # frame, for as long as ComfyUI shows it.
        raise refusal_of(ready.memory)
    frames, latents, report = made
    samples = ready.job.main.model.process_latent_out(latents).cpu()
    latent = {"samples": samples, **lead_metadata(ready.resolved.plan.lead, samples)}
    return frames, latent, report, progress.live


def _prepare(wired: Job, kept_blocks: str) -> ReadyRun:
    """Check a job and resolve its request. Raises `BadInput` for any unusable input.

    `wired`: the inputs as they are wired. Locked blocks take the place of a start.
    """
    of_models = {role: check_model(patcher, role) for role, patcher in wired.models.items()}
    of_loras = notes_on_loras(wired.api_prompt, wired.node_id, wired.models)
    check_vae(wired.vae, wired.tae_kind)
    # From here on a job is for the blocks after the kept ones; if all are kept, for one more, until `_shortened`.
    job = with_picture_of_start(with_kept(wired, kept_blocks))
    prompts, text_notes = resolve_texts(job.prompts)
    kept_count = job.kept.blocks if job.kept else 0
    makes_blocks = kept_count < wired.request.blocks
    controlled = makes_blocks and states_control(prompts[0].conditioning)
    job = replace(job, prompts=prompts, controlled=controlled, makes_blocks=makes_blocks)
    for role, control in job.controls.items():
        check_control(job.models[role], control, role)
    resolved = resolve(job)
    clip_blocks = len(resolved.plan.clip) - kept_count  # `plan.clip` includes the locked ones
    whole = resolved.plan
    first_block = whole.new_indices.start - kept_count
    unread = _unread_note(job, whole)
    has_pair = len(job.models) == 2
    headers = job.headers
    budgeted = budgeted_run(job.request.blocks, headers, whole.lead) if has_pair else None
    resolved = _shortened(resolved, job, kept_count, wired.request.blocks)
    job = job.restrict_to(resolved.plan.models_needed)
    check_loras(job.models)
    channels = job.main.model.diffusion_model.text_dim
    conditions = read_conditions(job.prompts, channels, scored=job.router.scorer is not None)
    lora_notes = dict.fromkeys(note for role in job.models_used for note in of_loras[role])
    progress = NodeProgress(
        job.node_id,
        wired.request.blocks,
        _most_steps(job.presets.values()),
        workflow_id=job.workflow_id,
        directions=wired.request.directions,
        takes=wired.request.takes,
        fps=resolved.request.fps,
        kept_count=kept_count,
        until=job.until_block,
        kept=kept_blocks,
        note=" ".join(
            (
                *job.headers.swapped_note,
                *lora_notes,
                *(note for note in resolved.notes if note == NO_TARGET_BLOCK),
            )
        ),
        prompt=job.prompt_id,
        signature=job.signature,
        before=first_block,
    )
    if job.signature:
        asked = asked_of_run(
            job.signature,
            whole,
            progress.live.begin,
            target_steps=len(headers.shape("target").timesteps),
            most_handover=most_handover(headers.shape("drafter"), headers.shape("target")),
            own_drafts=job.request.drafter_context == "own",
            budgeted=budgeted,
        )
        progress.live.trace = Trace(progress.live.begin["run"], asked)
    memory = memory_of(job)
    check_room(memory)
    of_patches = dict.fromkeys(note for role in job.models_used for note in of_models[role])
    model_notes = (*of_patches, *lora_notes, *job.notes)
    shown = range(first_block, first_block + (job.until_block or wired.request.blocks))
    of_starts = notes_on_starts((entry.index for entry in job.prompts), shown)
    image = (resolved.width, resolved.height, resolved.plan.stop)
    size_note = (image_note(*image),) if image_bytes(*image) >= LONG_BYTES else ()
    texts = [condition.text for _, condition in conditions.entries]
    part_notes = notes_on(job.execution, job.router.scorer, texts)
    notes = (
        *model_notes,
        *text_notes,
        *of_starts,
        *taken_as_text(texts),
        *resolved.notes,
        *unread,
        *memory.plan,
        *size_note,
        *part_notes,
    )
    for note in notes:
        logger.info("SDVG: %s", note)
    return ReadyRun(
        job, resolved, conditions, memory, progress, kept_count, clip_blocks, wired.request.blocks, notes
    )


def _unread_note(job: Job, plan: RunPlan) -> tuple[str, ...]:
    """Return a note on inputs without effect. After kept blocks there is none: those may have used the inputs."""
    names = [*job.router.unread, *(() if has_partial_blocks(plan) else job.router.of_partial_blocks)]
    if "drafter" not in plan.models_needed:
        names += ["draft_steps"] if job.draft_steps else []
        names += ["drafter_context"] if job.request.drafter_context != "committed" else []
    return () if job.kept or not names else (f"Without effect, as no block asks for it: {', '.join(names)}.",)


def _shortened(resolved: ResolvedRequest, job: Job, kept_count: int, last: int) -> ResolvedRequest:
    """Return the request up to `until_block`, or else up to block `last`: none is left if all are kept.

    `models_needed` stays that of the whole run: the rest comes next, with the same models in memory. After kept
    blocks, drop the note that no block needs the target: the kept ones may have used it. Raises `BadInput` if
    `until_block` is not one of the blocks to make.
    """
    if job.kept:
        resolved = replace(resolved, notes=tuple(note for note in resolved.notes if note != NO_TARGET_BLOCK))
    until = job.until_block or last
    if job.until_block and kept_count == last:
        raise BadInput(f"until_block is {until}, and every block is locked; set it to 0, or unlock some")
    if job.until_block and not kept_count < until <= last:
        made = f"the run makes blocks {kept_count + 1} to {last}"
        raise BadInput(f"until_block is {until}, and {made}; choose one of these, or 0 for all")
    blocks = resolved.plan.blocks[: until - kept_count]
    return replace(resolved, plan=replace(resolved.plan, blocks=blocks))


def _make(ready: ReadyRun, *, shows_clip: bool) -> tuple[Tensor, Tensor, RunReport]:
    """Return frames `f h w c`, latents `b c t h w` and the report. `shows_clip`: whether the frames begin with a clip.

    The engine, which holds the K/V caches, is built here so that it is freed on return.
    """
    job = ready.job
    live = ready.progress.live
    settle_attention(job.main.load_device)
    differences = check_host(job)
    layers = layers_of(job)
    run = _build_run(ready, layers)
    try:
        clips, latents, records = _play(run, ready.progress, ready.memory)
        if shows_clip:
            live.clip_frames = sum(map(len, clips[: ready.clip_blocks]))
        frames = torch.cat(clips)  # once: a long video has gigabytes
        if not job.until_block:  # a run up to a block is a trial beside the film: nothing to lock
            spans = (*run.plan.clip[ready.clip_blocks :], *run.plan.spans[: len(records)])
            size = (ready.resolved.width, ready.resolved.height)
            start = run.inputs.start
            clip = ready.resolved.start.clip_hash if start and start.pixels is not None else ""
            live.beginnings = beginnings_of(latents, spans, size, ready.resolved.plan.lead, clip)
    finally:
        ended(live, ready.memory.models.values())
    layer_notes = [part.note for part in layers.values() if part.note]
    return frames, latents, _report(ready, run, records, differences, layer_notes)


def resolve(job: Job) -> ResolvedRequest:
    """Resolve a job's request. Raises `BadInput` for a video that its models cannot make."""
    headers = job.headers
    request = replace(job.request, route=job.router.route)
    controls: tuple[ControlClip, ...] = ()
    if job.models and job.controlled:
        width, height = job.size
        size = (height // ComfyCodec.spatial_stride, width // ComfyCodec.spatial_stride)
        controls = read_controls(job.prompts[0].conditioning, job.main.model.process_latent_in, *size)
    try:
        return resolve_request(request, headers, start=_start(job), controls=controls)
    except MissingModel as problem:
        raise BadInput(str(problem)) from problem  # ComfyUI shows an error's class


def _start(job: Job) -> Start | ReadStart:
    """Return the start of a job's video: its locked blocks, or what is wired in."""
    start = _wired_start(job)
    kept = job.kept
    if kept is None:
        return start
    wired = start if isinstance(start, Start) else start(kept.width, kept.height)
    return LockedStart(kept.latents.float(), kept.lead, kept.given_frames, kept.clip, wired)


def _wired_start(job: Job) -> Start | ReadStart:
    """Return the start that is wired in."""
    usual = job.start.strength if job.start else ""
    strength = strength_of(usual, strengths_of(job.prompts), restyles=job.restyles)
    if job.models and job.continue_from is not None:
        given = job.continue_from["samples"]
        if not given.any():
            raise BadInput("the clip to continue is empty: all its latents are 0; leave it out")
        clip = job.main.model.process_latent_in(given.float())
        return LatentStart(clip, read_lead(job.continue_from, given))
    picture = job.start_image
    if picture is not None:
        return lambda width, height: PictureStart(*start_picture(picture, width, height))
    start = job.start
    if start is None:
        return NOTHING
    if job.restyles:
        return lambda width, height: RestyledStart(footage_of(start, width, height), strength)
    return lambda width, height: ExtendedStart(footage_of(start, width, height))


def _most_steps(presets: Collection[Preset]) -> int:
    """Return the most denoising steps of a block, of all models; it may be several of a model's own blocks."""
    frames = max(preset.block_frames for preset in presets)
    return sum(frames // p.block_frames * max(len(p.steps), len(p.first_steps)) for p in presets)


def _build_run(ready: ReadyRun, layers: Mapping[str, Layers]) -> Run:
    job = ready.job
    presets = job.presets
    wans: dict[str, Wan] = {
        role: comfy_wan(
            patcher,
            presets[role],
            kv_fp8=job.execution.kv_fp8,
            control=job.controls.get(role),
            stages=layers.get(role, Layers()).stages,
        )
        for role, patcher in job.models.items()
    }
    engine = build_engine(
        wans.get("drafter"),
        wans.get("target"),
        codec_of(job.vae, job.tae_kind),
        job.router.scorer,
        before_pass=ready.progress.before_pass,
    )
    compiled = frozenset(role for role, part in layers.items() if part.stages is not PLAIN_STAGES)
    return ready.resolved.prepare_run(
        engine, ready.conditions, begin_reuse(job, compiled), device_clock(*ready.memory.devices)
    )


def _play(run: Run, progress: NodeProgress, memory: Memory) -> tuple[list[Tensor], Tensor, list[BlockRecord]]:
    """Return frames `f h w c` by block, latents `b c t h w` and the records."""
    progress.begin()
    frames: list[Tensor] = []
    records: list[BlockRecord] = []
    first_kept = len(run.plan.clip) - progress.kept_count  # the blocks of a clip that is continued come before
    with closing(run.play(lambda: progress.live.stop_asked)) as video:
        for number, event in enumerate(video):
            memory.prioritise()
            progress.live.pixel_keys.append(event.key)
            if event.record:
                progress.block(event.record, event.frames)
                records.append(event.record)
            elif number >= first_kept:
                progress.kept_block(event.frames)
            frames.append(event.frames.cpu()[0].movedim(1, -1))
    history = event.history
    return frames, history.latents(0, history.frames), records


def _report(
    ready: ReadyRun, run: Run, records: list[BlockRecord], differences: dict[str, float], notes: list[str]
) -> RunReport:
    job = ready.job
    request = ready.resolved.request
    models = {
        role: _reported(patcher, job.presets[role], job.execution).as_dict()
        for role, patcher in job.models_used.items()
    }
    device = str(job.main.load_device)
    start = ready.resolved.start
    restyled = {"restyle": "IMAGE", "strength": start.strength} if isinstance(start, RestyledStart) else {}
    controls = [control.strength for control in run.inputs.controls]
    latent = "LATENT" if job.continue_from is not None or job.kept else None
    return assemble_report(
        (run,),
        records,
        {
            "drafter": models.get("drafter"),
            "target": models.get("target"),
            "vae": {
                "file": None,
                "dtype": dtype_name(job.vae.vae_dtype),
                "layers": HOST,
                "tae_kind": kind_of_wire(job.vae, job.tae_kind),
            },
            "text_encoder": {"file": None, "dtype": None},
            "device": device,
            "side_device": str(job.vae.device),
            "compile": job.execution.compile,
            "host_differences": differences,
        },
        fps=request.fps,
        versions={**versions_on(device), "comfyui": comfyui_version.__version__},
        notes=(*ready.notes, *notes, *ready.memory.measured(), *store_notes()),
        load={},
        request={
            **as_json(request),
            "blocks": ready.asked_blocks - ready.kept_count,
            "continue_from": "IMAGE" if job.start and not job.restyles else latent,
            "start_image": None if job.start_image is None else "IMAGE",
            **restyled,
            **({"control": "CONDITIONING", "control_strengths": controls} if controls else {}),
        },
        kept={"blocks": job.kept.blocks, "digest": job.kept.digest} if job.kept else None,
    )


HOST = "comfyui"
"""Value in the report for kernels and layers chosen by ComfyUI."""


def _reported(patcher: ModelPatcher, preset: Preset, execution: Execution) -> ReportedModel:
    origin = origin_of(patcher)
    dtype = dtype_name(patcher_dtype(patcher))
    return ReportedModel(
        file=origin.file.name if origin.file else None,
        dictionary=origin.state_dict,
        size=config_of(patcher.model.diffusion_model).size,
        preset=preset,
        dtype=dtype,
        kv_dtype=execution.kept_in(dtype),
        attention=HOST,
        quantisation=None,
        bytes=weights_of(patcher),
        loras_and_patches=len(patcher.patches),
    )
