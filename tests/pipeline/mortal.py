"""A worker that dies once, in the middle of a video: after the first block that it has finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from sdvg_core.pipeline.many import Task, VideoWorker
from sdvg_core.report.run_report import RunReport

GRAVE, VICTIM = "SDVG_TEST_GRAVE", "SDVG_TEST_VICTIM"


class MortalWorker(VideoWorker):
    """Kills its own process, unless the file that the environment names shows that it has happened already.

    It does so in video 2, or in the one that the environment names.
    """

    def __call__(self, task: Task, stop: Callable[[], bool]) -> RunReport:
        """Make a video, or half of it."""
        grave, victim = Path(os.environ[GRAVE]), int(os.environ.get(VICTIM, "2"))

        def stop_or_die() -> bool:
            if task[0].number == victim and not grave.exists():
                grave.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return stop()

        return super().__call__(task, stop_or_die)
