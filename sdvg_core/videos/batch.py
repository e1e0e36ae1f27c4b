"""Plan the videos of one call: check everything that needs no weights, choose folders, find existing videos.

A folder with another request's video is never overwritten: the next free name is used, as people repeat commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..checkpoints.latents import load_latents
from ..checkpoints.model_files import ModelFiles
from ..engine.plan import Roles
from ..errors import BadInput
from ..files.outputs import (
    BLOCKS,
    LATENTS,
    REPORT,
    TABLE,
    VIDEO,
    UnwritableFolder,
    check_output,
    check_unfinished,
    hidden_name,
    lock_folder,
    unfinished_blocks,
    unfinished_request,
    video_file,
)
from ..models.headers import FileHeaders, check_models
from ..models.loading import encode_prompts
from ..report.run_report import read_report
from ..request.resolve import ResolvedRequest, resolve_files
from ..settings.fields import settings_of
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest
from ..settings.route import RouterConfig
from ..text.prompts import PromptSchedule, taken_as_text, unshown
from .blocks import block_files
from .identity import Fingerprint, differences, digest_of, request_fingerprint

OF_PARTS = {
    known.flags[0]: known.part
    for config in (VideoRequest, RouterConfig, LoadOptions, ModelFiles)
    for known in settings_of(config).values()
    if known.part
}
"""Option -> the model that it is for, without which it has no effect."""
MOST_FOLDERS = 999
Routes = Mapping[VideoRequest, ResolvedRequest]
"""Resolved requests of a batch, by request; seeds are ignored, so they differ in their routers only."""


@dataclass(frozen=True, slots=True)
class Video:
    """One video of a batch.

    `number`: from 1. `notes`: on its route, for its report. `unfinished`: a stopped run left blocks of it.
    `exists`: it is finished. `short`: it is finished with fewer blocks, as it was stopped by the user.
    """

    number: int
    request: VideoRequest
    folder: Path
    prompt: PromptSchedule
    fingerprint: Fingerprint
    notes: tuple[str, ...]
    unfinished: bool = False
    exists: bool = False
    short: bool = False

    @property
    def begun(self) -> bool:
        """True if any part of it exists."""
        return self.exists or self.short or self.unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The videos of one call: their prompts and shared settings. Holds plain values, so that it can be pickled.

    `output`: folder of the video or of the numbered ones, if it is new, empty or has videos of this request;
    otherwise `output-2`, `output-3` ... is used. `resume`: only `output`, and keep finished videos. `overwrite`:
    only `output`, and replace videos. `last`: a file that the caller adds, relative to the folder; without it the
    video is unfinished. `reuse`: folder of an earlier call whose blocks are re-used where their cache keys agree.
    `private`: hashes instead of prompts in report and table. `seeds`: one video per prompt and seed; empty for the
    request's seed. `numbered`: a numbered folder even for a single video. `stated`: options that the user gave, to
    note those without effect.
    """

    files: ModelFiles
    load: LoadOptions
    request: VideoRequest
    prompts: tuple[PromptSchedule, ...]
    output: Path
    resume: bool = False
    overwrite: bool = False
    last: str | None = None
    reuse: Path | None = None
    private: bool = False
    seeds: tuple[int, ...] = ()
    numbered: bool = False
    stated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise BadInput("to resume keeps what is there, and to overwrite replaces it; leave one of them out")
        if twice := [seed for seed in self.seeds if self.seeds.count(seed) > 1]:
            raise BadInput(f"seed {twice[0]} is given twice and makes one video twice; leave one out")
        if self.seeds and any(prompt.seed is not None for prompt in self.prompts):
            raise BadInput("the prompts state seeds, and so do the options; leave one of them out")


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """A batch that was checked against the models' headers.

    `folder`: of the video, or of the numbered folders. `batch`: with only the files needed. `needed`: models that
    any video may need. `notes`: warnings for the user.
    """

    folder: Path
    batch: Batch
    headers: FileHeaders
    routes: Routes
    needed: Roles
    videos: tuple[Video, ...]
    notes: tuple[str, ...]

    @property
    def to_make(self) -> tuple[Video, ...]:
        """The videos that are not finished."""
        return tuple(video for video in self.videos if not video.exists)

    def embed(self) -> dict[str, Tensor]:
        """Return the embedding of every prompt of the unfinished videos."""
        texts = [text for video in self.to_make for text in video.prompt.texts]
        return encode_prompts(self.batch.files, texts, self.batch.load) if texts else {}


@contextmanager
def plan_videos(batch: Batch) -> Iterator[BatchPlan]:
    """Check a batch, choose its folder, and keep that locked inside the `with` block.

    Raises `BadInput` for any unusable input. Reads no weights.
    """
    request = batch.request
    prompts = batch.prompts
    numbered = batch.numbered or len(prompts) * max(len(batch.seeds), 1) > 1
    check_output(batch.output, renamed=not numbered)
    headers = check_models(batch.files, batch.load)
    resolved = resolve_files(request, headers)
    handover = resolved.plan.router.handover
    if "--handover" in batch.stated and request.router.handover > handover:
        fault = f"handover is {request.router.handover}, and the schedules and the drafts' steps allow {handover}"
        raise BadInput(f"{fault}; hand over {handover} at most")
    routed = [route_of_prompt(prompt.first, resolved) for prompt in prompts]
    routes = {route: resolved if route == request else resolve_files(route, headers) for route, _ in routed}
    needed = Roles().union(*(of_route.plan.models_needed for of_route in routes.values()))
    headers = headers.restrict_to(needed)
    last = resolved.plan.spans[-1].index
    notes = [note for of_route in routes.values() for note in of_route.notes]
    videos: list[Video] = []
    for prompt, (route, note) in zip(prompts, routed, strict=True):
        files = needed_files(batch.files, routes[route].plan.models_needed)
        of_prompt = (*unshown(prompt.starts, last), *taken_as_text(prompt.texts))
        notes += of_prompt
        seeds = batch.seeds or (request.seed,)
        for seed in seeds if prompt.seed is None else (prompt.seed,):
            wanted = replace(route, seed=seed)
            fingerprint = request_fingerprint(files, batch.load, wanted, prompt)
            number = len(videos) + 1
            videos.append(Video(number, wanted, batch.output, prompt, fingerprint, (note, *of_prompt)))
    batch = replace(batch, files=needed_files(batch.files, needed), numbered=numbered)
    with _folder_for(batch, videos) as (folder, placed, folder_notes):
        notes += folder_notes
        if flags := [flag for flag in batch.stated if flag in OF_PARTS and OF_PARTS[flag] not in needed]:
            notes.append(f"Without effect, as no block asks for it: {', '.join(flags)}.")
        planned = BatchPlan(folder, batch, headers, routes, needed, placed, tuple(dict.fromkeys(notes)))
        if batch.reuse and planned.to_make:
            earlier = [folder_in(batch.reuse, video, numbered=numbered) for video in planned.to_make]
            if not any(map(block_files, earlier)):
                raise BadInput(f"{earlier[0]} has no {BLOCKS} to re-use; give the folder of an earlier video")
        yield planned


def route_of_prompt(first: int, resolved: ResolvedRequest) -> tuple[VideoRequest, str]:
    """Return the request of one prompt's video, and a note on its route or an empty string.

    `first`: number of first blocks that the prompt gives to the target (`[first N]`); 0 to keep the route.
    `resolved`: the batch's request. Raises `BadInput` for more blocks than the video has, or with a budget.
    """
    request = resolved.request
    if not first:
        return request, ""
    if first > request.blocks:
        fault = f"a prompt states {first} first blocks, but the video has {request.blocks}"
        raise BadInput(f"{fault}; state fewer")
    if request.budget is not None:
        fault = f"a prompt states {first} first blocks, and a budget chooses as many for all"
        raise BadInput(f"{fault}; leave one of them out")
    router = resolved.plan.router
    blocks_before = router.place(resolved.plan.spans[0].index)
    forced_blocks = blocks_before + first
    route = replace(request.router, policy="first", forced_blocks=forced_blocks, handover=router.handover)
    blocks = blocks_before + request.blocks
    note = f"As its prompt states, the target makes the first {forced_blocks} of {blocks} blocks."
    return replace(request, router=route), note


@contextmanager
def _folder_for(batch: Batch, videos: Sequence[Video]) -> Iterator[tuple[Path, tuple[Video, ...], list[str]]]:
    """Lock the folder that has some of these videos already, else the first free one.

    Yield it with the videos placed in it, and notes on the choice. Raises the refusal of the first folder if none
    can be used.
    """
    output = batch.output
    only = batch.resume or batch.overwrite or output.name in ("", "..")
    others = range(2, 0 if only else MOST_FOLDERS + 1)
    folders = [output, *(output.with_name(f"{output.name}-{number}") for number in others)]
    refused: list[BadInput] = []
    # One listing, as on a network drive a thousand look-ups take seconds.
    names = {path.name for path in output.parent.glob("*")}
    existing = [folder for folder in folders if not names.isdisjoint((folder.name, hidden_name(folder.name)))]
    for begun, folder in [*((True, folder) for folder in existing), *((False, folder) for folder in folders)]:
        with ExitStack() as lock:
            try:
                placed = _look_for(batch, videos, folder, lock)
            except BadInput as error:
                refused.append(error)
                continue
            resumes = any(video.begun for video in placed)
            if begun and not resumes:
                continue
            notes: list[str] = []
            if refused and folder != output:
                notes.append(f"{str(refused[0]).rpartition('; ')[0]}, so this goes into {folder}")
            whole = all(video.exists for video in placed)
            if resumes and not whole:
                notes.append(f"this goes on with what an earlier call left in {folder}")
            if whole and (batch.last is None or os.path.lexists(folder / batch.last)):
                again = "add --overwrite or name another --output to make it again"
                what = "these very videos" if batch.numbered else "this very video"
                notes.append(f"{folder} has {what}; {again}")
            yield folder, placed, notes
            return
    raise refused[0]


def _look_for(batch: Batch, videos: Sequence[Video], folder: Path, lock: ExitStack) -> tuple[Video, ...]:
    """Lock `folder` and look each video up in it. Raises `BadInput` if something else is in their place.

    A folder that is not writable needs no lock if all of them are finished.
    """
    try:
        lock.enter_context(lock_folder(folder))
    except UnwritableFolder:
        with suppress(BadInput):
            looked_up = _look_into(batch, videos, folder)
            if all(video.exists for video in looked_up):
                return looked_up
        raise
    return _look_into(batch, videos, folder)


def _look_into(batch: Batch, videos: Sequence[Video], folder: Path) -> tuple[Video, ...]:
    placed = [replace(v, folder=folder / f"{v.number:04d}" if batch.numbered else folder) for v in videos]
    looked_up = tuple(look_up(video, batch) for video in placed)
    if batch.numbered and not (batch.overwrite or any(video.begun for video in looked_up)):
        names = {path.name.removeprefix(".").removesuffix(".unfinished") for path in folder.glob("*")}
        numbered = [folder / name for name in names if name.isdecimal()]
        if any(video_file(path) or unfinished_blocks(path) for path in numbered):
            raise BadInput(f"{folder} has other videos; name another folder, or add --overwrite")
    if batch.numbered:
        with suppress(FileNotFoundError), (folder / TABLE).open("rb") as file:
            if not file.read(40).startswith(b"number,folder,"):
                raise BadInput(f"{folder} has a table that is not ours; name another folder")
    return looked_up


def needed_files(files: ModelFiles, needed: Roles) -> ModelFiles:
    """Return the files without those of models that no block needs."""
    return replace(
        files,
        drafter=files.drafter if "drafter" in needed else None,
        target=files.target if "target" in needed else None,
        reward=files.reward if "scorer" in needed else None,
        vocabulary=files.vocabulary if "scorer" in needed else None,
    )


def folder_in(reuse: Path, video: Video, *, numbered: bool) -> Path:
    """Return the earlier video's folder for re-use; of numbered ones, that with the same number."""
    return reuse / video.folder.name if numbered else reuse


def look_up(video: Video, batch: Batch) -> Video:
    """Return the video with its state in its folder. Raises `BadInput` if something else is in its place."""
    folder = video.folder
    check_unfinished(folder)
    blocks = unfinished_blocks(folder)
    unfinished = bool(blocks) and unfinished_request(folder) == video.fingerprint
    if blocks and not (unfinished or batch.overwrite):
        then = {name: str(value) for name, value in unfinished_request(folder).items()}
        raise BadInput(
            f"{folder} has an unfinished video that differs in {differences(then, video.fingerprint)}; "
            "repeat its command or name another folder"
        )
    taken = video_file(folder, *([batch.last] if batch.last else []))
    if taken is None:
        if _is_full(folder):
            kind = "is no empty folder and has no video" if folder.is_dir() else "is a file"
            raise BadInput(f"{folder} {kind}; name another folder")
        return replace(video, unfinished=unfinished)
    request = _request_of(folder / LATENTS)
    if not isinstance(request, str):
        raise BadInput(f"{folder} has a {taken} that is not ours; name another folder")
    if batch.overwrite:
        return replace(video, unfinished=unfinished)
    if request != digest_of(video.fingerprint):
        raise BadInput(f"{folder} has a {taken} of another request; name another folder, or add --overwrite")
    reported = (folder / REPORT).exists() and (folder / VIDEO).exists()
    exists = reported and len(read_report(folder / REPORT).blocks) == video.request.blocks
    return replace(video, unfinished=unfinished, exists=exists, short=not exists)


def _is_full(folder: Path) -> bool:
    """True for a file, and for a folder with more than hidden files (which are moved with it)."""
    if not folder.is_dir():
        return os.path.lexists(folder)
    return any(not path.name.startswith(".") for path in folder.iterdir())


def _request_of(latents: Path) -> object:
    """Return the request's hash in a latents file, or None if it cannot be read."""
    try:
        return load_latents(latents).metadata.get("request")
    except (BadInput, OSError):
        return None
