"""A run's progress on a terminal: every forward pass, the outcome of each block, and the time left."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from tqdm import tqdm

from ..engine.records import BlockRecord
from .summary import LETTERS, Outcome, block_line, count, outcome_of

LETTER_TO_COME, SQUARE, SQUARE_TO_COME = ".", "■", "□"
# The colours nearest to the picture's, of the 256 that terminals share.
ANSI = dict(zip(Outcome, (33, 36, 202, 115, 216, 175), strict=True))
# A longer strip would leave no room for the sentence.
WIDEST_STRIP = 32


class RouteBar:
    """Shows a run on `stream`, standard error by default: a bar on a terminal, otherwise one line per block.

    `steps`: denoising steps of a block, used as an estimate of its passes until one block is done. `colour`:
    coloured squares instead of letters; None means if the stream can show them. Always close it;
    `contextlib.closing` does.
    """

    def __init__(
        self, blocks: int, stream: TextIO | None = None, *, steps: int = 4, colour: bool | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._blocks = blocks
        self._colour = can_colour(self._stream, os.environ) if colour is None else colour
        self._outcomes: list[Outcome] = []
        self._before = 0
        # Forward passes so far, those up to the end of the newest block, and those of a block like the ones so far.
        self._passes, self._passes_of_blocks, self._passes_of_one = 0, 0, float(steps)
        hidden = not self._stream.isatty()
        self._bar = _Bar(file=self._stream, disable=hidden, dynamic_ncols=True, bar_format=self._format(""))

    def step(self, kind: str) -> None:
        """Show that a forward pass starts; `kind` is, for example, `draft`, `target` or `context`."""
        self._show(f"block {len(self._outcomes) + 1}/{self._blocks}: {kind}")
        self._passes += 1

    def block(self, record: BlockRecord) -> None:
        """Show that a block is done."""
        self._outcomes.append(outcome_of(record))
        self._before += record.reused
        self._passes_of_blocks = self._passes
        if made := len(self._outcomes) - self._before:
            self._passes_of_one = self._passes / made
        line = block_line(record, len(self._outcomes), self._blocks) + (", re-used" if record.reused else "")
        self._show(line)
        if self._bar.disable:
            self._stream.write(line + "\n")
            self._stream.flush()

    def delivering(self, blocks_left: int) -> None:
        """Show that the video is being decoded, now that all blocks are made."""
        self._show(f"decoding the video: {count(blocks_left, 'block')} left")

    def close(self) -> None:
        """Leave the bar in place and go to the next line; a second call does nothing."""
        self._bar.close()

    def _show(self, line: str) -> None:
        to_come = self._passes_of_one * (self._blocks - len(self._outcomes))
        self._bar.n, self._bar.total = self._passes, max(self._passes, math.ceil(self._passes_of_blocks + to_come))
        self._bar.bar_format = self._format(line)
        self._bar.refresh()

    def _format(self, line: str) -> str:
        left = "{remaining} left  " if self._passes_of_blocks else ""
        return f"{strip(self._outcomes, self._blocks, self._colour)} |{{bar:16}}| {left}{line}"


class _Bar(tqdm):  # type: ignore[type-arg]
    # Turns off the thread that refreshes idle bars; ours refreshes itself.
    monitor_interval = 0


def can_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal that can show coloured squares, and colours are on (no-color.org)."""
    if not stream.isatty() or environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    try:
        (SQUARE + SQUARE_TO_COME).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def strip(outcomes: Sequence[Outcome], blocks: int, colour: bool) -> str:
    """Return one sign per block, `Faara....`; for a long run, only the newest blocks and the next ones."""
    first = max(0, min(len(outcomes) - WIDEST_STRIP * 3 // 4, blocks - WIDEST_STRIP))
    shown = outcomes[first : first + WIDEST_STRIP]
    to_come = min(blocks - first, WIDEST_STRIP) - len(shown)
    if not colour:
        return "".join(LETTERS[outcome] for outcome in shown) + LETTER_TO_COME * to_come
    return "".join(f"\x1b[38;5;{ANSI[outcome]}m{SQUARE}\x1b[0m" for outcome in shown) + SQUARE_TO_COME * to_come
