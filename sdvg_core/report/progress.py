"""Progress of a run on a terminal: forward passes, the outcome of each block, and the time left."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from ..engine.records import BlockRecord
from .summary import OUTCOME_LETTERS, block_line, outcome_of

WIDEST_STRIP = 32
"""Letters of the strip; more would leave no room for the text."""


class Lines(io.StringIO):
    """A text stream that gives each line that is written to it to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def write(self, text: str) -> int:
        """Pass on the lines of `text`, which ends with one."""
        for line in text.splitlines():
            self._say(line)
        return len(text)


class RouteBar:
    """Shows a run on `stream`: a bar on a terminal, otherwise one line per block.

    Close it at the end, for example by `contextlib.closing`.
    """

    def __init__(self, blocks: int, stream: TextIO) -> None:
        self._stream = stream
        self._blocks = blocks
        self._letters = ""
        hidden = not self._stream.isatty()
        form = self._format("")
        self._bar = _Bar(total=blocks, file=self._stream, disable=hidden, dynamic_ncols=True, bar_format=form)

    def step(self, kind: str) -> None:
        """Show that a forward pass starts. `kind`: `draft`, `target`, `context` and others."""
        self._show(f"block {len(self._letters) + 1}/{self._blocks}: {kind}")

    def block(self, record: BlockRecord) -> None:
        """Show that a block is done."""
        self._letters += OUTCOME_LETTERS[outcome_of(record)]
        line = block_line(record, len(self._letters), self._blocks) + (", re-used" if record.reused else "")
        if self._bar.disable:
            self._stream.write(line + "\n")
            self._stream.flush()
            return
        self._bar.n += 1
        self._bar.initial += record.reused  # took no time
        self._show(line)

    def close(self) -> None:
        """End the bar's line. A second call does nothing."""
        self._bar.close()

    def _show(self, line: str) -> None:
        if not self._bar.disable:
            self._bar.bar_format = self._format(line)
            self._bar.refresh()

    def _format(self, line: str) -> str:
        # Of a long run, show the newest blocks and the next ones.
        first = max(0, min(len(self._letters) - WIDEST_STRIP * 3 // 4, self._blocks - WIDEST_STRIP))
        strip = self._letters.ljust(self._blocks, ".")[first : first + WIDEST_STRIP]
        left = "{remaining} left  " if self._letters and self._bar.n > self._bar.initial else ""
        return f"{strip} |{{bar:16}}| {left}{line}"


class _Bar(tqdm):  # type: ignore[type-arg]  # generic in its stubs alone
    # No thread that refreshes idle bars.
    monitor_interval = 0
    # tqdm's default lock is a system semaphore, which a killed worker leaves behind.
    _lock = threading.RLock()
