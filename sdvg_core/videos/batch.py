"""Many videos of one call: what they share, which exist already, and every check that needs no weights."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoints.latents import load_latents
from ..checkpoints.model_files import ModelFiles
from ..engine.plan import MISSING, ModelSet
from ..errors import BadInput
from ..files.outputs import (
    CSV,
    EARLIER,
    FILES,
    LATENTS,
    LINES,
    REPORT,
    UNFINISHED,
    VIDEO,
    check_disk_space,
    check_unfinished,
    check_writable,
    lock_folder,
    unfinished_blocks,
    unfinished_request,
)
from ..memory.budget import mean_route_for_budget
from ..models.fingerprints import identify_parts
from ..models.headers import Headers, check_models
from ..models.loading import encode_prompts
from ..models.options import LoadOptions
from ..report.run_report import read_report
from ..request.request import VideoRequest
from ..request.resolve import ResolvedRequest, budgeted_run, predict_bytes, resolve_files
from ..text.prompts import PromptSchedule, check_prompt, unshown
from .blocks import check_reusable
from .identity import Identity, differences, digest_of, identify

OF_PARTS = {
    "drafter": ("drafter", "drafter_settings", "drafter_context"),
    "target": ("target", "target_settings", "weight_dtype"),
    "scorer": ("reward", "vocabulary", "reward_dtype", "crop"),
}
"""The options that have no effect in a video that does not ask for a part."""
SPELLED = {"reward_dtype": "--dtype reward=DTYPE"}
"""How options are spelled that share a flag."""
MOST_FOLDERS = 999
LONGEST_COMMAND = 1000


@dataclass(frozen=True, slots=True)
class Video:
    """One of the videos to make: what it should be, its folder, its prompts, and its identity.

    `notes`: on its route, for its report. `unfinished`: whether a stopped run left blocks of it. `exists`: whether
    it is already finished. `short`: whether it is finished with fewer blocks, because it was stopped as asked.
    """

    number: int
    request: VideoRequest
    folder: Path
    prompt: PromptSchedule
    identity: Identity
    notes: tuple[str, ...]
    unfinished: bool = False
    exists: bool = False
    short: bool = False

    @property
    def begun(self) -> bool:
        """Whether any of it exists."""
        return self.exists or self.short or self.unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The videos of one call: a prompt each, and what they share. It holds values only, so processes can send it.

    `output`: the folder to write into, if nothing there would be replaced, or if it has videos of this very
    request; otherwise the next free one of `output-2`, `output-3` ... Finished videos are kept. With `resume`, only
    `output`; with `overwrite`, only `output`, and its files are replaced. `last`: a file that
    the caller adds, by its path from the folder; without it nothing counts as finished.
    `reuse`: the folder of an earlier call, whose blocks are used again where they are provably the same. `private`:
    whether report and table have hashes in place of prompts. `seeds`: one video for each prompt and seed; empty for
    the request's seed. `numbered`: whether each video gets a numbered folder, as several always do. `command`: the
    words of the command line, to show how to finish the video. `stated`: the names of the options that the user
    gave, to say which have no effect.
    """

    files: ModelFiles
    load: LoadOptions
    request: VideoRequest
    prompts: tuple[PromptSchedule, ...]
    output: Path
    resume: bool = False
    overwrite: bool = False
    last: str | None = None
    gate_prompt: str | None = None
    reuse: Path | None = None
    private: bool = False
    seeds: tuple[int, ...] = ()
    numbered: bool = False
    command: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise BadInput("to resume keeps what is there, and to overwrite replaces it; leave one of them out")
        if twice := [seed for seed in self.seeds if self.seeds.count(seed) > 1]:
            raise BadInput(f"seed {twice[0]} is given twice and makes one video twice; leave one out")


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """Videos that can be made, by the models' headers. `batch`: with only the files that are needed.

    `folder`: what they, or their numbered folders, go into. `needed`: the models that any of them may ask for.
    `resolved`: the request of `batch`, which is that of the video that needs the most models.
    """

    folder: Path
    batch: Batch
    headers: Headers
    resolved: ResolvedRequest
    needed: ModelSet
    videos: tuple[Video, ...]

    @property
    def to_make(self) -> tuple[Video, ...]:
        """The videos that are not there yet."""
        return tuple(video for video in self.videos if not video.exists)

    def embed(self) -> dict[str, Tensor]:
        """Return the embedding of every prompt of the videos that are not there yet."""
        texts = [text for video in self.to_make for text in video.prompt.texts]
        return encode_prompts(self.batch.files, texts, self.batch.load) if texts else {}


@contextmanager
def plan_videos(batch: Batch) -> Iterator[BatchPlan]:
    """Check everything that needs no weights, and hold the folder that the videos go into until they are made.

    Notes for the user go to standard error. Raises `BadInput` for any unusable input.
    """
    request, prompts = batch.request, batch.prompts
    if batch.gate_prompt is not None:
        check_prompt(batch.gate_prompt)
    check_writable(batch.output)
    headers = check_models(batch.files, batch.load)
    resolved = resolve_files(request, headers)
    routed = route_prompts([prompt.first for prompt in prompts], headers, resolved)
    routes = {one: resolved if one == request else resolve_files(one, headers) for one, _ in routed}
    needed_by = {one: found.plan.models_needed for one, found in routes.items()}
    needed = ModelSet(**{role: any(getattr(one, role) for one in needed_by.values()) for role in MISSING})
    request = max(needed_by, key=lambda one: sum(asdict(needed_by[one]).values()))
    resolved, headers = routes[request], headers.restrict_to(needed)
    last = resolved.plan.spans[-1].index
    of_prompts = dict.fromkeys(note for prompt in prompts for note in unshown(prompt.starts, last))
    of_models = dict.fromkeys(note for found in routes.values() for note in found.notes)
    for note in (*of_models, *of_prompts):
        sys.stderr.write(f"sdvg: {note}\n")
    videos: list[Video] = []
    for prompt, (one, note) in zip(prompts, routed, strict=True):
        files = needed_files(batch.files, needed_by[one])
        for seed in batch.seeds or (request.seed,):
            own = replace(one, seed=seed)
            identity = identify(files, batch.load, own, prompt, batch.gate_prompt)
            of_video = (note, *unshown(prompt.starts, last))
            videos.append(Video(len(videos) + 1, own, batch.output, prompt, identity, of_video))
    numbered = batch.numbered or len(videos) > 1
    batch = replace(batch, request=request, files=needed_files(batch.files, needed), numbered=numbered)
    with _folder_for(batch, videos) as (folder, found, notes):
        planned = BatchPlan(folder, batch, headers, resolved, needed, found)
        if batch.reuse:
            _check_reuse(planned, batch.reuse)
        check_disk_space(folder, len(planned.to_make) * predict_bytes(resolved, headers.vae))
        sys.stderr.write("".join(f"{note}\n" for note in (*notes, *_unused(batch.stated, needed))))
        yield planned


def route_prompts(
    stated: Sequence[int], headers: Headers, resolved: ResolvedRequest
) -> list[tuple[VideoRequest, str]]:
    """Return the request of each prompt's video, and a note on its route, perhaps empty.

    All share one budget: prompts that state their first blocks get them, the others share the rest.
    `stated`: by prompt, how many first blocks it states; 0 for none. `resolved`: the request of all, resolved.
    Raises `BadInput` for more first blocks than a video has.
    """
    request = resolved.request
    if not any(stated):
        return [(request, "")] * len(stated)
    if max(stated) > request.blocks:
        fault = f"a prompt states {max(stated)} first blocks, but the video has {request.blocks}"
        raise BadInput(f"{fault}; state fewer")
    router = resolved.plan.router
    index = resolved.plan.spans[0].index
    given = router.place(index)
    blocks = given + request.blocks
    handover = router.handover
    share = None
    budget_note = ""
    if request.budget is not None:
        run = budgeted_run(headers, request.blocks, index)
        share, handover = mean_route_for_budget(request.budget, router, run, stated)
        budget_note = f"of a budget of {request.budget:g} over {len(stated)} prompts, "
    routes: list[tuple[VideoRequest, str]] = []
    for count in stated:
        if not count and share is None:
            routes.append((request, ""))
            continue
        first = given + (count or int(share or 0))
        route = replace(request.router, policy="first", forced_blocks=first, handover=handover)
        reason = "as its prompt states, " if count else ""
        note = f"{budget_note}{reason}the target makes the first {first} of {blocks} blocks."
        routes.append((replace(request, router=route, budget=None), note[0].upper() + note[1:]))
    return routes


def _unused(stated: Sequence[str], needed: ModelSet) -> tuple[str, ...]:
    """Return a line on the options of parts that no block asks for."""
    unused = {name for role, names in OF_PARTS.items() if not getattr(needed, role) for name in names}
    flags = [SPELLED.get(name, f"--{name.replace('_', '-')}") for name in stated if name in unused]
    return (f"sdvg: Without effect, as no block asks for it: {', '.join(flags)}.",) if flags else ()


@contextmanager
def _folder_for(batch: Batch, videos: Sequence[Video]) -> Iterator[tuple[Path, tuple[Video, ...], list[str]]]:
    """Hold the folder that has some of these videos already, or else the first that can take them.

    Yields it with its videos, and with lines that say why.
    """
    output, only = batch.output, batch.resume or batch.overwrite or batch.output.name in ("", "..")
    others = range(2, 0 if only else MOST_FOLDERS + 1)
    folders = [output, *(output.with_name(f"{output.name}-{number}") for number in others)]
    refused: list[BadInput] = []
    there = [folder for folder in folders if os.path.lexists(folder)]
    for begun, folder in [*((True, folder) for folder in there), *((False, folder) for folder in folders)]:
        with ExitStack() as held:
            try:
                held.enter_context(lock_folder(folder))
                found = _look_for(batch, videos, folder)
            except BadInput as error:
                refused.append(error)
                continue
            left = any(video.begun for video in found)
            if begun and not left:
                continue
            notes: list[str] = []
            if refused and folder != output:
                fault, *more = str(refused[0]).splitlines()
                notes += [f"sdvg: {fault.rpartition('; ')[0]}, so this goes into {folder}", *more]
            whole = all(video.exists for video in found)
            if left and not whole:
                notes.append(f"sdvg: this goes on with what an earlier call left in {folder}")
            if whole and (batch.last is None or os.path.lexists(folder / batch.last)):
                again = "add --overwrite or name another --output to make it again"
                notes.append(f"sdvg: {folder} has this very video; {again}")
            yield folder, found, notes
            return
    raise refused[0]


def _look_for(batch: Batch, videos: Sequence[Video], folder: Path) -> tuple[Video, ...]:
    """Find what exists of videos in `folder`. Raises `BadInput` if something else is in their place."""
    placed = [replace(one, folder=folder / f"{one.number:04d}" if batch.numbered else folder) for one in videos]
    if batch.overwrite:
        return tuple(replace(video, unfinished=_left_of(video)) for video in placed)
    found = tuple(look_up(video, batch.last) for video in placed)
    if batch.numbered and not any(video.begun for video in found):
        other = any(_taken(path) or unfinished_blocks(path) for path in folder.glob("[0-9]" * 4))
        table = [os.path.lexists(folder / name) for name in (CSV, LINES)]
        if other or table[0] != table[1]:  # a table of ours is two files
            raise BadInput(f"{folder} has other videos or another table; name another folder, or add --overwrite")
    return found


def _taken(folder: Path, *more: str) -> str | None:
    """Return the name of a file that a video would replace."""
    return next((name for name in (VIDEO, *FILES, *more) if os.path.lexists(folder / name)), None)


def _check_reuse(planned: BatchPlan, reuse: Path) -> None:
    identities = identify_parts(planned.batch.files, planned.batch.load, planned.headers.models)
    # An earlier call that was stopped has no folders for the last of its videos.
    folders = [folder_in(reuse, video, numbered=planned.batch.numbered) for video in planned.to_make]
    for folder in [folder for folder in folders if folder.is_dir()] or folders[:1]:
        check_reusable(folder, identities, planned.needed)


def needed_files(files: ModelFiles, needed: ModelSet) -> ModelFiles:
    """Return the files without those of parts that no block asks for."""
    return replace(
        files,
        drafter=files.drafter if needed.drafter else None,
        target=files.target if needed.target else None,
        reward=files.reward if needed.scorer else None,
        vocabulary=files.vocabulary if needed.scorer else None,
    )


def folder_in(reuse: Path, video: Video, *, numbered: bool) -> Path:
    """Return the folder of the earlier video to re-use: if there are many, the one with the same number."""
    return reuse / video.folder.name if numbered else reuse


def look_up(video: Video, last: str | None) -> Video:
    """Find what exists of a video. Raises `BadInput` if something else is in its place.

    `last`: a file without which nothing counts as finished.
    """
    folder, unfinished = video.folder, _left_of(video)
    if unfinished_blocks(folder) and not unfinished:
        left = unfinished_request(folder)
        then = {name: str(value) for name, value in left["request"].items()}
        raise BadInput(
            f"{folder} has an unfinished video that differs in {differences(then, video.identity)}; "
            "repeat its command or name another folder",
            _command(left),
        )
    taken = _taken(folder, *([last] if last else []))
    if taken is None:
        return replace(video, unfinished=unfinished)
    ours = _request_of(folder / LATENTS) == digest_of(video.identity)
    # A run that was killed while moving its files had put an earlier run's aside.
    if not ours and not (unfinished and (folder / UNFINISHED / EARLIER).is_dir()):
        raise BadInput(f"{folder} has a {taken} of another request; name another folder, or add --overwrite")
    finished = ours and not unfinished
    reported = finished and (folder / REPORT).exists() and (folder / VIDEO).exists()
    exists = reported and len(read_report(folder / REPORT).blocks) == video.request.blocks
    return replace(video, unfinished=unfinished, exists=exists, short=finished and not exists)


def _left_of(video: Video) -> bool:
    """Whether a stopped run of this very request left blocks. Raises `BadInput` if the files there are not ours."""
    check_unfinished(video.folder)
    return bool(unfinished_blocks(video.folder)) and unfinished_request(video.folder)["request"] == video.identity


def _command(left: Mapping[str, Any]) -> str:
    """Return a line with the command that finishes a run. Its words are quoted: the file may be anyone's."""
    words = left.get("command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return ""
    line = shlex.join(["python", "-m", "sdvg_core", *words])
    return f"To finish that one: {line}" if len(line) <= LONGEST_COMMAND and line.isprintable() else ""


def _request_of(latents: Path) -> object:
    """Return the hash of the request for which a video was made; None if that cannot be read."""
    try:
        return load_latents(latents).metadata.get("request")
    except (BadInput, OSError):
        return None
