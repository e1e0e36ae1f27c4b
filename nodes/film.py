"""Make the sampler's film: its shots one after another, then frames, LATENT and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import comfyui_version
import torch
from comfy.model_patcher import ModelPatcher
from torch import Tensor

from ..sdvg_core.causal_wan.context import Wan
from ..sdvg_core.causal_wan.forward import PLAIN_STAGES
from ..sdvg_core.causal_wan.generator import build_engine
from ..sdvg_core.devices.device import device_clock, dtype_name, versions_on
from ..sdvg_core.engine.protocols import Engine
from ..sdvg_core.engine.records import BlockRecord
from ..sdvg_core.engine.reuse import Reuse
from ..sdvg_core.engine.run import Run
from ..sdvg_core.engine.types import Block, History
from ..sdvg_core.report.assemble import ReportedModel, assemble_report
from ..sdvg_core.report.joins import joins
from ..sdvg_core.report.run_report import RunReport
from ..sdvg_core.settings.context import Preset
from ..sdvg_core.settings.execution import Execution
from ..sdvg_core.settings.fields import as_json
from ..sdvg_core.settings.request import read_shots
from ..sdvg_core.text.prompts import Conditions
from ..sdvg_core.videos.clips import FilmFootage
from ..sdvg_core.videos.film import FilmBlock, ResolvedFilm
from ..sdvg_core.videos.resolve import ResolvedRequest
from ..sdvg_core.videos.tape import Tape
from ..sdvg_core.weights.latents import SavedShot, lead_metadata, shots_metadata
from .host.clips import film_sound
from .host.compiled import Layers, layers_of
from .host.job import Job
from .host.memory import Memory, weights_of
from .host.model import comfy_wan, config_of, origin_of, patcher_dtype, settle_attention
from .host.reuse import begin_reuse, store_notes
from .host.self_check import check_host
from .host.vae import codec_of, kind_of_wire
from .page.answers import ended
from .page.kept import beginnings_of
from .page.live import LiveRun
from .page.progress import NodeProgress


@dataclass(frozen=True, slots=True, eq=False)
class ReadyRun:
    """A checked job and everything for its run; no model is loaded yet.

    `given`: number of blocks of the clip that the film continues.
    """

    job: Job
    film: ResolvedFilm
    conditions: Conditions
    memory: Memory
    progress: NodeProgress
    given: int
    notes: tuple[str, ...]


def make_film(
    ready: ReadyRun, *, shows_clip: bool
) -> tuple[Tensor, dict[str, Any], RunReport, dict[str, Any] | None]:
    """Return frames `f h w c`, a LATENT, the report and an AUDIO. `shows_clip`: whether the frames begin with a clip.

    The engine, which holds the K/V caches, is built here so that it is freed on return.
    """
    job = ready.job
    live = ready.progress.live
    settle_attention(job.main.load_device)
    differences = check_host(job)
    layers = layers_of(job)
    runs = _build_runs(ready, layers)
    try:
        made = _play(ready, runs)
        shots = made.shots
        frames = torch.cat(made.frames)  # once: a long video has gigabytes
        if shows_clip:
            live.clip_frames = made.given_frames
        if not job.until_block:  # a run up to a block is a trial beside the film: nothing to lock
            for resolved, run, shot in zip(ready.film.runs, runs, shots, strict=False):
                _keep(live, resolved, run, shot)
    finally:
        ended(live, ready.memory.models.values())
    layer_notes = [part.note for part in layers.values() if part.note]
    sound = film_sound(job, ready.film.clips, made.tape.frames)
    return frames, _latent(ready, shots), _report(ready, runs, made, differences, layer_notes), sound


def host_engine(ready: ReadyRun, layers: Mapping[str, Layers]) -> Engine:
    """Return the engine of a run, of ComfyUI's models. `layers`: by role, those that torch compiled."""
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
    return build_engine(
        wans.get("drafter"),
        wans.get("target"),
        codec_of(job.vae, job.tae_kind),
        job.router.scorer,
        block_length=job.request.block_length,
        before_pass=ready.progress.before_pass,
    )


def reuse_of(job: Job, layers: Mapping[str, Layers]) -> Reuse | None:
    """Begin a run in the store, and return its `Reuse`; None if nothing is stored."""
    return begin_reuse(job, frozenset(role for role, part in layers.items() if part.stages is not PLAIN_STAGES))


def _build_runs(ready: ReadyRun, layers: Mapping[str, Layers]) -> tuple[Run, ...]:
    engine = host_engine(ready, layers)
    clock = device_clock(*ready.memory.devices)
    return ready.film.prepare_runs(engine, ready.conditions, reuse_of(ready.job, layers), clock)


@dataclass(slots=True, eq=False)
class MadeShot:
    """A shot as it was made. `given`: number of blocks before the film's own: a clip's, or a held picture.

    `first`: number of its first block in the film, from 1. `blocks`: with the given ones. `records`: of the new ones.
    """

    given: int
    first: int
    blocks: tuple[Block, ...] = ()
    records: list[BlockRecord] = field(default_factory=list)

    @property
    def latents(self) -> Tensor:
        """The latents `b c t h w`."""
        return History(self.blocks).latents(0, self.blocks[-1].span.stop)


@dataclass(slots=True, eq=False)
class MadeFilm:
    """A film as it was made. `frames`: `f h w c`, in order. `given_frames`: number up to the clip's end."""

    tape: Tape
    shots: list[MadeShot] = field(default_factory=list)
    frames: list[Tensor] = field(default_factory=list)
    given_frames: int = 0


def _play(ready: ReadyRun, runs: Sequence[Run]) -> MadeFilm:
    """Return the film as it was made, and show each block as it comes."""
    film = ready.film
    live = ready.progress.live
    ready.progress.begin()
    made = MadeFilm(Tape(measured=len(runs) + len(film.clips) > 1))
    with closing(film.show(runs, lambda: live.stop_asked)) as parts:
        for part in parts:
            made.frames.append(part.frames.cpu()[0].movedim(1, -1))
            if part.frames.shape[1]:
                made.tape.add(film.name_of(part), part.frames)
            if isinstance(part, FilmFootage):
                continue
            ready.memory.prioritise()
            live.pixel_keys.append(part.shown.key)
            if part.run == len(made.shots):
                made.shots.append(_begun(film.runs[part.run], ready.given))
            _add(made.shots[-1], part, ready.progress)
            if len(made.shots) == 1 and len(made.shots[0].blocks) == made.shots[0].given:
                made.given_frames = sum(map(len, made.frames))
    return made


def _add(shot: MadeShot, part: FilmBlock, progress: NodeProgress) -> None:
    """Add a block to a shot, and show it unless it is a given one."""
    shot.blocks = part.shown.history.blocks
    number = shot.first + len(shot.blocks) - 1 - shot.given
    if record := part.shown.record:
        progress.block(number, record, part.frames)
        shot.records.append(record)
    elif number >= shot.first:
        progress.kept_block(number, part.frames)


def shots_of_film(film: ResolvedFilm, given: int) -> list[list[Any]]:
    """Return key, number of the first block, from 1, and number of blocks of each shot, for the page.

    `given`: number of blocks of the clip that the film continues.
    """
    return [[run.shot.key, max(run.shot.start - given, 0) + 1, run.block_count] for run in film.runs]


def _begun(resolved: ResolvedRequest, given: int) -> MadeShot:
    """Return a shot of which nothing is made. `given`: number of blocks of the clip that its film continues."""
    # The given blocks of its plan include locked ones, which are the film's.
    before = len(resolved.plan.clip) - resolved.start.locked_blocks
    return MadeShot(given=before, first=max(resolved.shot.start - given, 0) + 1)


def _keep(live: LiveRun, resolved: ResolvedRequest, run: Run, shot: MadeShot) -> None:
    """Let the page lock the beginnings of a shot."""
    plan = run.plan
    spans = (*plan.clip[shot.given :], *plan.spans[: len(shot.records)])
    start = run.inputs.start
    clip = resolved.start.clip_hash if start and start.pixels is not None else ""
    kept = beginnings_of(shot.latents, spans, (resolved.width, resolved.height), plan.lead, clip)
    live.beginnings |= kept
    live.digests += kept


def _latent(ready: ReadyRun, shots: Sequence[MadeShot]) -> dict[str, Any]:
    """Return the LATENT of a film, with where each shot begins."""
    parts = [shot.latents for shot in shots]
    latents = torch.cat(parts, dim=2)
    samples = ready.job.main.model.process_latent_out(latents).cpu()
    firsts = (0, *accumulate(part.shape[2] for part in parts[:-1]))
    begins = [
        SavedShot(run.shot, first, run.plan.lead.start_image_frames)
        for run, first in zip(ready.film.runs, firsts, strict=False)
    ]
    return {
        "samples": samples,
        **lead_metadata(ready.film.runs[0].plan.lead, samples),
        **shots_metadata(begins),
    }


def _report(
    ready: ReadyRun,
    runs: Sequence[Run],
    made: MadeFilm,
    differences: dict[str, float],
    notes: list[str],
) -> RunReport:
    job = ready.job
    film = ready.film
    request = film.request
    models = {
        role: _reported(patcher, job.presets[role], job.execution).as_dict()
        for role, patcher in job.models_used.items()
    }
    device = str(job.main.load_device)
    restyled = {"restyle": "IMAGE", "strength": job.strength} if job.restyles else {}
    controls = [control.strength for control in runs[0].inputs.controls]
    latent = "LATENT" if job.continue_from is not None or job.locks else None
    return assemble_report(
        runs,
        [record for shot in made.shots for record in shot.records],
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
            "blocks": request.blocks - job.kept_count,
            "continue_from": "IMAGE" if job.start and not job.restyles else latent,
            "start_image": None if job.start_image is None else "IMAGE",
            **restyled,
            **({"control": "CONDITIONING", "control_strengths": controls} if controls else {}),
        },
        kept=_locks(job),
        numbers=_numbers(film, ready.given),
        given=ready.given,
        clips=[clip.as_dict() for clip in film.clips if clip.name in made.tape.frames],
        frames=made.tape.frames,
        joins=joins([torch.cat(levels).cpu() for levels in made.tape.levels.values()]),
    )


def _locks(job: Job) -> dict[str, Any] | None:
    """Return number and digests of the locked blocks, for the report."""
    if not job.locks:
        return None
    first_key = read_shots(job.request.shots)[0].key
    digests = [
        lock.digest if key == first_key else f"{key[1:]}={lock.blocks}:{lock.digest}"
        for key, lock in job.locks.items()
    ]
    return {"blocks": job.kept_count, "digest": ",".join(digests)}


def _numbers(film: ResolvedFilm, given: int) -> list[int]:
    """Return the film's numbers of the blocks that are made, from 1; empty if they follow on locked ones."""
    numbers = list[int]()
    locked = 0
    for run in film.runs:
        before = max(run.shot.start - given, 0) + run.start.locked_blocks
        numbers += range(before + 1, before + 1 + len(run.plan.blocks))
        locked += run.start.locked_blocks
    return [] if numbers == [*range(locked + 1, locked + 1 + len(numbers))] else numbers


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
