"""Worker processes on this machine.

A worker notices that its master is gone when the pipe breaks, so a kill leaves no processes behind.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic

from ..errors import BadInput
from .news import POLL_SECONDS, Failed, Finished, Heard, News, Queue, Task, Worker

Opener = Callable[[], Worker[Any]]

READY, SAID, DONE, REFUSED, STOP = "ready", "said", "done", "refused", "stop"


def work_here(
    tasks: Sequence[Task],
    openers: Sequence[Opener],
    *,
    tries: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[News[Task]]:
    """Yield what the workers say, in any order, and each task as it is finished or has failed.

    `openers`: one for each worker, called in its process, so they must be picklable. `tries`: how often a task is
    tried that a worker refuses or dies of. `stop`: whether to begin no other task, and end those under way early.
    Raises `BadInput` if a worker raises it before its first task, or ends before that.
    """
    queue = Queue(tasks, tries)
    hands = [_Hand[Task](number, opener) for number, opener in enumerate(openers[: len(tasks)])]
    try:
        while queue or any(hand.task for hand in hands):
            there = {hand.pipe: hand for hand in hands if not hand.lost}
            if not there:
                raise BadInput(
                    f"workers that end are replaced, but the last one could not be ({hands[-1].lost}); free some "
                    "memory, and call again with fewer workers"
                )
            for pipe in wait(list(there), timeout=POLL_SECONDS):
                yield from _hear(there[pipe], queue)  # type: ignore[index]
            if stop():
                queue.drop()
                for hand in hands:
                    hand.stop_early()
            alive = frozenset(hand.number for hand in hands if not hand.lost)
            for hand in hands:
                if hand.ready and not hand.task:
                    hand.take_from(queue, alive)
    finally:
        for hand in hands:
            hand.end()


def _hear(hand: _Hand[Task], queue: Queue[Task]) -> Iterator[News[Task]]:
    """Yield what a worker has to say, and give back the task it failed at."""
    task, failed = hand.task, hand.failed
    kind, value = hand.hear()
    if task is None or kind == READY:
        return
    if kind == SAID:
        yield Heard(hand.number, task[0], value)
        return
    hand.task = None
    if kind == DONE:
        yield Finished(hand.number, task[0])
    else:
        yield Failed(hand.number, task[0], value, queue.give_back(task[0], failed, hand.number))


class _Hand(Generic[Task]):
    """The master's end of a worker.

    `task`: what it is at, in a tuple, for a task may be anything. `failed`: who failed at that before. `ready`:
    whether it has its models. `lost`: why there is no worker any more, if one could not be replaced.
    """

    def __init__(self, number: int, opener: Opener) -> None:
        self.number, self._opener = number, opener
        self.lost = ""
        self._replaces = False
        self._begin()

    def _begin(self) -> None:
        # A fork would copy the threads' locks of a process that has computed already.
        context = multiprocessing.get_context("spawn")
        self.pipe, far_end = context.Pipe()
        self.task: tuple[Task] | None = None
        self.failed: frozenset[int] = frozenset()
        self.ready = self._told = False
        self._process: BaseProcess = context.Process(target=_serve, args=(far_end, self._opener), daemon=True)
        self._process.start()
        far_end.close()

    def take_from(self, queue: Queue[Task], alive: frozenset[int]) -> None:
        """Hand over the next task, if there is one for this worker."""
        taken = queue.take(self.number, alive)
        if taken is not None:
            self.task, self.failed = (taken[0],), taken[1]
            self._send(taken[0])

    def stop_early(self) -> None:
        """Ask the worker to end its task early; once is enough."""
        if self.task and not self._told:
            self._told = True
            self._send(STOP)

    def _send(self, what: object) -> None:
        # If the worker is gone, the next `hear` says so.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(what)

    def hear(self) -> tuple[str, Any]:
        """Return what the worker says. If it is gone, another one begins in its place.

        Raises `BadInput` if the first one could not load its models.
        """
        try:
            kind, value = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(10)
            kind, value = REFUSED, f"a worker ended with code {self._process.exitcode}"
            if self.ready:
                self.end()
                self._replaces = True
                self._begin()
                return kind, value
        if kind == REFUSED and not self.ready:
            if not self._replaces:
                raise BadInput(value)
            self.lost = value
        self.ready |= kind == READY
        return kind, value

    def end(self) -> None:
        """End the worker, whatever it is doing."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, opener: Opener) -> None:
    """Do what comes through the pipe until it breaks."""
    # An interruption is the master's business, who then ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            worker = opener()
        except BadInput as refusal:
            pipe.send((REFUSED, str(refusal)))
            return
        pipe.send((READY, None))
        while True:
            task = pipe.recv()
            if task == STOP:
                continue  # it came after the task was done
            try:
                worker.do(task, lambda said: pipe.send((SAID, said)), pipe.poll)
                pipe.send((DONE, None))
            except BadInput as refusal:
                pipe.send((REFUSED, str(refusal)))
