"""Tasks spread over workers that hold models: processes of this machine, or actors on a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from ..errors import BadInput, first_line

Task = TypeVar("Task")
Result = TypeVar("Result")
Stop = Callable[[], bool]
# How many workers there are; gives one of them a task; what is raised for a task whose worker died.
Pool = tuple[int, Callable[[Any], Future[Any]], tuple[type[Exception], ...]]

POLL_SECONDS, EARLY, AT_ONCE = 0.5, 1, 2


def spread(
    tasks: Iterable[Task],
    open_worker: Callable[[str], Callable[[Task, Stop], Result]],
    devices: Sequence[str],
    *,
    ray: str | None = None,
    most: int | None = None,
    stop: Stop = bool,
) -> Iterator[tuple[Task, Result | BadInput]]:
    """Yield each task with its result as it is done, in any order; a `BadInput` if it was refused or a worker died.

    `open_worker`: called once in each worker, with a device; the worker gets a task, and whether to end it early.
    Both, tasks and results must be picklable. `devices`: one process for each. If one dies, all end, and every task
    that is left fails. `ray`: the address of a cluster instead ("local" starts one): a worker on `devices[0]` for
    each of its GPUs or, on "cpu", its cores, `most` at most. One that dies is restarted, and its task tried once
    more. `stop`: whether to begin no other task, and to end those under way early (on Ray they are finished).
    Raises `BadInput` if a worker cannot load its models, or without Ray or its cluster.
    """
    left, under_way, end = deque(tasks), dict[Future[Any], Task](), multiprocessing.RawValue("i", 0)
    most = min(most or len(left), len(left))
    with _on_ray(ray, open_worker, devices[0], most) if ray else _here(open_worker, devices, end) as pool:
        workers, submit, deaths = pool
        try:
            while under_way or (left and not stop()):
                while left and len(under_way) < workers and not stop():
                    future = submit(left[0])
                    under_way[future] = left.popleft()
                end.value = EARLY if stop() else 0
                for future in wait(under_way, POLL_SECONDS, FIRST_COMPLETED).done:
                    try:
                        opened, result = future.result()
                    except deaths:
                        opened, result = True, BadInput("a worker died of it twice; see Ray's logs (memory?)")
                    if not opened:
                        raise result
                    yield under_way.pop(future), result
        except BrokenProcessPool:
            died = BadInput("a worker died (killed, or out of memory), and the others ended with it")
            yield from ((task, died) for task in (*under_way.values(), *left))


class Seat:
    """Holds a worker, opened for its first task. `mine`: of this process."""

    mine: Seat

    def __init__(self, open_worker: Callable[[str], Callable[[Any, Stop], Any]], device: str, stop: Stop) -> None:
        self._open, self._device, self._stop = open_worker, device, stop
        self._worker: Callable[[Any, Stop], Any] | None = None

    def do(self, task: Any) -> tuple[bool, Any]:
        """Return whether the worker is open, and what it makes of a task, or why not: Ray would wrap the error."""
        try:
            self._worker = self._worker or self._open(self._device)
            return True, self._worker(task, self._stop)
        except BadInput as refusal:
            return self._worker is not None, refusal


@contextmanager
def _here(open_worker: Callable[[str], Any], devices: Sequence[str], end: Any) -> Iterator[Pool]:
    # A fork would copy the threads' locks of a process that has computed already.
    context = multiprocessing.get_context("spawn")
    free = context.SimpleQueue()
    for device in devices:
        free.put(device)
    executor = ProcessPoolExecutor(len(devices), context, _take_seat, (open_worker, free, end))
    try:
        yield len(devices), lambda task: executor.submit(_do, task), ()
    finally:
        end.value = AT_ONCE
        executor.shutdown(cancel_futures=True)


def _take_seat(open_worker: Callable[[str], Any], free: Any, end: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the master's business
    threading.Thread(target=_leave_in_time, args=(end,), daemon=True).start()
    Seat.mine = Seat(open_worker, free.get(), lambda: bool(end.value))


def _leave_in_time(end: Any) -> None:
    """End this process when its master wants it at once, or is gone: a kill leaves no process behind."""
    master = multiprocessing.parent_process()
    while master and master.is_alive() and end.value != AT_ONCE:
        master.join(POLL_SECONDS)
    os._exit(1)


def _do(task: Any) -> tuple[bool, Any]:
    return Seat.mine.do(task)


@contextmanager
def _on_ray(address: str, open_worker: Callable[[str], Any], device: str, most: int) -> Iterator[Pool]:
    try:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError as error:
        raise BadInput("ray is not installed; pip install 'sdvg[ray]', or leave --ray out") from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = f"no Ray cluster answers at {address} ({first_line(error)[:120]})"
        raise BadInput(f"{said}; call ray start --head, or give local") from error
    gpus, idle = int(not device.startswith("cpu")), SimpleQueue[Any]()
    try:
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=1)(Seat)
        count = max(1, min(most, int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))))
        for _ in range(count):
            idle.put(actor.remote(open_worker, device, bool))

        def submit(task: Any) -> Future[Any]:
            taken = idle.get()
            future: Future[Any] = taken.do.remote(task).future()
            future.add_done_callback(lambda _: idle.put(taken))
            return future

        yield count, submit, (ray.exceptions.RayActorError,)
    finally:
        ray.shutdown()
