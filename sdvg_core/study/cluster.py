"""The work of a study on a Ray cluster: one set of models per worker, and the same rows for any number of workers.

The model files must be at the same paths on every machine. A worker that dies is restarted and its unit repeated.
Only the caller writes rows, so no row exists twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import BadInput
from .equipment import Equipment, warm_up
from .unit import Unit, run_unit
from .workers import Finished, Found

DEATHS = 3
"""How many workers may die over one unit before the study gives up."""


def work_on_ray(
    units: Sequence[Unit],
    open_equipment: Callable[[], Equipment],
    *,
    address: str,
    gpus: float,
    most: int | None = None,
) -> Iterator[Found | Finished]:
    """Yield the records of all units, one unit at a time, in any order.

    `address`: of the cluster; "local" starts one on this machine. `gpus`: GPUs per worker. `most`: the most workers
    to use; None for as many as fit.
    Raises `BadInput` if Ray is not installed, if there is no cluster, or if a worker raises it.
    """
    ray = _connect(address)
    try:
        room = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1) / (gpus or 1))
        count = max(1, min(len(units), room, most or room))
        worker = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=DEATHS * len(units), max_task_retries=DEATHS)(
            RayWorker
        )
        idle = [worker.remote(open_equipment) for _ in range(count)]
        yield from _hand_out(ray, units, idle)
    finally:
        ray.shutdown()


class RayWorker:
    """The models of one worker, loaded when its first unit comes."""

    def __init__(self, open_equipment: Callable[[], Equipment]) -> None:
        self._open = open_equipment
        self._equipment: Equipment | None = None

    def do(self, unit: Unit) -> list[Found] | BadInput:
        """Return all records of a unit, or the `BadInput` it met: Ray would wrap a raised one."""
        try:
            if self._equipment is None:
                self._equipment = self._open()
                warm_up(self._equipment, unit.condition)
            return [Found(file, record) for file, record in run_unit(self._equipment, unit)]
        except BadInput as refusal:
            return refusal


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


def _hand_out(ray: Any, units: Sequence[Unit], idle: list[Any]) -> Iterator[Found | Finished]:
    left = list(reversed(units))
    at_work: dict[Any, tuple[Any, Unit]] = {}
    while left or at_work:
        while left and idle:
            worker, unit = idle.pop(), left.pop()
            at_work[worker.do.remote(unit)] = (worker, unit)
        ready, _ = ray.wait(list(at_work))
        for reference in ready:
            worker, unit = at_work.pop(reference)
            try:
                result = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                raise BadInput(
                    f"no worker finished {unit.prompt!r}, seed {unit.seed}: {DEATHS + 1} died of it; "
                    "see Ray's logs for why (memory?) and call the study again: all rows so far are kept"
                ) from error
            if isinstance(result, BadInput):
                raise result
            yield from result
            yield Finished(unit)
            idle.append(worker)
