"""A worker that dies once, in the middle of a video or shot: after the first block that it has finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdvg_core.devices.workers import Stop
from sdvg_core.videos.many import ShotTask, WorkerResult, WorkerTask, open_worker

GRAVE = "SDVG_TEST_GRAVE"
DOOMED = "#d"
"""The shot in which it dies."""


def open_mortal(*what: Any) -> Callable[[WorkerTask, Stop], WorkerResult]:
    """Open a worker that kills its own process in video 2, or in the shot `DOOMED`, unless `GRAVE` is there."""
    make = open_worker(*what)
    grave = Path(os.environ[GRAVE])

    def make_or_die(task: WorkerTask, stop: Stop) -> WorkerResult:
        dies = task.key == DOOMED if isinstance(task, ShotTask) else task.video.number == 2

        def stop_or_die() -> bool:
            if dies and not grave.exists():
                grave.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return stop()

        return make(task, stop_or_die)

    return make_or_die
