"""A worker that dies once, in the middle of a video: after the first block that it has finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdvg_core.devices.workers import Stop
from sdvg_core.report.run_report import RunReport
from sdvg_core.videos.maker import VideoTask, open_worker

GRAVE = "SDVG_TEST_GRAVE"


def open_mortal(*what: Any) -> Callable[[VideoTask, Stop], RunReport]:
    """Open a worker that kills its own process in video 2, unless the file named in the environment is there."""
    make = open_worker(*what)
    grave = Path(os.environ[GRAVE])

    def make_or_die(task: VideoTask, stop: Stop) -> RunReport:
        def stop_or_die() -> bool:
            if task[0].number == 2 and not grave.exists():
                grave.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return stop()

        return make(task, stop_or_die)

    return make_or_die
