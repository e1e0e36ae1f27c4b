"""Processes that each hold the models, work through units and send their records to the caller.

A worker notices that its master is gone when the pipe breaks, so a kill leaves no processes behind.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ..errors import BadInput
from .equipment import Equipment, warm_up
from .store import Record
from .unit import Unit, run_unit


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and the file it belongs to."""

    file: str
    record: Record


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A unit that is complete."""

    unit: Unit


def work_through(
    units: Sequence[Unit], open_equipment: Callable[[], Equipment], workers: int
) -> Iterator[Found | Finished]:
    """Yield the records of all units as they are found, in any order, and each unit as it is finished.

    `open_equipment`: loads the models; called once in each of the `workers` processes, so it must be picklable.
    Raises `BadInput` if a worker meets one, or ends before its work does.
    """
    left = list(reversed(units))
    hands = [_Hand(open_equipment) for _ in range(min(workers, len(units)))]
    try:
        busy = {hand.pipe: hand for hand in hands}
        while busy:
            for pipe in wait(list(busy)):
                hand = busy[pipe]  # type: ignore[index]
                news = hand.hear()
                if isinstance(news, Found):
                    yield news
                    continue
                if hand.unit:
                    yield Finished(hand.unit)
                if left:
                    hand.give(left.pop())
                else:
                    del busy[hand.pipe]
    finally:
        for hand in hands:
            hand.stop()


class _Hand:
    """The master's end of a worker."""

    def __init__(self, open_equipment: Callable[[], Equipment]) -> None:
        # A fork would copy the threads' locks of a process that has computed already.
        context = multiprocessing.get_context("spawn")
        self.pipe, far_end = context.Pipe()
        self.unit: Unit | None = None
        self._process: BaseProcess = context.Process(target=_serve, args=(far_end, open_equipment), daemon=True)
        self._process.start()
        far_end.close()

    def give(self, unit: Unit) -> None:
        """Hand over the next unit."""
        self.unit = unit
        # If the worker is gone, the next `hear` says so.
        with suppress(BrokenPipeError):
            self.pipe.send(unit)

    def hear(self) -> Found | None:
        """Return the worker's next record, or None if it wants the next unit.

        Raises `BadInput` if the worker raised it, or if the worker is gone.
        """
        try:
            said: Found | BadInput | None = self.pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            self._process.join(10)
            during = f" during {self.unit.prompt!r}" if self.unit else ""
            raise BadInput(
                f"a worker ended with code {self._process.exitcode}{during}; "
                "all rows so far are kept: call the study again, with fewer --workers if memory was short"
            ) from error
        if isinstance(said, BadInput):
            raise said
        return said

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library is GNU's.

    It would keep it otherwise: small blocks that a memo still holds lie between large free ones, gigabytes after a
    few dozen rows.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _serve(pipe: Connection, open_equipment: Callable[[], Equipment]) -> None:
    """Do what comes through the pipe until it breaks."""
    # An interruption is the master's business, who then ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            equipment = open_equipment()
            pipe.send(None)
            unit: Unit = pipe.recv()
            warm_up(equipment, unit.condition)
            while True:
                for file, record in run_unit(equipment, unit):
                    pipe.send(Found(file, record))
                    _give_back_freed_memory()
                pipe.send(None)
                unit = pipe.recv()
        except BadInput as refusal:
            pipe.send(refusal)
