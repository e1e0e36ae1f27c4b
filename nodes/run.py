"""Run the sampler node: from its inputs to frames, latents and report.

Checks come first, then memory, then models. The request is resolved by the core, as for the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import comfy.model_management as mm
from torch import Tensor

from ..sdvg_core.engine.inputs import ControlClip
from ..sdvg_core.engine.plan import NO_TARGET_BLOCK
from ..sdvg_core.errors import BadInput, MissingModel
from ..sdvg_core.memory.plan import image_note
from ..sdvg_core.memory.sizes import GB, image_bytes
from ..sdvg_core.report.assemble import notes_on
from ..sdvg_core.report.run_report import RunReport
from ..sdvg_core.settings.context import Preset
from ..sdvg_core.settings.request import read_shots
from ..sdvg_core.text.prompts import notes_on_starts, taken_as_text
from ..sdvg_core.videos.clip_files import start_after
from ..sdvg_core.videos.film import ResolvedFilm, resolve_runs, with_clips
from ..sdvg_core.videos.resolve import WHOLE
from ..sdvg_core.videos.start import (
    NOTHING,
    ExtendedStart,
    FrameStart,
    PictureStart,
    ReadStart,
    RestyledStart,
    Start,
)
from ..sdvg_core.weights.latents import SavedShot, read_lead, shots_in
from .film import ReadyRun, make_film, shots_of_film
from .host.clips import read_wired_clip, unshown_note
from .host.conditioning import (
    fresh_shots,
    read_conditions,
    read_controls,
    resolve_texts,
    shown_clips,
    states_control,
)
from .host.encoded import ENCODED
from .host.job import Job, footage_of, start_picture, with_parts_of_start
from .host.loras import naming_loras, notes_on_loras
from .host.memory import check_room, memory_of, refusal_of, resident
from .host.model import check_control, check_loras, check_model
from .host.vae import ComfyCodec, check_vae
from .page.asked import Trace, asked_of_film
from .page.kept import with_locks
from .page.live import LiveRun
from .page.progress import NodeProgress

logger = logging.getLogger(__name__)

JOINS_NOTE = (
    "The latents are those of several shots: VAE Decode shows three frames too many where each one begins; take the "
    "sampler's frames."
)
LOADING = "loading: weights come when they are first used, so the first blocks take longer"
LONG_BYTES = GB  # of the frames; from this size on, a note states it


def run_job(
    job: Job, kept_blocks: str = ""
) -> tuple[Tensor, dict[str, Any], RunReport, LiveRun, dict[str, Any] | None]:
    """Make the video; return frames `f h w c` in [0, 1], a LATENT, the report, the run as the page saw it, an AUDIO.

    `kept_blocks`: number and digest of blocks kept from an earlier run, or empty.
    Raises `BadInput` for any unusable input before a model is loaded, and if memory runs out.
    """
    ready = prepare(job, kept_blocks)
    progress = ready.progress
    progress.show("\n".join(ready.notes))
    made = None
    try:
        with resident(ready.memory), naming_loras(job.api_prompt, job.node_id):
            if ready.memory.incomplete:
                progress.show("\n".join((LOADING, *ready.notes)))
            made = make_film(ready, shows_clip=job.continues)
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
    frames, latent, report, sound = made
    return frames, latent, report, progress.live, sound


def prepare(wired: Job, kept_blocks: str = "", **more: Any) -> ReadyRun:
    """Check a job and resolve its request. Raises `BadInput` for any unusable input.

    `wired`: the inputs as they are wired. Locked blocks of the first shot take the place of a start. `more`: further
    fields of the run's first event.
    """
    of_models = {role: check_model(patcher, role) for role, patcher in wired.models.items()}
    of_loras = notes_on_loras(wired.api_prompt, wired.node_id, wired.models)
    check_vae(wired.vae, wired.tae_kind)
    prompts, text_notes = resolve_texts(wired.prompts)
    request = replace(wired.request, shots=fresh_shots(wired.prompts), shown_clips=shown_clips(wired.prompts))
    # A lock takes the place of the LATENT, whose last shot goes on after it.
    shot = _last_of(wired.continue_from).shot if wired.continue_from is not None else WHOLE
    job = with_locks(with_parts_of_start(replace(wired, request=request, shot=shot)), kept_blocks)
    makes_blocks = job.kept_count < request.blocks
    controlled = makes_blocks and states_control(prompts[0].conditioning)
    job = replace(job, prompts=prompts, controlled=controlled, makes_blocks=makes_blocks)
    for role, control in job.controls.items():
        check_control(job.models[role], control, role)
    whole = resolve(job)
    given = whole.given
    unread = _unread_note(job, whole)
    film = whole.up_to(job.until_block) if job.until_block else whole
    job = job.restrict_to(whole.models_needed)
    check_loras(job.models)
    channels = job.main.model.diffusion_model.text_dim
    conditions = read_conditions(job.prompts, channels, scored=job.router.scorer is not None)
    lora_notes = dict.fromkeys(note for role in job.models_used for note in of_loras[role])
    progress = NodeProgress(
        job.node_id,
        request.blocks,
        _most_steps(job.presets.values()),
        workflow_id=job.workflow_id,
        directions=request.directions,
        takes=request.takes,
        fps=request.fps,
        kept_count=job.kept_count,
        until=job.until_block,
        kept=kept_blocks,
        note=" ".join(
            (
                *job.headers.swapped_note,
                *lora_notes,
                *(note for note in film.notes if note == NO_TARGET_BLOCK),
            )
        ),
        prompt=job.prompt_id,
        signature=job.signature,
        before=given,
        block_length=whole.block_length,
        shots=shots_of_film(whole, given),
        **more,
    )
    if job.signature:
        asked = asked_of_film(job.signature, whole, progress.live.begin, wired.headers)
        progress.live.trace = Trace(progress.live.begin["run"], asked)
    memory = memory_of(job)
    check_room(memory)
    of_patches = dict.fromkeys(note for role in job.models_used for note in of_models[role])
    model_notes = (*of_patches, *lora_notes, *job.notes)
    shown = range(given, given + (job.until_block or request.blocks))
    of_starts = notes_on_starts((entry.index for entry in job.prompts), shown)
    of_embeddings = ENCODED.notes(request.seed, job.prompts, conditions, shown.stop)
    of_joins = (JOINS_NOTE,) if film.runs[1:] else ()
    image = (film.width, film.height, sum(run.plan.stop for run in film.runs))
    size_note = (image_note(*image),) if image_bytes(*image) >= LONG_BYTES else ()
    texts = [condition.text for _, condition in conditions.entries]
    part_notes = notes_on(job.execution, job.router.scorer, texts)
    notes = (
        *model_notes,
        *text_notes,
        *of_starts,
        *of_embeddings,
        *taken_as_text(texts),
        *film.notes,
        *unread,
        *of_joins,
        *unshown_note(job.clips, request.shown_clips),
        *memory.plan,
        *size_note,
        *part_notes,
    )
    for note in notes:
        logger.info("SDVG: %s", note)
    return ReadyRun(job, film, conditions, memory, progress, given, notes)


def _unread_note(job: Job, film: ResolvedFilm) -> tuple[str, ...]:
    """Return a note on inputs without effect. After locked blocks there is none: those may have used the inputs."""
    names = [*job.router.unread, *(() if film.has_partial_blocks else job.router.of_partial_blocks)]
    if "drafter" not in film.models_needed:
        names += ["draft_steps"] if job.draft_steps else []
        names += ["drafter_context"] if job.request.drafter_context != "committed" else []
    return () if job.locks or not names else (f"Without effect, as no block asks for it: {', '.join(names)}.",)


def resolve(job: Job) -> ResolvedFilm:
    """Resolve a job's request. Raises `BadInput` for a film that its models cannot make."""
    headers = job.headers
    request = replace(job.request, route=job.router.route)
    locks = {key: lock.locked for key, lock in job.locks.items()}
    try:
        runs = resolve_runs(
            request, headers, start=start_of(job), shot=job.shot, controls=controls_of(job), locks=locks
        )
        return with_clips(ResolvedFilm(request=request, runs=runs), partial(read_wired_clip, job.clips))
    except MissingModel as problem:
        raise BadInput(str(problem)) from problem  # ComfyUI shows an error's class


def controls_of(job: Job) -> tuple[ControlClip, ...]:
    """Return the controls that are wired in, in latents."""
    if not (job.models and job.controlled):
        return ()
    width, height = job.size
    size = (height // ComfyCodec.spatial_stride, width // ComfyCodec.spatial_stride)
    return read_controls(job.prompts[0].conditioning, job.main.model.process_latent_in, *size)


def _last_of(latent: Mapping[str, Any]) -> SavedShot:
    """Return the last shot of a LATENT. Raises `BadInput` for damaged metadata."""
    return shots_in(latent, latent["samples"])[-1]


def start_of(job: Job) -> Start | ReadStart:
    """Return the start that is wired in. Of a LATENT of several shots it is the last one."""
    strength = job.strength
    origin = read_shots(job.request.shots)[0].origin
    if origin:
        if any(start is not None for start in (job.continue_from, job.start_image, job.start)):
            raise BadInput(f"the first shot begins from {origin}, and a start is wired in; leave one of them out")
        return FrameStart()
    if job.models and job.continue_from is not None:
        given = job.continue_from["samples"]
        if not given.any():
            raise BadInput("the clip to continue is empty: all its latents are 0; leave it out")
        clip = job.main.model.process_latent_in(given.float())
        return start_after(_last_of(job.continue_from), clip, read_lead(job.continue_from, given))
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
