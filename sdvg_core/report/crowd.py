"""The progress of many videos on a terminal: a line for each worker, and one for all, with the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from ..engine.records import BlockRecord
from .fates import LETTERS, fate_of


class CrowdBar:
    """Shows `videos` videos of `blocks` blocks on `stream`, standard error by default.

    On a terminal the lines are rewritten; elsewhere there is a line for every video. Always close it.
    """

    def __init__(
        self, videos: int, blocks: int, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._videos, self._blocks, self._clock = videos, blocks, clock
        self._began = clock()
        self._ended = self._failed = self._made = 0
        self._routes: dict[int, tuple[int, str]] = {}
        self._lines: list[tqdm[Any]] = []

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
        self._say(f"video {video:04d} {said} (worker {worker + 1}); {self._all()}")
        self._show(worker, f"worker {worker + 1}: waiting")

    def again(self, worker: int, video: int, reason: str) -> None:
        """A video failed and is tried once more."""
        self._routes.pop(worker, None)
        self._say(f"video {video:04d} is tried once more: {reason} (worker {worker + 1})")

    def close(self) -> None:
        """Leave the lines in place."""
        for line in reversed(self._lines):
            line.close()

    def _all(self) -> str:
        left = _minutes(self._seconds_left())
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._ended}/{self._videos} videos{failed}" + (f", {left} left" if left else "")

    def _seconds_left(self) -> float:
        """Predict from the blocks so far: videos under way count by the blocks they have."""
        under_way = sum(len(route) for _, route in self._routes.values())
        still = (self._videos - self._ended) * self._blocks - under_way
        return (self._clock() - self._began) / self._made * still if self._made else math.nan

    def _say(self, line: str) -> None:
        if self._stream.isatty():
            tqdm.write(line, file=self._stream)
            return
        self._stream.write(line + "\n")
        self._stream.flush()

    def _show(self, worker: int, line: str) -> None:
        if not self._stream.isatty():
            return
        while len(self._lines) <= worker + 1:
            place = len(self._lines)
            self._lines.append(tqdm(file=self._stream, position=place, bar_format="{desc}", dynamic_ncols=True))
        self._lines[0].set_description_str(self._all())
        self._lines[worker + 1].set_description_str(line)


def _minutes(seconds: float) -> str:
    if not math.isfinite(seconds):
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"
