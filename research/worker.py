"""What a worker of a study holds, and what it says: the rows of each unit, as they are made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from .equipment import Equipment, warm_up
from .store import Record
from .unit import Unit, run_unit

TRIES = 2
"""How often a unit is tried before the study gives up."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and the file it belongs to."""

    file: str
    record: Record


class StudyWorker:
    """Makes the videos of one unit after the other."""

    def __init__(self, open_equipment: Callable[[], Equipment]) -> None:
        self._equipment = open_equipment()
        self._warm = False

    def do(self, task: Unit, say: Callable[[Found], None], stop: Callable[[], bool]) -> None:
        """Say every record of a unit."""
        if not self._warm:
            warm_up(self._equipment, task.condition)
            self._warm = True
        for file, record in run_unit(self._equipment, task):
            say(Found(file, record))
            _give_back_freed_memory()


def _give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library is GNU's.

    It would keep it otherwise: small blocks that a memo still holds lie between large free ones, gigabytes after a
    few dozen rows.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
