"""The progress of many videos on a terminal: a line per worker or server, and one for all with the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from tqdm import tqdm

from ..engine.records import BlockRecord
from .summary import LETTERS, fate_of


class Lines:
    """Lines on a stream: on a terminal some of them stay and are rewritten, elsewhere they are left out."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._lines: list[tqdm[Any]] = []

    def say(self, line: str) -> None:
        """Write a line above those that stay."""
        if self._stream.isatty():
            tqdm.write(line, file=self._stream)
            return
        self._stream.write(line + "\n")
        self._stream.flush()

    def show(self, place: int, line: str) -> None:
        """Rewrite the line at a place, from 0."""
        if not self._stream.isatty():
            return
        while len(self._lines) <= place:
            below = len(self._lines)
            self._lines.append(tqdm(file=self._stream, position=below, bar_format="{desc}", dynamic_ncols=True))
        self._lines[place].set_description_str(line)

    def close(self) -> None:
        """Leave the lines in place."""
        for line in reversed(self._lines):
            line.close()


class CrowdBar:
    """Shows `videos` videos of `blocks` blocks on `stream`, standard error by default.

    On a terminal the lines are rewritten; elsewhere there is a line for every video. Always close it.
    """

    def __init__(
        self, videos: int, blocks: int, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = Lines(stream)
        self._videos, self._blocks, self._clock = videos, blocks, clock
        self._began = clock()
        self._ended = self._failed = self._made = 0
        self._routes: dict[int, tuple[int, str]] = {}

    def block(self, worker: int, video: int, record: BlockRecord) -> None:
        """A worker has finished a block of its video."""
        number, route = self._routes.get(worker, (video, ""))
        route = route if number == video else ""
        self._routes[worker] = video, route + LETTERS[fate_of(record)]
        self._made += not record.reused
        self._show(worker, f"worker {worker + 1}: video {video:04d}, {self._routes[worker][1]:.<{self._blocks}}")

    def ended(self, worker: int, video: int, said: str, *, failed: bool) -> None:
        """A video was made or given up; `said`: how."""
        self._ended, self._failed = self._ended + 1, self._failed + failed
        self._routes.pop(worker, None)
        self._out.say(f"video {video:04d} {said} (worker {worker + 1}); {self._all()}")
        self._show(worker, f"worker {worker + 1}: waiting")

    def again(self, worker: int, video: int, reason: str) -> None:
        """A video failed and is tried once more."""
        self._routes.pop(worker, None)
        self._out.say(f"video {video:04d} is tried once more: {reason} (worker {worker + 1})")

    def close(self) -> None:
        """Leave the lines in place."""
        self._out.close()

    def _all(self) -> str:
        return _tally(self._ended, self._videos, self._failed, _minutes(self._seconds_left()))

    def _seconds_left(self) -> float:
        """Predict from the blocks so far: videos under way count by the blocks they have."""
        under_way = sum(len(route) for _, route in self._routes.values())
        still = (self._videos - self._ended) * self._blocks - under_way
        return (self._clock() - self._began) / self._made * still if self._made else math.nan

    def _show(self, worker: int, line: str) -> None:
        self._out.show(0, self._all())
        self._out.show(worker + 1, line)


class ServersBar:
    """Shows `videos` videos that servers make; `names`: of the servers. Always close it."""

    def __init__(
        self,
        names: Sequence[str],
        videos: int,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._names, self._videos, self._clock = Lines(stream), names, videos, clock
        self._began = clock()
        self._ended = self._failed = 0

    def at(self, server: int, what: str) -> None:
        """Show on a server's line what it is at."""
        self._out.show(0, self._all())
        self._out.show(server + 1, f"{self._names[server]}: {what}")

    def say(self, server: int, what: str) -> None:
        """Tell something of a server that should stay to be read."""
        self._out.say(f"{self._names[server]} {what}")

    def ended(self, server: int, video: int, said: str, *, failed: bool) -> None:
        """A video was made or given up; `said`: how."""
        self._ended, self._failed = self._ended + 1, self._failed + failed
        self._out.say(f"video {video:04d} {said} ({self._names[server]}); {self._all()}")
        self._out.show(0, self._all())

    def again(self, server: int, video: int, reason: str) -> None:
        """A video failed and is tried once more."""
        self._out.say(f"video {video:04d} is tried once more: {reason} ({self._names[server]})")

    def close(self) -> None:
        """Leave the lines in place."""
        self._out.close()

    def _all(self) -> str:
        """Predict the time left from the videos that were made so far."""
        made = self._ended - self._failed
        still = self._videos - self._ended
        left = _minutes((self._clock() - self._began) / made * still) if made else ""
        return _tally(self._ended, self._videos, self._failed, left)


def _tally(ended: int, videos: int, failed: int, left: str) -> str:
    parts = (f"{ended}/{videos} videos", f"{failed} failed" if failed else "", f"{left} left" if left else "")
    return ", ".join(filter(None, parts))


def _minutes(seconds: float) -> str:
    if not math.isfinite(seconds):
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"
