"""A worker that dies once, in the middle of a video: after the first block that it has finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdvg_core.devices.workers import Stop
from sdvg_core.pipeline.videos import Task, open_worker
from sdvg_core.report.run_report import RunReport

GRAVE, VICTIM = "SDVG_TEST_GRAVE", "SDVG_TEST_VICTIM"


def open_mortal(*what: Any) -> Callable[[Task, Stop], RunReport]:
    """Open a worker that kills its own process, unless a file shows that it has happened already.

    The environment names that file, and the number of the video, which is else 2.
    """
    make, grave, victim = open_worker(*what), Path(os.environ[GRAVE]), int(os.environ.get(VICTIM, "2"))

    def make_or_die(task: Task, stop: Stop) -> RunReport:
        def stop_or_die() -> bool:
            if task[0].number == victim and not grave.exists():
                grave.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return stop()

        return make(task, stop_or_die)

    return make_or_die
