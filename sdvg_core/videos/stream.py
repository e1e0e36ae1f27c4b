"""Stream the blocks of videos to a program that shows them itself, with models that are loaded once.

Nothing is written to disk. One video at a time, as two would share devices and memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

from torch import Tensor

from ..devices.device import device_clock
from ..engine.outside import checked_parts, outside_note
from ..engine.plan import EVERY_ROLE
from ..engine.protocols import BlockGenerator, Router, Scorer, VideoCodec
from ..engine.records import BlockRecord
from ..engine.reuse import PartKeys, Reuse, Store
from ..errors import BadInput, count
from ..loading.headers import check_models
from ..loading.load import load_encoder, load_models
from ..report.assemble import notes_on
from ..report.summary import block_line
from ..settings.fields import checked
from ..settings.load import LoadOptions
from ..settings.parts import check_part
from ..settings.request import VideoRequest
from ..settings.route import Budget, Custom, Route
from ..text.prompts import PromptSchedule, notes_on_starts, one_prompt, taken_as_text, with_prompt_lines
from ..weights.model_files import ModelFiles
from .clips import FilmFootage
from .film import ResolvedFilm, resolve_film
from .live import LiveFilm, Recording, Steering, live_film


class Busy(RuntimeError):
    """Another stream is open."""


class _EndOfStream(BaseException):
    """Ends the current block when the stream was closed. No `Exception`, so that no part takes it for a fault."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamBlock:
    """A block of the video; `str()` describes its outcome in a line.

    `number`: from 1, of `of`. `frames`: `f h w c` in [0, 1], on the VAE's device. `record`: decision, scores and
    cost; it holds the prompt's text.
    """

    number: int
    of: int
    frames: Tensor
    record: BlockRecord

    def __str__(self) -> str:
        return block_line(self.record, self.number, self.of)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamClip:
    """A part of a clip that the video shows as it is between its shots; `str()` names it.

    `name`: of the clip, such as `#a`. `frames`: `f h w c` in [0, 1], on the CPU.
    """

    name: str
    frames: Tensor

    def __str__(self) -> str:
        return f"clip {self.name}: {count(len(self.frames), 'frame')}"


class Stream(Iterator[StreamBlock | StreamClip], AbstractContextManager["Stream"]):
    """Iterator over the blocks of one video, and over clips that its prompt shows between its shots.

    `next` makes one in the calling thread; another may call `close`.
    """

    def __init__(
        self, blocks: Generator[StreamBlock | StreamClip], asked_to_end: threading.Event, notes: tuple[str, ...]
    ) -> None:
        """`notes`: warnings about the video."""
        self._blocks = blocks
        self._asked_to_end = asked_to_end
        self.notes = notes
        self._turn = threading.RLock()
        self._making = False
        self.ended = False

    def __next__(self) -> StreamBlock | StreamClip:
        """Return the next block, which is made now, or the next part of a clip.

        Raises `BadInput` if a model returns NaN or infinity.
        """
        with self._turn:
            if self.ended:
                raise StopIteration
            self._making = True
            try:
                return next(self._blocks)
            except _EndOfStream:
                self.ended = True
                raise StopIteration from None
            except BaseException:  # also at the end of the video
                self.ended = True
                raise
            finally:
                self._making = False

    def close(self) -> None:
        """End the video, from any thread; a second call does nothing.

        A block in the making ends before its next forward pass. Returns once the models are free.
        """
        self._asked_to_end.set()
        with self._turn:
            # False only in a signal handler of the thread that makes a block; the block then ends by itself.
            if not self._making:
                self._blocks.close()
                self.ended = True

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveStream(Stream):
    """A stream that is steered while it is made; `next` makes a block, any thread may ask for the other things.

    Each of them returns the number of the block that the answer counts from. A block whose number came before
    takes the place of that one and of all after it. See `Steering`.
    """

    def __init__(
        self,
        blocks: Generator[StreamBlock | StreamClip],
        asked_to_end: threading.Event,
        notes: tuple[str, ...],
        steering: Steering,
    ) -> None:
        super().__init__(blocks, asked_to_end, notes)
        self._steering = steering

    def steer(self, prompt: str | None = None, *, cut: bool = False, fresh: bool = False) -> int:
        """Change the prompt from the next block on; None keeps its text.

        `cut` begins a new scene with it, `fresh` a shot that remembers nothing.
        """
        return self._steering.steer(prompt, cut=cut, fresh=fresh)

    def again(self, block: int) -> int:
        """Go back to a block and make it with other noise."""
        return self._steering.again(block)

    def hold(self) -> int:
        """Let `next` wait before the next block, until `resume`."""
        return self._steering.hold()

    def resume(self) -> int:
        """Go on."""
        return self._steering.resume()

    def end(self) -> int:
        """End the video after the block in the making."""
        return self._steering.end()

    @property
    def recording(self) -> Recording | None:
        """What was made so far, for `Streamer.stream`; None before the first block."""
        return self._steering.recording()

    @property
    def dropped(self) -> tuple[Recording, ...]:
        """What was made before each `again`."""
        return tuple(self._steering.dropped)


def _by_router(route: Route | Budget, router: Router) -> Route:
    """Return a route whose policy is a router; its forced blocks, bail-out and handover stay."""
    if isinstance(route, Budget):
        raise BadInput("a budget chooses the route, and so does a router of your own; give one of them")
    policy = route.policy
    around = {name: getattr(policy, name) for name in ("forced_blocks", "bail_out") if hasattr(policy, name)}
    return replace(route, policy=Custom(router, **around))


class Streamer:
    """Loaded models that make one video at a time, block by block."""

    def __init__(
        self,
        files: ModelFiles,
        options: LoadOptions,
        *,
        keep_text_encoder: bool = True,
        drafter: BlockGenerator | None = None,
        target: BlockGenerator | None = None,
        scorer: Scorer | None = None,
        router: Router | None = None,
        codec: VideoCodec | None = None,
    ) -> None:
        """Load the models of `files`. Raises `BadInput` before weights are read if parts or models do not fit.

        `keep_text_encoder`: False loads it for every new prompt and frees it again. `drafter`, `target`, `scorer`,
        `router`, `codec`: custom parts that replace those of the files and requests. `files` must still name a
        transformer, for its shapes.
        """
        files = checked(files, ModelFiles, "files")
        options = checked(options, LoadOptions, "options")
        arguments = {"drafter": drafter, "target": target, "scorer": scorer, "router": router, "codec": codec}
        outside: dict[Any, Any] = {role: part for role, part in arguments.items() if part is not None}
        for role, part in outside.items():
            check_part(role, part)
        self._outside_notes = tuple(outside_note(role, part) for role, part in outside.items())
        self._headers = check_models(files, options)
        of_files = self._headers.models
        shape = next(iter(of_files.values()))
        roles = [role for role in ("target", "drafter") if role in outside or role in of_files]
        known = files.reward is not None or scorer is not None
        models = {role: of_files.get(role, shape) for role in roles}
        self._headers = replace(self._headers, models=models, scorer=known)
        self._router = outside.pop("router", None)
        parts = checked_parts(outside, self._headers.vae)
        encode = load_encoder(files, options) if keep_text_encoder else None
        # 8 MB for each prompt.
        self._embed = lru_cache(16)(encode or (lambda text: load_encoder(files, options)(text)))
        from_files = self._headers.restrict_to(EVERY_ROLE - parts.keys())
        files = replace(files, reward=None) if scorer else files
        self._loaded = replace(load_models(files, options, from_files), **parts)
        self._scorer = None if scorer else self._loaded.scorer
        self._lock = threading.Lock()
        self._newest: Callable[[], Stream | None] = lambda: None

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the models; `Stream.notes` are about a video."""
        of_files = chain.from_iterable(model.notes for model in self._headers.models.values())
        return (*dict.fromkeys(of_files), *self._loaded.notes, *self._outside_notes)

    def stream(self, request: VideoRequest, prompt: str | PromptSchedule) -> Stream:
        """Return the stream of a video, before any block is made.

        Raises `BadInput` for a video that the models cannot make, and `Busy` if another stream is open.
        """
        request = checked(request, VideoRequest, "request")
        schedule = prompt if isinstance(prompt, PromptSchedule) else one_prompt(prompt)
        if self._router is not None:
            request = replace(request, route=_by_router(request.route, self._router))
        resolved = resolve_film(with_prompt_lines(request, schedule), self._headers)
        loaded = self._loaded
        scorer = self._scorer if "scorer" in resolved.models_needed else None
        of_parts = (*notes_on(loaded.execution, scorer, schedule.texts, loaded.notes), *self._outside_notes)
        with self._lock:
            self._check_free()
            asked_to_end = threading.Event()
            blocks = self._blocks(resolved, schedule, asked_to_end)
            of_lines = notes_on_starts(schedule.starts, resolved.new_indices)
            of_prompt = (*of_lines, *taken_as_text(schedule.texts))
            stream = Stream(blocks, asked_to_end, (*resolved.notes, *of_prompt, *of_parts))
            # A weak reference: a stream that was dropped does not block the next.
            self._newest = weakref.ref(stream)
        return stream

    def live(self, request: VideoRequest, prompt: str | PromptSchedule) -> LiveStream:
        """Return the stream of a video that the drafter makes alone, and that is steered while it is made.

        `request`: its `blocks` are the most that it may have, its route is not read: how the recording is finished
        is chosen later. Raises `BadInput` for a video that cannot be steered, and `Busy` if another stream is open.
        """
        request = checked(request, VideoRequest, "request")
        schedule = prompt if isinstance(prompt, PromptSchedule) else one_prompt(prompt)
        film = live_film(request, schedule, self._headers)
        with self._lock:
            self._check_free()
            asked_to_end = threading.Event()
            stream = LiveStream(
                self._live_blocks(film, asked_to_end),
                asked_to_end,
                (*film.longest.notes, *film.notes),
                film.steering,
            )
            self._newest = weakref.ref(stream)
        return stream

    def _check_free(self) -> None:
        """Raise `Busy` if a stream is open."""
        newest = self._newest()
        if newest is not None and not newest.ended:
            raise Busy("another stream is open; read it to its end, close it, or load a second Streamer")

    def _live_blocks(self, film: LiveFilm, asked_to_end: threading.Event) -> Generator[StreamBlock | StreamClip]:
        def end_if_asked(kind: str = "") -> bool:
            if asked_to_end.is_set():
                raise _EndOfStream
            return False

        longest = film.longest.request
        engine = self._loaded.build(
            needed=film.longest.plan.models_needed, block_length=longest.block_length, before_pass=end_if_asked
        )
        # Of one run, with the same models throughout: what they are need not be told apart.
        keys = PartKeys(drafter="drafter", target="", codec="codec", scorer="")
        reuse = Reuse(store=Store(), part_keys=keys)
        clock = device_clock(self._loaded.device, self._loaded.side)
        with closing(film.play(engine, self._embed, reuse, clock, wait=end_if_asked)) as parts:
            for number, part in parts:
                if record := part.shown.record:
                    frames = part.frames[0].movedim(1, -1)
                    yield StreamBlock(number=number, of=longest.blocks, frames=frames, record=record)

    def _blocks(
        self, resolved: ResolvedFilm, schedule: PromptSchedule, asked_to_end: threading.Event
    ) -> Generator[StreamBlock | StreamClip]:
        def before_pass(kind: str) -> None:
            if asked_to_end.is_set():
                raise _EndOfStream

        conditions = schedule.conditions({text: self._embed(text) for text in schedule.texts})
        # One engine per video, as it holds the keys and values.
        engine = self._loaded.build(
            needed=resolved.models_needed, block_length=resolved.request.block_length, before_pass=before_pass
        )
        clock = device_clock(self._loaded.device, self._loaded.side)
        runs = resolved.prepare_runs(engine, conditions, None, clock)
        of = resolved.request.blocks
        number = 0
        with closing(resolved.show(runs)) as parts:
            for part in parts:
                frames = part.frames[0].movedim(1, -1)
                if isinstance(part, FilmFootage):
                    yield StreamClip(name=part.name, frames=frames)
                elif record := part.shown.record:
                    number += 1
                    yield StreamBlock(number=number, of=of, frames=frames, record=record)
