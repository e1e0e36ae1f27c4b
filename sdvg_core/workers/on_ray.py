"""Workers on a Ray cluster. Model files and output folders must be at the same paths on every machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import BadInput
from .news import POLL_SECONDS, Failed, Finished, Heard, News, Queue, Task, Worker


def work_on_ray(
    tasks: Sequence[Task],
    opener: Callable[[], Worker[Any]],
    *,
    address: str,
    gpus: float,
    most: int | None = None,
    tries: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[News[Task]]:
    """Yield what `processes.work_here` yields; what a worker says of a task comes when the task is done.

    `address`: of the cluster; "local" starts one on this machine. `gpus`: GPUs per worker. `most`: the most workers
    to use; None for as many as fit. `stop`: whether to begin no other task; those under way are finished.
    Raises `BadInput` if Ray is not installed, or if there is no cluster.
    """
    ray = _connect(address)
    try:
        room = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1) / (gpus or 1))
        count = max(1, min(len(tasks), room, most or room))
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1)(RayWorker)
        yield from _hand_out(ray, Queue(tasks, tries), [remote.remote(opener) for _ in range(count)], stop)
    finally:
        ray.shutdown()


class RayWorker:
    """A worker whose models are loaded when its first task comes."""

    def __init__(self, opener: Callable[[], Worker[Any]]) -> None:
        self._open = opener
        self._worker: Worker[Any] | None = None

    def do(self, task: Any) -> tuple[list[Any], str]:
        """Return what there is to say of a task, and why it was refused, if it was: Ray would wrap an error."""
        said: list[Any] = []
        try:
            self._worker = self._worker or self._open()
            self._worker.do(task, said.append, lambda: False)
        except BadInput as refusal:
            return said, str(refusal)
        return said, ""


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise BadInput(
            "--ray needs the ray package, but it is not installed; pip install 'sdvg[ray]', or leave --ray out"
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"there is no Ray cluster at {address} ({str(error).splitlines()[0][:120]}); "
            "start one with ray start --head, or give local"
        ) from error
    return ray


def _hand_out(
    ray: Any, queue: Queue[Task], workers: Sequence[Any], stop: Callable[[], bool]
) -> Iterator[News[Task]]:
    alive = frozenset(range(len(workers)))
    at_work: dict[Any, tuple[int, Task, frozenset[int]]] = {}
    while queue or at_work:
        if stop():
            queue.drop()
        for number in alive - {number for number, *_ in at_work.values()}:
            taken = queue.take(number, alive)
            if taken is not None:
                at_work[workers[number].do.remote(taken[0])] = (number, *taken)
        ready, _ = ray.wait(list(at_work), timeout=POLL_SECONDS) if at_work else ([], [])
        for reference in ready:
            number, task, failed = at_work.pop(reference)
            try:
                said, refusal = ray.get(reference)
            except ray.exceptions.RayActorError:
                said, refusal = [], "a worker died; see Ray's logs for why (memory?)"
            if refusal:
                yield Failed(number, task, refusal, queue.give_back(task, failed, number))
                continue
            for one in said:
                yield Heard(number, task, one)
            yield Finished(number, task)
