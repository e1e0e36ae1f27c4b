"""What a worker of a study holds, and what it returns: the rows of each unit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from .equipment import Equipment, warm_up
from .store import Record
from .unit import Unit, run_unit


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and the file it belongs to."""

    file: str
    record: Record


class StudyWorker:
    """Makes the videos of one unit after the other, for `devices.workers.spread`."""

    def __init__(self, open_equipment: Callable[[], Equipment], device: str = "") -> None:
        """Load the models. `device`: the equipment knows its own."""
        self._equipment = open_equipment()
        self._warm = False

    def __call__(self, unit: Unit, stop: Callable[[], bool]) -> list[Found]:
        """Return every record of a unit."""
        if not self._warm:
            warm_up(self._equipment, unit.condition)
            self._warm = True
        found = []
        for file, record in run_unit(self._equipment, unit):
            found.append(Found(file, record))
            _give_back_freed_memory()
        return found


def _give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library is GNU's.

    It would keep it otherwise: small blocks that a memo still holds lie between large free ones, gigabytes after a
    few dozen rows.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
