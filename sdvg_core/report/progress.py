"""A run's progress on a terminal: every forward pass, the fate of each block, and the time left."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from tqdm import tqdm

from ..engine.records import BlockRecord
from .summary import LETTERS, Fate, block_line, count, fate_of

LETTER_TO_COME, SQUARE, SQUARE_TO_COME = ".", "■", "□"
# The colours nearest to the picture's, of the 256 that terminals share.
ANSI = dict(zip(Fate, (33, 36, 202, 115, 216, 175), strict=True))
# A longer strip would leave no room for the sentence.
WIDEST_STRIP = 32


class RouteBar:
    """Shows a run on `stream`, standard error by default: a bar on a terminal, otherwise one line per block.

    `steps`: denoising steps of a block, used as an estimate of its passes until one block is done. `colour`:
    coloured squares instead of letters; None means wherever the stream can show them. `clock`: seconds. Always
    close it; `contextlib.closing` does.
    """

    def __init__(
        self,
        blocks: int,
        stream: TextIO | None = None,
        *,
        steps: int = 4,
        colour: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._blocks, self._steps, self._clock = blocks, steps, clock
        self._colour = can_colour(self._stream, os.environ) if colour is None else colour
        self._fates: list[Fate] = []
        self._before = 0
        self._began = clock()
        # Forward passes, and seconds since the start, up to the end of the newest block.
        self._passes_of_blocks, self._seconds_of_blocks = 0, 0.0
        self._passes = 0
        self._bar: _Bar | None = None
        if self._stream.isatty():
            self._bar = _Bar(strip([], blocks, self._colour), file=self._stream, dynamic_ncols=True)

    def made_before(self, records: Sequence[BlockRecord]) -> None:
        """Show the blocks of an earlier, stopped run; they do not count for the time left."""
        self._fates, self._before = [fate_of(record) for record in records], len(records)

    def step(self, kind: str) -> None:
        """Show that a forward pass starts; `kind` is, for example, `draft`, `target` or `context`."""
        self._passes += 1
        self._show(f"block {len(self._fates) + 1}/{self._blocks}: {kind}")

    def block(self, record: BlockRecord) -> None:
        """Show that a block is done."""
        self._fates.append(fate_of(record))
        self._before += record.reused
        self._passes_of_blocks, self._seconds_of_blocks = self._passes, self._clock() - self._began
        line = block_line(record, len(self._fates), self._blocks)
        self._show(line)
        if self._bar is None:
            self._stream.write(line + "\n")
            self._stream.flush()

    def delivering(self, blocks_left: int) -> None:
        """Show that the video is being decoded, now that all blocks are made."""
        self._show(f"decoding the video: {count(blocks_left, 'block')} left")

    def close(self) -> None:
        """Leave the bar in place and go to the next line; a second call does nothing."""
        if self._bar is not None:
            self._bar.close()

    def _show(self, line: str) -> None:
        if self._bar is None:
            return
        done, blocks = len(self._fates) - self._before, self._blocks - self._before
        left = seconds_left(self._clock() - self._began, self._seconds_of_blocks, done, blocks)
        self._bar.strip = strip(self._fates, self._blocks, self._colour)
        self._bar.line = "  ".join(part for part in (_in_minutes(left), line) if part)
        expected = expected_passes(self._passes_of_blocks, done, blocks, self._steps)
        self._bar.n, self._bar.total = self._passes, max(self._passes, expected)
        self._bar.refresh()


class _Bar(tqdm):  # type: ignore[type-arg]
    """tqdm's bar with our strip before it and our line after it."""

    # Turns off the thread that refreshes idle bars; ours refreshes itself.
    monitor_interval = 0
    line = ""

    def __init__(self, strip: str, **options: Any) -> None:
        self.strip = strip
        super().__init__(bar_format="{strip} |{bar:16}| {line}", **options)

    @property
    def format_dict(self) -> Any:
        return {**super().format_dict, "strip": self.strip, "line": self.line}


def can_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal that can show coloured squares, and colours are on (no-color.org)."""
    if not stream.isatty() or environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    try:
        (SQUARE + SQUARE_TO_COME).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def strip(fates: Sequence[Fate], blocks: int, colour: bool) -> str:
    """Return one sign per block, `Faara....`; for a long run, only the newest blocks and the next ones."""
    first = max(0, min(len(fates) - WIDEST_STRIP * 3 // 4, blocks - WIDEST_STRIP))
    shown = fates[first : first + WIDEST_STRIP]
    to_come = min(blocks - first, WIDEST_STRIP) - len(shown)
    if not colour:
        return "".join(LETTERS[fate] for fate in shown) + LETTER_TO_COME * to_come
    return "".join(f"\x1b[38;5;{ANSI[fate]}m{SQUARE}\x1b[0m" for fate in shown) + SQUARE_TO_COME * to_come


def expected_passes(passes: int, done: int, blocks: int, steps: int) -> int:
    """Return how many forward passes a run will take if all blocks are like the `done` finished ones.

    `passes`: those of the finished blocks. `steps`: passes of a block, used while none is finished.
    """
    return math.ceil(passes * blocks / done) if done else blocks * steps


def seconds_left(now: float, then: float, done: int, blocks: int) -> float | None:
    """Return the seconds a run still takes if all blocks are like the `done` finished ones; None if none is.

    `now`, `then`: seconds from the start of the run until now, and until the newest block was done.
    """
    return max(then * blocks / done - now, 0.0) if done else None


def _in_minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d} left"
