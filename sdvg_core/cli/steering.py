"""Steer a live run from the terminal: a typed line is the prompt from the next block on, `/end` ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TextIO

from ..engine.records import BlockRecord
from ..errors import BadInput, quoted
from ..videos.live import AHEAD, Steering

LIVE_COMMANDS = "/cut, /fresh (with a text or without), /again 5, /hold, /resume, /end"


def ask(steering: Steering, line: str, understand: Callable[[str], str] = str) -> str:
    """Ask for what a line says; return the answer, or nothing for an empty line. Raises `BadInput` for any other.

    A line is a prompt, or one of `LIVE_COMMANDS`. `understand`: from a prompt to the one that is taken.
    """
    line = line.strip()
    if not line:
        return ""
    if not line.startswith("/"):
        prompt = understand(line)
        return f"from block {steering.steer(prompt)} on: {prompt}"
    word, _, rest = line.partition(" ")
    text = rest.strip() or None
    if text and word in ("/cut", "/fresh"):
        text = understand(text)
    if word == "/cut":
        return f"from block {steering.steer(text, cut=True)} on, a new scene"
    if word == "/fresh":
        return f"from block {steering.steer(text, fresh=True)} on, a shot of its own"
    if word == "/again" and text:
        return f"block {steering.again(_number(text))} once more"
    if word in ("/hold", "/resume", "/end") and not text:
        waits = {"/hold": "holds before block", "/resume": "goes on with block", "/end": "ends before block"}
        act = {"/hold": steering.hold, "/resume": steering.resume, "/end": steering.end}[word]
        return f"{waits[word]} {act()}"
    raise BadInput(f"{quoted(line, 40)} is no command; write {LIVE_COMMANDS}, or a prompt")


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"/again {text:.20} names no block; write for example /again 5") from None


class Pace:
    """How far a run is ahead of a viewer who began with its first block. `fps`: frames a second."""

    def __init__(self, fps: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fps = fps
        self._clock = clock
        self._due: float | None = None  # when what is made so far has been seen
        self._block = 0.0

    def add(self, frames: int) -> None:
        """Count a block that is made. One that is late is seen at once."""
        now = self._clock()
        self._block = frames / self._fps
        self._due = max(now, self._due or now) + self._block

    @property
    def ahead(self) -> float:
        """Seconds that are made and not seen yet."""
        return max(0.0, (self._due or 0.0) - self._clock())

    @property
    def waits(self) -> bool:
        """True if enough is made."""
        return self.ahead > AHEAD * self._block


class LiveTerminal:
    """The words and the pace of a live run in a terminal; from a pipe, a line for each block, and no pace."""

    def __init__(
        self,
        source: TextIO,
        fps: float,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        understand: Callable[[str], str] = str,
    ) -> None:
        """`understand`: from a prompt to the one that the models take in its place, of which it warns."""
        self._understand = understand
        self._source = source
        self._is_typed = source.isatty()
        self._say = say
        self._warn = warn
        self.pace = Pace(fps)
        self._asked = 0  # the block for which a line of the pipe was taken

    @contextmanager
    def listen(self, steering: Steering, stop: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """Take what is typed while the run goes on. `stop`: whether Ctrl-C asks to end it."""
        self._say(f"a line is the prompt from the next block on; {LIVE_COMMANDS}")
        if self._is_typed:
            threading.Thread(target=self._take_all, args=(steering,), name="steering", daemon=True).start()
        yield partial(self._wait, steering, stop)

    def show(self, number: int, record: BlockRecord, frames: int) -> None:
        """Say that a block is made, and how far the run is ahead."""
        self.pace.add(frames)
        ahead = f", {self.pace.ahead:.1f} s ahead" if self._is_typed else ""
        self._say(f"block {number}{ahead}: {record.prompt}")

    def _wait(self, steering: Steering, stop: Callable[[], bool]) -> bool:
        if stop():
            steering.end()
            return False
        if self._is_typed:
            return self.pace.waits
        if steering.held or steering.upcoming != self._asked:
            self._asked = steering.upcoming
            self._take_one(steering)
        return False

    def _take_one(self, steering: Steering) -> None:
        """Take the next line of a pipe. At its end nobody can let a held run go on."""
        line = self._source.readline()
        if line:
            self._take(steering, line)
        elif steering.held:
            steering.end()

    def _take_all(self, steering: Steering) -> None:
        for line in self._source:
            self._take(steering, line)

    def _take(self, steering: Steering, line: str) -> None:
        try:
            answer = ask(steering, line, self._understand)
        except BadInput as refusal:
            self._warn(str(refusal))
            return
        if answer:
            self._say(answer)
