"""A film: a run for every shot that begins afresh, and their order.

Each run has its own plan, history, decoder state, route and colour hold, and knows nothing of the others, so a shot
in a film has the latents and pixels that it has alone. A film without such shots is one run. Prompt lines, takes,
directions and strengths count the blocks of the film; each run gets its part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ..engine.inputs import ControlClip
from ..engine.plan import NO_TARGET_BLOCK, Roles, RunPlan, has_partial_blocks
from ..engine.protocols import Engine
from ..engine.reuse import Reuse
from ..engine.run import Run
from ..engine.speculate import ShownBlock
from ..engine.types import Condition
from ..errors import BadInput, count
from ..files.sound import Sound
from ..files.video import check_video_size
from ..loading.headers import Headers
from ..settings.request import Shot, VideoRequest, read_shots, read_takes, strength_part
from ..settings.route import Route
from .clip_files import control_from_files, start_from_files
from .clips import FilmClip, FilmFootage, ReadClip, check_clips, cut_clip, place_clips, read_clip_file
from .control import ControlFootage, padding_note
from .resolve import WHOLE, ReadControl, ResolvedRequest, plan_of, resolve_request, size_of
from .start import (
    NOTHING,
    FrameStart,
    LockedBlocks,
    ReadStart,
    RestyledStart,
    Start,
    pixel_count,
)

NO_LOCKS: Mapping[str, LockedBlocks] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class FilmBlock:
    """A block of a film. `run`: number of its run, from 0. `frames`: what the video shows of it, `b f c h w`."""

    run: int
    shown: ShownBlock
    frames: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResolvedFilm:
    """A film that its models can make.

    `request`: for all of it. `runs`: one at least, in order. `clips`: shown as they are, in order. `is_trial`: of
    one shot, without the clips beside it. `own_latents`: see `FilmStart`. `more`: notes on the film.
    """

    request: VideoRequest
    runs: tuple[ResolvedRequest, ...]
    clips: tuple[FilmClip, ...] = ()
    is_trial: bool = False
    own_latents: Path | None = None
    more: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Pixels."""
        return self.runs[0].width

    @property
    def height(self) -> int:
        """Pixels."""
        return self.runs[0].height

    @property
    def route(self) -> Route:
        """The route of the first run; a budget buys each run its own."""
        return self.runs[0].plan.route

    @property
    def sound(self) -> Sound | None:
        """The sound of the mp4."""
        return self.runs[0].sound

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the report; those that are not on every shot name theirs."""
        keys: dict[str, list[str]] = {}
        for run in self.runs:
            for note in dict.fromkeys(run.notes):
                keys.setdefault(note, []).append(run.shot.key)
        on_all = len(self.runs)
        of_runs = (note if len(of) == on_all else f"Shot {', '.join(of)}: {note}" for note, of in keys.items())
        return (*of_runs, *(clip.footage.note for clip in self.clips), *self.more)

    @property
    def models_needed(self) -> Roles:
        """The models that a block may need."""
        return Roles().union(*(run.plan.models_needed for run in self.runs))

    @property
    def given(self) -> int:
        """The number of blocks of the clip that is continued."""
        run = self.runs[0]
        stop = run.plan.spans[0].index if run.plan.blocks else run.plan.clip[-1].index + 1
        return stop - run.start.locked_blocks

    @property
    def block_length(self) -> int:
        """The number of latent frames of a block."""
        spans = [span for run in self.runs for span in (*run.plan.clip, *run.plan.spans)]
        return spans[-1].frames

    @property
    def new_indices(self) -> range:
        """The indices of the new blocks; those of a clip that is continued come before."""
        return range(self.given, self.given + self.request.blocks)

    @property
    def first_numbers(self) -> Mapping[str, int]:
        """The number of each shot's first new block in the film, from 1, by the shot's key."""
        counts = (len(run.plan.blocks) for run in self.runs)
        return {run.shot.key: first for run, first in zip(self.runs, accumulate(counts, initial=1), strict=False)}

    @property
    def has_partial_blocks(self) -> bool:
        """True if a handover, or fewer steps, would leave the target only a part of some block."""
        return any(has_partial_blocks(run.plan) for run in self.runs)

    def up_to(self, block: int) -> ResolvedFilm:
        """Return the shot with a block of the film, from 1, up to that block, after the shots that it begins from.

        No other shot matters to it. Raises `BadInput` for a block that is not made.
        """
        number, within = self._place(block)
        alone = self.alone(self.runs[number].shot.key)
        return replace(alone, runs=(*alone.runs[:-1], alone.runs[-1].up_to(within)))

    def alone(self, key: str) -> ResolvedFilm:
        """Return the shot with a key, after the shots that it begins from. No other shot matters to it."""
        wanted = {key}
        runs: list[ResolvedRequest] = []
        for run in reversed(self.runs):
            if run.shot.key in wanted:
                wanted.add(run.shot.origin)
                runs.insert(0, run)
        return replace(self, runs=tuple(runs), is_trial=True)

    def _place(self, block: int) -> tuple[int, int]:
        """Return the run that makes a block of the film, and the block's number there, from 1.

        Raises `BadInput` if none does.
        """
        end = 0
        spans: list[tuple[int, int]] = []  # of blocks that are made, without what is locked between them
        for number, run in enumerate(self.runs):
            start, end = end, end + run.block_count
            first = start + run.start.locked_blocks + 1
            if first <= block <= end:
                return number, block - start
            if run.plan.blocks:
                joined = spans.pop()[0] if spans and spans[-1][1] == first - 1 else first
                spans.append((joined, end))
        if not spans:
            raise BadInput(f"until_block is {block}, and every block is locked; set it to 0, or unlock some")
        made = " and ".join(f"{first} to {last}" for first, last in spans)
        raise BadInput(
            f"until_block is {block}, and the run makes blocks {made}; choose one of these, or 0 for all"
        )

    def with_request(self, request: VideoRequest, notes: Sequence[str] = ()) -> ResolvedFilm:
        """Return the film for a request that differs in its seed, with more notes."""
        runs = tuple(replace(run, request=replace(run.request, seed=request.seed)) for run in self.runs)
        return replace(self, request=request, runs=runs, more=(*self.more, *filter(None, notes)))

    def prepare_runs(
        self,
        engine: Engine,
        conditions: Callable[[int], Condition],
        reuse: Reuse | None,
        clock: Callable[[], Any],
    ) -> tuple[Run, ...]:
        """Return the runs, for loaded models. `conditions`: by block of the film. `reuse`: stored results.

        A run that begins with the last frame of another, or of a clip, has none yet; `show` adds it.
        """
        return tuple(run.prepare_run(engine, conditions, reuse, clock) for run in self.runs)

    def play(self, runs: Sequence[Run], stop: Callable[[], bool] = bool) -> Generator[FilmBlock]:
        """Yield the blocks of the runs that were prepared, in order, without the clips that are shown as they are.

        `stop`: called after every new block, and before every run but the first; True ends the film there.
        """
        with closing(self.show(runs, stop)) as parts:
            for part in parts:
                if isinstance(part, FilmBlock):
                    yield part

    def show(self, runs: Sequence[Run], stop: Callable[[], bool] = bool) -> Generator[FilmBlock | FilmFootage]:
        """Yield the blocks of the runs that were prepared, and the clips between them, in order.

        `stop`: as of `play`. A film whose last block is made is shown to its end.
        """
        last_frames = {clip.name: in_levels(clip.last_frame) for clip in self.clips}
        for number, (resolved, run) in enumerate(zip(self.runs, runs, strict=True)):
            if number and stop():
                return
            yield from self._show_clips(resolved.shot.key)
            origin = resolved.shot.origin
            if isinstance(resolved.start, FrameStart):
                begins = resolved.start.clip(last_frames[origin], run.engine.codec, run.plan)
                run = replace(run, inputs=replace(run.inputs, start=begins))
            count = 0
            with closing(run.play(stop)) as blocks:
                for place, shown in enumerate(blocks):
                    # The frame that begins the shot is the last one that the other shot shows.
                    frames = shown.frames[:, 1:] if origin and place == 0 else shown.frames
                    if resolved.control_footage:
                        frames = resolved.control_footage.paste(frames, count)
                    count += frames.shape[1]
                    yield FilmBlock(number, shown, frames)
            last_frames[resolved.shot.key] = in_levels(frames[:, -1:])
        if shown.history.frames == runs[-1].plan.stop:
            yield from self._show_clips("")

    def name_of(self, part: FilmBlock | FilmFootage) -> str:
        """Return the name of the shot or clip of a part of the film."""
        return part.name if isinstance(part, FilmFootage) else self.runs[part.run].shot.key

    def _show_clips(self, before: str) -> Iterator[FilmFootage]:
        """Yield the clips before a shot, or at the end."""
        for clip in self.clips:
            if clip.before == before and not self.is_trial:
                yield from clip.pieces()


def in_levels(frames: Tensor) -> Tensor:
    """Return frames in the 255 levels of a picture file, so that a shot begins with one as with a start image."""
    return frames.float().clamp(0, 1).mul(255).round().div(255)


def resolve_film(request: VideoRequest, headers: Headers) -> ResolvedFilm:
    """Resolve a request whose start and control are in files.

    Raises `BadInput` for a film that the models cannot make.
    """
    check_clips(request)
    if request.context_blocks and not request.continue_from:
        raise BadInput("there is no clip of which context blocks would be; add --continue-from, or leave them out")
    given = start_from_files(request, headers)
    start = FrameStart() if read_shots(request.shots)[0].origin else given.start
    shot = given.shots[-1].shot
    read_control = partial(control_from_files, request) if request.control else None
    runs = resolve_runs(request, headers, start=start, shot=shot, read_control=read_control)
    check_video_size(runs[0].width, runs[0].height)
    film = ResolvedFilm(request=request, runs=runs, own_latents=given.own_latents, more=given.notes)
    return with_clips(film, partial(read_clip_file, request))


def with_clips(film: ResolvedFilm, read: ReadClip) -> ResolvedFilm:
    """Return a film with the clips that it shows as they are."""
    shots = [run.shot for run in film.runs]
    placed, late = place_clips(film.request, shots, film.new_indices.stop)
    clips = [
        cut_clip(clip, before, *read(clip.name, film.width, film.height), film.request.fps)
        for clip, before in placed
    ]
    return replace(film, clips=tuple(clips), more=tuple(filter(None, (*film.more, late))))


def resolve_runs(
    request: VideoRequest,
    headers: Headers,
    *,
    start: Start | ReadStart = NOTHING,
    shot: Shot = WHOLE,
    read_control: ReadControl | None = None,
    controls: Sequence[ControlClip] = (),
    locks: Mapping[str, LockedBlocks] = NO_LOCKS,
) -> tuple[ResolvedRequest, ...]:
    """Resolve the run of each shot of a film.

    `start`: of the first one. `shot`: of the clip that is continued. `locks`: by key, the first blocks of shots,
    which are not made again. For `read_control` and `controls` see `resolve_request`. Raises `BadInput` for a film
    that the models cannot make.
    """
    if check_locks(request, locks) or request.shots:
        return _resolve_shots(request, headers, start, shot, read_control, controls, locks)
    return (
        resolve_request(request, headers, start=start, shot=shot, read_control=read_control, controls=controls),
    )


def check_locks(request: VideoRequest, locks: Mapping[str, LockedBlocks]) -> bool:
    """Return whether blocks are locked. Raises `BadInput` for those of a shot that the film does not have."""
    shots = read_shots(request.shots)
    if others := locks.keys() - {shot.key for shot in shots}:
        raise BadInput(f"blocks of the shot {min(others)} are locked, and the film has none; unlock them")
    return bool(locks)


def _resolve_shots(
    request: VideoRequest,
    headers: Headers,
    start: Start | ReadStart,
    first_shot: Shot,
    read_control: ReadControl | None,
    controls: Sequence[ControlClip],
    locks: Mapping[str, LockedBlocks],
) -> tuple[ResolvedRequest, ...]:
    """Resolve the run of each shot. `first_shot`: of the clip that is continued."""
    if controls and request.shots:
        fault = "a control in the conditioning is one clip's, and the film has fresh shots"
        raise BadInput(f"{fault}; write cut in place of fresh, or leave WanVaceToVideo out")
    width, height = size_of(request, headers, start)
    if not isinstance(start, Start):
        start = start(width, height)
    control = read_control(width, height) if read_control else None
    first_lock = locks.get(read_shots(request.shots)[0].key)
    begun = first_lock.start(start) if first_lock else start
    whole, _ = plan_of(_after(request, first_lock), headers, begun)
    stride = headers.vae.temporal_stride
    parts = _parts(request, whole.new_indices.start - begun.locked_blocks)
    frames = _frames_shown(parts, whole, begun, stride)
    _check_length(start, control, sum(frames), stride * whole.spans[0].frames)
    runs = []
    shown = 0
    block = 0
    for number, (shot, part) in enumerate(parts):
        until = None if part is parts[-1][1] else shown + frames[number]
        lock = locks.get(shot.key)
        if lock and lock.blocks > part.blocks:
            fault = f"{count(lock.blocks, 'block')} of the shot {shot.key} are locked, and it has {part.blocks}"
            raise BadInput(f"{fault}; make it longer, or unlock some")
        before = _start_of(start, shot, shown, until)
        if isinstance(before, RestyledStart):
            before = replace(before, strength=strength_part(before.strength, block, block + part.blocks))
        run = resolve_request(
            _after(part, lock),
            headers,
            start=lock.start(before) if lock else before,
            shot=first_shot if shot == Shot() else shot,
            read_control=None if control is None else partial(_control_of, control, shown, until),
            controls=controls,
        )
        runs.append(_without_locked(run, part.blocks) if lock else run)
        shown += frames[number]
        block += part.blocks
    _check_blocks(runs)
    return tuple(runs)


def _parts(request: VideoRequest, given: int) -> list[tuple[Shot, VideoRequest]]:
    """Return the shots that are made, each with its part of the request. `given`: number of blocks of a clip.

    Raises `BadInput` for a shot that begins before the second new block.
    """
    shots = [shot for shot in read_shots(request.shots) if shot.start < given + request.blocks]
    for shot in shots[1:]:
        if shot.start <= given:
            fault = f"shot {shot.key} begins at block {shot.start + 1}, and the clip has {count(given, 'block')}"
            raise BadInput(f"{fault}; begin it at block {given + 2} or later, or leave the clip out")
    starts = [0, *(shot.start - given for shot in shots[1:]), request.blocks]
    parts = [request_part(request, first, stop) for first, stop in pairwise(starts)]
    return list(zip(shots, parts, strict=True))


def request_part(request: VideoRequest, first: int, stop: int) -> VideoRequest:
    """Return the request for the blocks `first` to `stop`, from 0, of a film."""
    takes = read_takes(request.takes, request.blocks)
    return replace(
        request,
        blocks=stop - first,
        directions=request.directions[first:stop],
        takes=",".join(f"{at - first + 1}:{take}" for at, take in takes.items() if first <= at < stop),
        strength=strength_part(request.strength, first, stop),
        shots="",
    )


def _after(request: VideoRequest, lock: LockedBlocks | None) -> VideoRequest:
    """Return the request for the blocks after locked ones; if none is left, for one more, which is not made."""
    if lock is None:
        return request
    if lock.blocks >= request.blocks:
        return replace(request, blocks=1, directions="", takes="", shots="")
    return request_part(request, lock.blocks, request.blocks)


def _without_locked(run: ResolvedRequest, blocks: int) -> ResolvedRequest:
    """Return the run of a shot of `blocks` blocks without its locked ones, which may have used the target."""
    notes = tuple(note for note in run.notes if note != NO_TARGET_BLOCK)
    return replace(run.up_to(blocks), notes=notes)


def _frames_shown(
    parts: Sequence[tuple[Shot, VideoRequest]], whole: RunPlan, start: Start, stride: int
) -> list[int]:
    """Return the number of pixel frames that the video shows of each shot.

    `start`: of `whole`, the film as one run.
    """
    first = replace(whole, blocks=whole.blocks[: parts[0][1].blocks - start.locked_blocks])
    latent_frames = [(shot, part.blocks * whole.spans[0].frames) for shot, part in parts[1:]]
    later = [stride * frames if shot.origin else pixel_count(frames, stride) for shot, frames in latent_frames]
    return [pixel_count(first.stop, stride) - start.padding(first, stride), *later]


def _check_length(start: Start, control: ControlFootage | None, frames: int, block: int) -> None:
    """Raise `BadInput` if a clip to restyle, or a control, is too short for a film of so many pixel frames."""
    if isinstance(start, RestyledStart):
        padding_note(start.footage.frames, frames, block, "clip to restyle")
    if control:
        padding_note(control.footage.frames, frames, block, "control")


def _start_of(start: Start, shot: Shot, first: int, until: int | None) -> Start:
    """Return the start of one shot: of a clip to restyle, its pixel frames `first` to `until`.

    Raises `BadInput` for a shot of a restyled clip that would begin with another's last frame.
    """
    if isinstance(start, RestyledStart):
        if shot.origin:
            raise BadInput(f"shot {shot.key} is restyled and from {shot.origin}; leave 'from {shot.origin}' out")
        return replace(start, footage=start.footage.part(first, until))
    if shot.origin:
        return FrameStart()
    return NOTHING if shot.start else start


def _control_of(control: ControlFootage, first: int, until: int | None, width: int, height: int) -> ControlFootage:
    """Return the control of one shot, of its pixel frames `first` to `until`."""
    return control.part(first, until)


def _check_blocks(runs: Sequence[ResolvedRequest]) -> None:
    """Raise `BadInput` if blocks of the shots have different lengths, as some shots need no target."""
    sizes = {span.frames for run in runs for span in run.plan.spans}
    if len(sizes) > 1:
        keys = ", ".join(run.shot.key for run in runs if "target" not in run.plan.models_needed)
        fault = f"the drafter alone makes the shots {keys}, in blocks shorter than the target's"
        raise BadInput(f"{fault}; direct one of their blocks to the target (t), or make them as other videos")
