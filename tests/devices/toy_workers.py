"""Workers without models: what they do is in the name of the task."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import UnwritableFolder


class Toy:
    """Does a task of words: `say X`, `refuse`, `unwritable FOLDER`, `die`, `wait FILE`, `early [FILE]`."""

    def __init__(self, device: str) -> None:
        if device == "full":
            raise BadInput("the models do not fit")
        self.name = device
        self.lock = multiprocessing.RLock()  # the system keeps it until an orderly end, as it keeps tqdm's

    def __call__(self, task: str, stop: Callable[[], bool]) -> tuple[str, int]:
        word, _, rest = task.partition(" ")
        if word == "refuse":
            raise BadInput(f"{task} is no task")
        if word == "unwritable":
            raise UnwritableFolder(Path(rest), "no space")
        if word == "die":
            os._exit(7)
        if word == "wait":
            Path(rest).write_text(str(os.getpid()), encoding="utf-8")
            wait_until(lambda: False)
        if word == "early" and rest:
            Path(rest).touch()
        if word == "early":
            wait_until(stop)
        return self.name, os.getpid()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something, and fail if it does not come."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
