"""A worker that dies once, in the middle of a video: after the first block that it has finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdvg_core.pipeline.many import VideoTask, VideoWorker

GRAVE, VICTIM = "SDVG_TEST_GRAVE", "SDVG_TEST_VICTIM"


class MortalWorker(VideoWorker):
    """Kills its own process, unless the file that the environment names shows that it has happened already.

    It does so in video 2, or in the one that the environment names.
    """

    def do(self, task: VideoTask, say: Callable[[Any], None], stop: Callable[[], bool]) -> None:
        """Make a video, or half of it."""
        grave = Path(os.environ[GRAVE])

        def say_and_die(said: Any) -> None:
            say(said)
            if task.video.number == int(os.environ.get(VICTIM, "2")) and not grave.exists():
                grave.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        super().do(task, say_and_die, stop)
