"""A run's progress on a terminal: every forward pass, the outcome of each block, and the time left."""

from __future__ import annotations

import math
import sys
import threading
from typing import TextIO

from tqdm import tqdm

from ..engine.records import BlockRecord
from .summary import LETTERS, block_line, outcome_of

# A longer strip would leave no room for the sentence.
WIDEST_STRIP = 32


class RouteBar:
    """Shows a run on `stream`, standard error by default: a bar on a terminal, otherwise one line per block.

    `steps`: denoising steps of a block, used as an estimate of its passes until one block is done. Always close it;
    `contextlib.closing` does.
    """

    def __init__(self, blocks: int, stream: TextIO | None = None, *, steps: int = 4) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._blocks = blocks
        self._letters = ""
        self._reused = 0
        # Forward passes so far, those up to the end of the newest block, and those of a block like the ones so far.
        self._passes = 0
        self._passes_of_blocks = 0
        self._passes_per_block = float(steps)
        hidden = not self._stream.isatty()
        self._bar = _Bar(file=self._stream, disable=hidden, dynamic_ncols=True, bar_format=self._format(""))

    def step(self, kind: str) -> None:
        """Show that a forward pass starts; `kind` is, for example, `draft`, `target` or `context`."""
        self._show(f"block {len(self._letters) + 1}/{self._blocks}: {kind}")
        self._passes += 1

    def block(self, record: BlockRecord) -> None:
        """Show that a block is done."""
        self._letters += LETTERS[outcome_of(record)]
        self._reused += record.reused
        self._passes_of_blocks = self._passes
        if made := len(self._letters) - self._reused:
            self._passes_per_block = self._passes / made
        line = block_line(record, len(self._letters), self._blocks) + (", re-used" if record.reused else "")
        self._show(line)
        if self._bar.disable:
            self._stream.write(line + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the bar in place and go to the next line; a second call does nothing."""
        self._bar.close()

    def _show(self, line: str) -> None:
        to_come = self._passes_per_block * (self._blocks - len(self._letters))
        self._bar.n = self._passes
        self._bar.total = max(self._passes, math.ceil(self._passes_of_blocks + to_come))
        self._bar.bar_format = self._format(line)
        self._bar.refresh()

    def _format(self, line: str) -> str:
        # In a long run, the newest blocks and the next ones.
        first = max(0, min(len(self._letters) - WIDEST_STRIP * 3 // 4, self._blocks - WIDEST_STRIP))
        strip = self._letters.ljust(self._blocks, ".")[first : first + WIDEST_STRIP]
        left = "{remaining} left  " if self._passes_of_blocks else ""
        return f"{strip} |{{bar:16}}| {left}{line}"


class _Bar(tqdm):  # type: ignore[type-arg]
    # Turns off the thread that refreshes idle bars; ours refreshes itself.
    monitor_interval = 0
    # tqdm's own lock is a semaphore of the system, which a worker that ends at once leaves behind.
    _lock = threading.RLock()
