"""A double of `ray`: actors are objects of this process, and what they return is pickled there and back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any


class ToyRay:
    """What `workers` calls of `ray`. `address`: where it listens. `environment`: as seen at its start."""

    class exceptions:
        RayActorError = ConnectionAbortedError

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address_info = {"node_ip_address": address}
        self.environment: dict[str, str] = {}
        self.ended = False

    def init(self, **_: Any) -> ToyRay:
        self.environment = dict(os.environ)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.ended = True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda kind: SimpleNamespace(remote=lambda *parts: ToyActor(kind(*parts)))


class ToyActor:
    def __init__(self, worker: Any) -> None:
        self.do = SimpleNamespace(remote=lambda task: SimpleNamespace(future=lambda: self._future(worker, task)))

    def _future(self, worker: Any, task: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(worker.do(task))))  # noqa: S301
        return future
