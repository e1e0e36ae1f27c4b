"""Workers without models: what they do is in the name of the task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdvg_core.errors import BadInput


class Toy:
    """Does a task of words: `say X`, `refuse`, `die`, `die once FILE`, `refuse once FILE`, `wait FILE`, `early`."""

    def __init__(self, name: str = "toy", grave: Path | None = None) -> None:
        if name == "refuses":
            raise BadInput("the models do not fit")
        if name == "dies":
            os._exit(9)
        if grave is not None and grave.exists():
            raise BadInput("there is no memory left for another one")
        self.name, self._grave = name, grave

    def do(self, task: str, say: Callable[[Any], None], stop: Callable[[], bool]) -> None:
        say((self.name, os.getpid()))
        word, _, rest = task.partition(" ")
        if rest.startswith("once "):
            file = Path(rest.removeprefix("once "))
            if file.exists():
                return
            file.touch()
        if word == "refuse":
            raise BadInput(f"{task} is no task")
        if word == "die":
            if self._grave:
                self._grave.touch()
            os._exit(7)
        if word == "wait":
            patient(lambda: Path(rest).exists())
        if word == "early":
            patient(stop)
            say("early")


def patient(done: Callable[[], bool]) -> None:
    """Wait for something, and fail if it does not come."""
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)
