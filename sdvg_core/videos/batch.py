"""Plan the videos of one call: check everything that needs no weights, and find what exists of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..engine.plan import Roles
from ..errors import BadInput
from ..files.outputs import BLOCKS_FOLDER, check_output
from ..loading.headers import FileHeaders, check_models
from ..loading.load import encode_prompts
from ..settings.fields import settings_of
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest
from ..settings.route import Budget, First, Gate, Route, WorstFrame
from ..text.prompts import PromptSchedule, notes_on_starts, taken_as_text
from ..weights.model_files import ModelFiles
from .asked import Batch
from .blocks import block_files
from .film import ResolvedFilm, resolve_film
from .fingerprint import Fingerprint, request_fingerprint
from .folders import State, claim_folder

OF_PARTS = {
    known.flags[0]: known.parts
    for config in (VideoRequest, Gate, WorstFrame, LoadOptions, ModelFiles)
    for known in settings_of(config).values()
    if known.parts
}
"""Option -> the parts that it is for, without which it has no effect."""
Resolved = Mapping[VideoRequest, ResolvedFilm]
"""The resolved films of a batch, by request. All have the batch's seed, so they differ in their routes only."""


@dataclass(frozen=True, slots=True)
class Video:
    """One video of a batch. `number`: from 1. `notes`: on its route, for its report. `state`: of its folder."""

    number: int
    prompt: PromptSchedule
    request: VideoRequest
    notes: tuple[str, ...]
    fingerprint: Fingerprint
    folder: Path
    state: State


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """A batch that was checked against the models' headers.

    `folder`: of the video, or of the numbered folders. `batch`: with only the files needed. `needed`: models that
    any video may need. `notes`: for the user.
    """

    folder: Path
    batch: Batch
    headers: FileHeaders
    resolved: Resolved
    needed: Roles
    videos: tuple[Video, ...]
    notes: tuple[str, ...]

    @property
    def to_make(self) -> tuple[Video, ...]:
        """The videos that are not finished."""
        return tuple(video for video in self.videos if video.state is not State.FINISHED)

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
    check_output(batch.output if batch.named else batch.output / "001", renamed=not batch.numbered)
    headers = check_models(batch.files, batch.load)
    usual = resolve_film(request, headers)
    handover = usual.route.handover
    asked = request.route.handover if isinstance(request.route, Route) else 0
    if "--handover" in batch.stated and asked > handover:
        fault = f"handover is {asked}, and the schedules and the drafts' steps allow {handover}"
        raise BadInput(f"{fault}; hand over {handover} at most")
    of_prompts = [request_of_prompt(prompt.first, usual) for prompt in prompts]
    resolved = {asked: usual if asked == request else resolve_film(asked, headers) for asked, _ in of_prompts}
    needed = Roles().union(*(film.models_needed for film in resolved.values()))
    headers = headers.restrict_to(needed)
    new = usual.new_indices
    wanted = [
        (prompt, replace(asked, seed=seed), (note, *notes_on_prompt(prompt, new)))
        for prompt, (asked, note) in zip(prompts, of_prompts, strict=True)
        for seed in batch.seeds_of(prompt)
    ]
    fingerprints = [_fingerprint(batch, resolved, of_video, prompt) for prompt, of_video, _ in wanted]
    batch = replace(batch, files=needed_files(batch.files, needed))
    with claim_folder(batch, fingerprints) as (folder, states):
        placed = zip(wanted, fingerprints, states.items(), strict=True)
        videos = tuple(
            Video(number, prompt, of_video, notes, fingerprint, path, state)
            for number, ((prompt, of_video, notes), fingerprint, (path, state)) in enumerate(placed, 1)
        )
        notes = [note for video in resolved.values() for note in video.notes]
        notes += [note for prompt in prompts for note in notes_on_prompt(prompt, new)]
        notes += _notes_on(folder, states.values(), numbered=batch.numbered)
        parts = needed | {"codec"}
        flags = [flag for flag in batch.stated if flag in OF_PARTS and parts.isdisjoint(OF_PARTS[flag])]
        if not any(film.has_partial_blocks for film in resolved.values()):
            flags += _of_partial_blocks(batch)
        if flags:
            notes.append(f"Without effect, as no block asks for it: {', '.join(flags)}.")
        planned = BatchPlan(folder, batch, headers, resolved, needed, videos, tuple(dict.fromkeys(notes)))
        if batch.reuse and planned.to_make:
            earlier = [folder_in(batch.reuse, video, numbered=batch.numbered) for video in planned.to_make]
            if not any(map(block_files, earlier)):
                raise BadInput(
                    f"{earlier[0]} has no {BLOCKS_FOLDER} to re-use; give the folder of an earlier video"
                )
        yield planned


def _of_partial_blocks(batch: Batch) -> list[str]:
    """Return the stated options on blocks of which the target makes a part."""
    if not isinstance(batch.request.route, Route):
        return []
    values = {"--handover": batch.request.route.handover, "--target-steps": batch.request.route.target_steps}
    return [flag for flag, value in values.items() if flag in batch.stated and value]


def _fingerprint(batch: Batch, resolved: Resolved, request: VideoRequest, prompt: PromptSchedule) -> Fingerprint:
    """Return the fingerprint of one video of a batch."""
    film = resolved[replace(request, seed=batch.request.seed)]
    files = needed_files(batch.files, film.models_needed)
    return request_fingerprint(files, batch.load, request, prompt, film.own_latents)


def notes_on_prompt(prompt: PromptSchedule, new: range) -> tuple[str, ...]:
    """Return notes on how a prompt's lines count, or are text. `new`: indices of the blocks that are made."""
    return (*notes_on_starts(prompt.starts, new), *taken_as_text(prompt.texts))


def _notes_on(folder: Path, states: Collection[State], *, numbered: bool) -> Iterator[str]:
    """Yield a note on what an earlier call left in `folder`."""
    if set(states) == {State.FINISHED}:
        these = "these very videos" if numbered else "this very video"
        yield f"{folder} has {these}; add --overwrite or name another --output to make it again"
    elif set(states) != {State.NEW}:
        yield f"this goes on with what an earlier call left in {folder}"


def request_of_prompt(first: int, resolved: ResolvedFilm) -> tuple[VideoRequest, str]:
    """Return the request of one prompt's video, and a note on its route or an empty string.

    `first`: number of first blocks that the prompt gives to the target (`[first N]`); 0 to keep the route.
    `resolved`: the batch's request. Raises `BadInput` for more blocks than the video has, with a budget, and if
    only the first of several shots goes on from a clip, as all have one route.
    """
    request = resolved.request
    if not first:
        return request, ""
    if first > request.blocks:
        fault = f"a prompt states {first} first blocks, but the video has {request.blocks}"
        raise BadInput(f"{fault}; state fewer")
    if isinstance(request.route, Budget):
        fault = f"a prompt states {first} first blocks, and a budget chooses as many for all"
        raise BadInput(f"{fault}; leave one of them out")
    blocks_before = resolved.runs[0].plan.blocks[0].place
    if blocks_before and len(resolved.runs) > 1:
        fault = f"a prompt states {first} first blocks of every shot, and the first goes on from a clip"
        raise BadInput(f"{fault}; leave [first {first}] out, and direct blocks to the target (t)")
    first_blocks = blocks_before + first
    route = replace(resolved.route, policy=First(first_blocks))
    blocks = blocks_before + request.blocks
    note = f"As its prompt states, the target makes the first {first_blocks} of {blocks} blocks."
    return replace(request, route=route), note


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
