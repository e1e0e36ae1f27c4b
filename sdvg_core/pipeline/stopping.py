"""Ctrl-C once: finish the block in the making, and keep the video up to there. Twice: stop at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopping:
    """Whether to end after the block in the making. `then`: what the first Ctrl-C does, for whoever pressed it."""

    def __init__(self, then: str = "stops after this block and keeps the video") -> None:
        self.asked, self._then = False, then

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take the first Ctrl-C inside for the wish to stop after this block. The next one interrupts as ever."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = signal.getsignal(signal.SIGINT)

        def hear(number: int, frame: FrameType | None) -> None:
            self.asked = True
            signal.signal(signal.SIGINT, usual)
            sys.stderr.write(f"\nsdvg: {self._then}; Ctrl-C again stops at once\n")

        signal.signal(signal.SIGINT, hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)
