"""A live run: the drafter alone makes it, and words reach it while it is made.

It is an ordinary run of its longest length that ends early, and whose prompts, shots and takes are written down as
they come: the recording. Made from nothing, the recording has the same bits, and the target can finish it.
"""

from __future__ import annotations

import itertools
import random
import string
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ..engine.inputs import ControlClip
from ..engine.plan import most_handover
from ..engine.protocols import Engine
from ..engine.reuse import Reuse
from ..engine.types import Condition
from ..errors import BadInput, count
from ..loading.headers import Headers
from ..settings.request import ROUTE_DECIDES, Shot, VideoRequest, read_takes, strength_part
from ..settings.route import Budget, First, Route
from ..text.prompts import PromptSchedule, check_prompt, with_prompt_lines
from .clip_files import control_from_files, start_from_files
from .film import FilmBlock, request_part
from .resolve import WHOLE, ReadControl, ResolvedRequest, resolve_request
from .start import NOTHING, ReadStart, RestyledStart, Start

DEFAULT_LONGEST = 80
"""Blocks of a live run at most: a minute."""
AHEAD = 2
"""Blocks that are made before they are due, where somebody watches."""
LOOKS_AGAIN = 0.2
"""Seconds after which a run that is held asks again whether it may go on, or must end."""
KEY_LENGTH = 3
ENDS_OTHERWISE = (
    "If the run ends before its clip does, its last block may be a little different when it is made again: a TAEHV "
    "encodes the end of a clip in its own way, and the Wan VAE does not."
)


# --- the recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A live run, or one that was set back, as an ordinary request and its prompt."""

    request: VideoRequest
    prompt: PromptSchedule


@dataclass(frozen=True, slots=True)
class Script:
    """The prompts and takes of a live run so far. `takes`: by new block, from 0. Prompts count a clip's too."""

    prompt: PromptSchedule
    takes: Mapping[int, int]

    def before(self, block: int, new: int) -> Script:
        """Return the script without what begins at `block` or later, which is the new block `new`, both from 0."""
        prompt = self.prompt
        entries = tuple(entry for entry in prompt.entries if entry[0] < block)
        return Script(
            replace(
                prompt,
                entries=entries or prompt.entries[:1],
                cuts=tuple(cut for cut in prompt.cuts if cut < block),
                shots=tuple(shot for shot in prompt.shots if shot.start < max(block, 1)),
                strengths=tuple(strength for strength in prompt.strengths if strength[0] < block),
            ),
            {at: take for at, take in self.takes.items() if at < new},
        )

    def takes_text(self) -> str:
        """Return the takes as text."""
        return ",".join(f"{at + 1}:{take}" for at, take in sorted(self.takes.items()))

    def text_at(self, block: int) -> str:
        """Return the prompt of a block."""
        return self.entry_at(block)[1]

    def entry_at(self, block: int) -> tuple[int, str]:
        """Return the prompt of a block, with the block that it begins at."""
        return next(entry for entry in reversed(self.prompt.entries) if entry[0] <= block)

    def shot_at(self, block: int) -> Shot:
        """Return the shot of a block."""
        return next(shot for shot in reversed(self.prompt.shots) if shot.start <= block)

    def with_prompt(self, block: int, text: str, *, cut: bool, key: str) -> Script:
        """Return the script with a prompt from `block` on, in place of all later ones; takes and strengths stay.

        `key`: of the shot that begins there; empty for none. The same text again is no change.
        """
        begun = replace(self.before(block, 0).prompt, strengths=self.prompt.strengths)
        if block and text == self.text_at(block - 1) and not (cut or key):
            return Script(begun, self.takes)
        prompt = replace(
            begun,
            entries=(*(entry for entry in begun.entries if entry[0] < block), (block, text)),
            cuts=(*begun.cuts, block) if cut else begun.cuts,
            shots=(*begun.shots, Shot(block, key)) if key else begun.shots,
        )
        return Script(prompt, self.takes)


def new_shot_key(shots: Sequence[Shot]) -> str:
    """Return a key that none of the shots has."""
    taken = {shot.key for shot in shots}
    while True:
        key = "#" + "".join(random.choices(string.ascii_lowercase + string.digits, k=KEY_LENGTH))
        if key not in taken:
            return key


# --- what is asked for, from any thread


@dataclass(frozen=True, slots=True)
class LiveShot:
    """The shot that goes on. `number`: in the film, from 0. `first`: its first new block, from 0.

    `edition`: how often the run had been set back when the shot began.
    """

    shot: Shot
    number: int
    first: int
    edition: int


class Steering:
    """What a live run is asked for, by any thread, and how far it has come.

    Every method that asks returns the new block, from 1, that the answer counts from, and raises `BadInput` for
    what cannot be. Those that the run itself calls, in its own thread, take blocks from 0.
    """

    def __init__(
        self, request: VideoRequest, prompt: PromptSchedule, given: int, *, follows_clip: bool = False
    ) -> None:
        """`request`: of the longest run. `given`: number of blocks of the clip that it continues.

        `follows_clip`: whether a restyled clip or a control sets what the blocks show.
        """
        self._request = request
        self._given = given
        self._follows_clip = follows_clip
        self._script = Script(prompt, read_takes(request.takes, request.blocks))
        self._changed = threading.Condition()
        self._next = 0  # the first new block that is not decided yet: what is asked for now counts from it
        self._made = 0
        self._edition = 0  # counts how often the run was set back
        self._takes_used: dict[int, int] = {}
        self.held = False
        self.ended = False
        self.dropped: list[Recording] = []

    # What is asked for.

    def steer(self, prompt: str | None = None, *, cut: bool = False, fresh: bool = False) -> int:
        """Change the prompt from the next block on; None keeps its text, to begin a scene or a shot with it.

        `cut`: the block begins a new scene. `fresh`: it begins a shot that remembers nothing.
        """
        if cut and fresh:
            raise BadInput("a fresh shot needs no cut; leave one of them out")
        if prompt is not None:
            check_prompt(prompt)
        if prompt is None and not (cut or fresh):
            raise BadInput("nothing is asked for; give a prompt, cut or fresh")
        if fresh and self._follows_clip:
            raise BadInput("a fresh shot would need a clip to restyle, or a control, of its own; use cut")
        with self._changed:
            self._check_going_on()
            block = self._given + self._next
            text = self._script.text_at(block) if prompt is None else prompt.strip()
            key = self._key_at(block, cut=cut, fresh=fresh) if self._next else ""
            # A scene that begins there stays, if only another text comes.
            cut = block > 0 and not key and (cut or block in self._script.prompt.cuts)
            self._script = self._script.with_prompt(block, text, cut=cut, key=key)
            return self._next + 1

    def _key_at(self, block: int, *, cut: bool, fresh: bool) -> str:
        """Return the key of the shot that begins at a block: a new one, or that which it has; empty for none."""
        shots = self._script.prompt.shots
        if fresh:
            return new_shot_key(shots)
        begins = next((shot.key for shot in shots if shot.start == block), "")
        return "" if cut else begins

    def again(self, block: int) -> int:
        """Set the run back to a block, from 1, to make it with other noise; what was asked after it is dropped."""
        with self._changed:
            self._check_going_on()
            if not self._next:
                raise BadInput("no block is made yet; wait for the first one")
            if not isinstance(block, int) or not 1 <= block <= self._next:
                fault = f"there is no block {block!r:.20} to make again"
                raise BadInput(f"{fault}; choose one of blocks 1 to {self._next}")
            if recording := self.recording():
                self.dropped.append(recording)
            at = block - 1
            take = max(self._takes_used.get(at, 1), self._script.takes.get(at, 1)) + 1
            self._takes_used[at] = take
            kept = self._script.before(self._given + block, block)
            self._script = Script(kept.prompt, {**kept.takes, at: take})
            self._next = at
            self._made = min(self._made, at)
            self._edition += 1
            self._changed.notify_all()
            return block

    def hold(self) -> int:
        """Wait before the next block, until `resume`."""
        return self._set_held(True)

    def resume(self) -> int:
        """Go on."""
        return self._set_held(False)

    def end(self) -> int:
        """End the run after the block in the making, which is kept; with none kept, after the first one.

        A second call changes nothing.
        """
        with self._changed:
            self.ended = True
            self._changed.notify_all()
            return self._next + 1

    @property
    def upcoming(self) -> int:
        """The block, from 1, that what is asked for now counts from."""
        with self._changed:
            return self._next + 1

    def _set_held(self, held: bool) -> int:
        with self._changed:
            self._check_going_on()
            self.held = held
            self._changed.notify_all()
            return self._next + 1

    def _check_going_on(self) -> None:
        if self.ended or self._next >= self._request.blocks:
            raise BadInput("the live run has come to its end; make another, or finish its recording")

    def recording(self) -> Recording | None:
        """Return what was made so far; None if no block was."""
        with self._changed:
            if not self._made:
                return None
            script = self._script.before(self._given + self._made, self._made)
            strength = strength_part(self._request.strength, 0, self._made)
            request = replace(self._request, blocks=self._made, takes=script.takes_text(), strength=strength)
            return Recording(request=request, prompt=script.prompt)

    # What the run asks for, in its own thread.

    def shot(self) -> LiveShot | None:
        """Return the shot that goes on; None at the end of the run."""
        with self._changed:
            if self._is_over() or self._next >= self._request.blocks:
                return None
            shots = self._script.prompt.shots
            shot = self._script.shot_at(self._given + self._next)
            return LiveShot(shot, shots.index(shot), max(shot.start - self._given, 0), self._edition)

    def decide(self, block: int, shot: LiveShot, wait: Callable[[], bool]) -> bool:
        """Decide on a new block, the shot's first or the one after its newest; False if the shot ends before it.

        `wait`: whether to wait with it; called while the run is held too, and may raise to interrupt it.
        """
        with self._changed:
            while True:
                if self._edition != shot.edition or self._is_over() or block >= self._request.blocks:
                    return False
                if block < self._next:
                    return True  # made before the run was set back
                waits = wait()
                if self._edition != shot.edition or self._is_over():
                    continue  # what is asked for may come while it waits, in this very thread
                if not (waits or self.held) or self.ended:
                    break
                self._changed.wait(LOOKS_AGAIN)
            at = self._given + block
            if block != shot.first and self._script.shot_at(at).start == at:
                return False
            self._next = block + 1
            return True

    def _is_over(self) -> bool:
        """Return whether no block is begun any more; a video has one at least."""
        return self.ended and self._made > 0

    def entry(self, block: int) -> tuple[int, str, bool]:
        """Return the prompt of a block of the film, from 0: where it begins, its text, whether with a scene."""
        with self._changed:
            start, text = self._script.entry_at(block)
            return start, text, start in self._script.prompt.cuts

    def join(self, block: int) -> str:
        """Return how a block of the film, from 0, is joined to the one before: `fresh`, `cut`, or nothing."""
        with self._changed:
            prompt = self._script.prompt
            fresh = any(shot.start == block for shot in prompt.shots[1:])
            return "fresh" if fresh else "cut" if block in prompt.cuts else ""

    def takes(self) -> str:
        """Return the takes as text."""
        with self._changed:
            return self._script.takes_text()

    def count(self, number: int, shot: LiveShot) -> bool:
        """Count a block that is made, from 1; False if it was made before, or the run was set back meanwhile."""
        with self._changed:
            if shot.edition != self._edition or number <= self._made:
                return False
            self._made = number
            return True


# --- the run


def live_request(request: VideoRequest, prompt: PromptSchedule, headers: Headers) -> VideoRequest:
    """Return the request of a live run: the drafter makes all blocks, as long as the target's, if there is one.

    As many predictions are kept with a draft as the target could go on from. Raises `BadInput` for what a live run
    does not take.
    """
    lined = with_prompt_lines(request, prompt)
    if "drafter" not in headers.models:
        raise BadInput("a live run is made by the drafter, and there is none; give one")
    if isinstance(request.route, Budget):
        raise BadInput("a budget is for two models, and the drafter makes a live run alone; leave it out")
    if request.directions.strip(ROUTE_DECIDES):
        raise BadInput("directions are for two models, and the drafter makes a live run alone; leave them out")
    if lined.shown_clips:
        raise BadInput("a live run shows no clips between its shots; leave their lines out")
    if any(shot.origin for shot in prompt.shots):
        raise BadInput("no shot of a live run begins with another's last frame; leave 'from' out")
    drafter, target = headers.shape("drafter"), headers.shape("target")
    if "," in request.shots:
        raise BadInput("the shots of a live run come from its prompt; leave them out of the request")
    return replace(
        request,
        shots="",
        route=Route(First(0), handover=most_handover(drafter, target)),
        directions="",
        block_length=target.block_frames,
    )


class LiveFilm:
    """A live run whose drafter is loaded. It is played once, in one thread; `steering` is for all."""

    def __init__(
        self,
        request: VideoRequest,
        prompt: PromptSchedule,
        headers: Headers,
        *,
        start: Start | ReadStart = NOTHING,
        shot: Shot = WHOLE,
        read_control: ReadControl | None = None,
        controls: Sequence[ControlClip] = (),
    ) -> None:
        """Resolve the longest run. `request`: of `live_request`. `start`: of its first shot. `shot`: of a clip.

        For `read_control` and `controls` see `resolve_request`. `notes`: on how exactly it can be made again.
        Raises `BadInput` for a run that the drafter cannot make.
        """
        self._request = replace(with_prompt_lines(request, prompt), shots="")
        self._headers = headers
        self._start = start
        self._shot = shot
        self._read_control = read_control
        self._controls = tuple(controls)
        self.longest = self._resolve(WHOLE, 0, request.takes)
        self._start = self.longest.start
        given = self.longest.plan.spans[0].index
        of_pixels = isinstance(self._start, RestyledStart) or read_control is not None
        follows_clip = of_pixels or bool(controls)
        if follows_clip and prompt.shots[1:]:
            raise BadInput("a fresh shot would need a clip to restyle, or a control, of its own; use cut")
        if late := [shot for shot in prompt.shots[1:] if shot.start <= given]:
            begins = f"shot {late[0].key} begins at block {late[0].start + 1}"
            fault = f"{begins}, and the clip has {count(given, 'block')}"
            raise BadInput(f"{fault}; begin it at block {given + 2} or later, or leave the clip out")
        # A TAEHV encodes the end of a clip in another way than its middle (measured on the miniature: 0.0012 of 1).
        self.notes = (ENDS_OTHERWISE,) if of_pixels and headers.vae.tae_kind else ()
        self.steering = Steering(request, prompt, given, follows_clip=follows_clip)
        self._conditions: dict[tuple[int, str, bool], Condition] = {}

    def play(
        self,
        engine: Engine,
        embed: Callable[[str], Tensor],
        reuse: Reuse,
        clock: Callable[[], Any],
        *,
        wait: Callable[[], bool] = bool,
    ) -> Generator[tuple[int, FilmBlock]]:
        """Yield the blocks of the clip that is continued, then each new one as it is made, until the run ends.

        Before each stands its number among the new ones, from 1; before one of the clip 0. A number that comes
        again, as the run was set back, takes the place of the first one and of all after it.
        `embed`: from a prompt to its embedding. `reuse`: keeps every block, so that a run that is set back makes
        none again. `wait`: see `Steering.decide`.
        """
        steering = self.steering
        clip_shown = False
        while (now := steering.shot()) is not None:
            if not steering.decide(now.first, now, wait):
                continue
            resolved = self._resolve(now.shot, now.first, steering.takes())
            run = resolved.prepare_run(engine, lambda index: self._condition(index, embed), reuse, clock)
            before = run.plan.new_indices.start - now.first - 1
            ends = partial(_ends, steering, now, itertools.count(now.first + 1), wait)
            with closing(run.play(ends)) as parts:
                for part in parts:
                    number = part.block.span.index - before if part.record else 0
                    if steering.count(number, now) if number else not clip_shown:
                        yield number, FilmBlock(now.number, part, part.frames)
            clip_shown = True

    def _resolve(self, shot: Shot, first: int, takes: str) -> ResolvedRequest:
        """Return the run of a shot that begins with the new block `first`, from 0, to the end of the longest."""
        request = replace(self._request, takes=takes)
        return resolve_request(
            request_part(request, first, request.blocks),
            self._headers,
            start=NOTHING if first else self._start,
            shot=self._shot if shot == WHOLE else shot,
            read_control=self._read_control,
            controls=self._controls,
        )

    def _condition(self, block: int, embed: Callable[[str], Tensor]) -> Condition:
        """Return the condition of a block of the film: the same object for as long as its prompt goes on."""
        start, text, cut = self.steering.entry(block)
        if (start, text, cut) not in self._conditions:
            self._conditions[start, text, cut] = Condition(embed(text), text, cut)
        return self._conditions[start, text, cut]


def _ends(steering: Steering, shot: LiveShot, blocks: Iterator[int], wait: Callable[[], bool]) -> bool:
    """Return whether a shot ends before the next of its blocks."""
    return not steering.decide(next(blocks), shot, wait)


def live_film(request: VideoRequest, prompt: PromptSchedule, headers: Headers) -> LiveFilm:
    """Return a live run whose start and control are in files. Raises `BadInput` for one that cannot be made."""
    live = live_request(request, prompt, headers)
    given = start_from_files(with_prompt_lines(live, prompt), headers)
    return LiveFilm(
        live,
        prompt,
        headers,
        start=given.start,
        shot=given.shots[-1].shot,
        read_control=partial(control_from_files, live) if live.control else None,
    )
