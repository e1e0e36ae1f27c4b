"""Spread tasks over workers that hold models: processes of this machine, or actors on a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ..errors import BadInput, first_line

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
Stop = Callable[[], bool]
# A function that submits a task, for each worker; and the error of a task whose worker died.
Pool = tuple[list[Callable[..., Future[Any]]], type[Exception]]
LOCAL = "local"
"""Address of a Ray cluster that is started for this call."""
LOOPBACK = "127.0.0.1"
DIED = "a worker died (killed, or out of memory); use fewer workers"


def spread(
    tasks: Iterable[_Task],
    open_worker: Callable[[str], Callable[[_Task, Stop], _Result]],
    devices: Sequence[str],
    *,
    ray: str | None = None,
    most: int | None = None,
    ready: Callable[[_Task], bool] = lambda task: True,
    stop: Stop = bool,
) -> Iterator[tuple[_Task, _Result | BadInput]]:
    """Yield each task with its result, in order of completion; the result is a `BadInput` if it failed.

    `open_worker`: called once in each worker with a device; returns a function of a task and a stop check.
    Functions, tasks and results must be picklable. `devices`: one process for each; if one dies, the others go on.
    `ray`: address of a cluster instead ("local" starts one), with a worker on `devices[0]` for each GPU or, on
    "cpu", each core, at most `most`; one that dies is restarted, and its task tried once more. `ready`: whether a
    task may begin, asked again after every result; one that may not until the end is left out. `stop`: returns True
    to begin no other task and to end those under way early (on Ray they are finished). Raises `BadInput` if a
    worker cannot load its models, and without Ray or its cluster.
    """
    left = list(tasks)
    under_way: dict[Future[Any], tuple[Any, _Task]] = {}
    stop_reader, stop_writer = multiprocessing.Pipe(duplex=False)
    died = BadInput(DIED)
    most = min(most or len(left), len(left))
    pool = _on_ray(ray, open_worker, devices[0], most) if ray else _here(open_worker, devices, stop_reader)
    with pool as (free, death):
        while True:
            for task in [task for task in left if ready(task)][: 0 if stop() else len(free)]:
                left.remove(task)
                submit = free.pop(0)
                under_way[submit(task)] = (submit, task)
            if not under_way:
                break
            if stop():
                stop_writer.close()
            for future in wait(under_way, timeout=0.5, return_when=FIRST_COMPLETED).done:
                submit, task = under_way.pop(future)
                opened = True
                try:
                    opened, result = future.result()
                    free.insert(0, submit)  # it has its models
                except death:
                    result = died
                if not opened:
                    raise result
                yield task, result
        yield from ((task, died) for task in left if not free)


class Worker:
    """A worker that loads its models at the first task. `of_process`: the one of this process."""

    of_process: Worker

    def __init__(self, load: Callable[[], Callable[[Any, Stop], Any]], stop: Stop) -> None:
        self._load = load
        self._stop = stop
        self._work: Callable[[Any, Stop], Any] | None = None

    def do(self, task: Any) -> tuple[bool, Any]:
        """Return whether models are loaded, and a task's result or `BadInput` (Ray would wrap an exception)."""
        try:
            self._work = self._work or self._load()
            return True, self._work(task, self._stop)
        except BadInput as refusal:
            return self._work is not None, refusal

    def start(self, master_reader: Connection) -> None:
        """Become this process's worker, and exit when the master closes its end of the pipe or is killed."""
        Worker.of_process = self
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master handles Ctrl-C
        threading.Thread(target=lambda: master_reader.poll(None) and os._exit(1), daemon=True).start()


def _do(task: Any) -> tuple[bool, Any]:
    return Worker.of_process.do(task)


@contextmanager
def _here(open_worker: Callable[[str], Any], devices: Sequence[str], stop_reader: Connection) -> Iterator[Pool]:
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks of running threads
    master_reader, master_writer = multiprocessing.Pipe(duplex=False)
    with ExitStack() as stack:
        workers = [Worker(partial(open_worker, device), stop_reader.poll) for device in devices]
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, spawn, worker.start, (master_reader,))) for worker in workers
        ]
        stack.callback(master_writer.close)
        yield [lambda task, to=pool: to.submit(_do, task) for pool in pools], BrokenProcessPool
        for pool in pools:
            pool.shutdown()  # before the pipe closes, as workers that exit at once leave semaphores behind


@contextmanager
def _on_ray(address: str, open_worker: Callable[[str], Any], device: str, most: int) -> Iterator[Pool]:
    if address == LOCAL:
        _keep_local()
    try:
        import ray

        cluster = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError as error:
        raise BadInput("ray is not installed; pip install 'sdvg[ray]', or leave --ray out") from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        fault = f"no Ray cluster answers at {address} ({first_line(error)[:120]})"
        raise BadInput(f"{fault}; call ray start --head, or give local") from error
    with cluster:
        listens = cluster.address_info["node_ip_address"]
        if address == LOCAL and listens != LOOPBACK:
            raise BadInput(f"Ray listens on {listens}, not on {LOOPBACK} alone; update it, or leave --ray out")
        gpus = int(not device.startswith("cpu"))
        count = max(1, min(most, int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))))
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=1)(Worker)
        workers = [actor.remote(partial(open_worker, device), bool) for _ in range(count)]
        submits = [lambda task, to=worker: to.do.remote(task).future() for worker in workers]
        yield submits, ray.exceptions.RayActorError


def _keep_local() -> None:
    """Let the cluster that Ray starts listen on the loopback address alone, with a token that only this call knows.

    Ray reads both from the environment; that the token counts is its default. Left alone, it listens on every
    address of a Linux machine, and writes a token for all clusters to come into the home folder.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # named after the systems where that is the default
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
