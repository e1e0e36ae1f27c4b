"""What is sent between a master and its workers. Everything here can be pickled."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

POLL_SECONDS = 0.5
"""How soon a wish to stop is heard."""

Task = TypeVar("Task")
Anything = TypeVar("Anything", contravariant=True)


class Worker(Protocol[Anything]):
    """What a process holds: models, loaded once."""

    def do(self, task: Anything, say: Callable[[Any], None], stop: Callable[[], bool]) -> None:
        """Do a task. `say`: tells the master something. `stop`: whether to end early, if the task allows it.

        Raises `BadInput` if the task cannot be done.
        """
        ...


@dataclass(frozen=True, slots=True)
class Heard(Generic[Task]):
    """Something a worker said about its task. `worker`: its number, from 0."""

    worker: int
    task: Task
    said: Any


@dataclass(frozen=True, slots=True)
class Finished(Generic[Task]):
    """A task is done."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Failed(Generic[Task]):
    """A task was tried and is not done. `again`: whether it will be tried once more."""

    worker: int
    task: Task
    reason: str
    again: bool


News = Heard[Task] | Finished[Task] | Failed[Task]


class Queue(Generic[Task]):
    """The tasks that are left. Each is tried `tries` times at most, if possible by another worker each time."""

    def __init__(self, tasks: Iterable[Task], tries: int) -> None:
        self._left: deque[tuple[Task, frozenset[int]]] = deque((task, frozenset()) for task in tasks)
        self._tries, self._failures = tries, Counter[int]()

    def __len__(self) -> int:
        return len(self._left)

    def take(self, worker: int, alive: frozenset[int]) -> tuple[Task, frozenset[int]] | None:
        """Return the next task for a worker, and who failed at it before; None if there is none for it.

        `alive`: the workers there are. A task that one of them failed at waits for another that did not.
        """
        for place, (_, failed) in enumerate(self._left):
            if worker not in failed or not alive - failed:
                taken = self._left[place]
                del self._left[place]
                return taken
        return None

    def give_back(self, task: Task, failed: frozenset[int], worker: int) -> bool:
        """Note that a worker failed at a task. Return whether it will be tried again."""
        self._failures[id(task)] += 1
        again = self._failures[id(task)] < self._tries
        if again:
            self._left.append((task, failed | {worker}))
        return again

    def put_back(self, task: Task, failed: frozenset[int]) -> None:
        """Take back a task that nobody tried after all; it is the next one. `failed`: as `take` gave it."""
        self._left.appendleft((task, failed))

    def claim(self, task: Task) -> tuple[Task, frozenset[int]] | None:
        """Return this very task as `take` would, if it is left; None if it is not."""
        taken = next((entry for entry in self._left if entry[0] is task), None)
        if taken is not None:
            self._left.remove(taken)
        return taken

    def drop(self) -> None:
        """Forget the tasks that nobody has begun."""
        self._left.clear()
