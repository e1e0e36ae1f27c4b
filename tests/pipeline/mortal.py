"""A worker that dies once, in the middle of a video: after the first block that it has finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from sdvg_core.pipeline.many import Task, VideoWorker
from sdvg_core.report.run_report import RunReport

GRAVE = "SDVG_TEST_GRAVE"


class MortalWorker(VideoWorker):
    """Kills its own process in video 2, unless the file that the environment names shows that it has done so."""

    def __call__(self, task: Task, stop: Callable[[], bool]) -> RunReport:
        """Make a video, or half of it."""
        grave = Path(os.environ[GRAVE])

        def stop_or_die() -> bool:
            if task[0].number == 2 and not grave.exists():
                grave.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return stop()

        return super().__call__(task, stop_or_die)
