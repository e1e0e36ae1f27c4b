"""Work beside the caller's: one thread, and on a CUDA device a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Unwanted(BaseException):
    """Ends work in a lane that nobody will take."""


class Promise:
    """A tensor that one thread will give, and another waits for."""

    def __init__(self) -> None:
        self._given: Future[tuple[Tensor, torch.cuda.Event | None]] = Future()

    def give(self, tensor: Tensor) -> None:
        """Hand the tensor over; what its stream still has to do for it is waited for by who takes it."""
        made = torch.cuda.Event() if tensor.is_cuda else None
        if made is not None:
            made.record(torch.cuda.current_stream(tensor.device))
        self._given.set_result((tensor, made))

    def give_up(self) -> None:
        """End the work of whoever waits for a tensor that will not come."""
        if not self._given.done():
            self._given.set_exception(Unwanted())

    def take(self) -> Tensor:
        """Wait for the tensor. Raises `Unwanted` if it will not come."""
        tensor, made = self._given.result()
        if made is not None:
            torch.cuda.current_stream(tensor.device).wait_event(made)
        return tensor


class Lane:
    """Does what it is given one after the other, beside whoever gave it.

    On CUDA, work begins when what the caller had begun on the device is done, and the device is done with it when
    its result is there, or its error.
    """

    def __init__(self, device: torch.device, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin `work` when all before it is done. It sees the caller's context variables."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return self._pool.submit(copy_context().run, self._do, work)

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Let the caller use and drop tensors that were made in here.

        The allocator would otherwise give their memory to this lane again while the caller's stream still reads it.
        """
        if self._stream is not None:
            here = torch.cuda.current_stream(self._stream.device)
            for tensor in tensors:
                tensor.record_stream(here)

    def close(self) -> None:
        """Wait for what is under way; nothing can be given to it afterwards."""
        self._pool.shutdown(wait=True)

    def _do(self, work: Callable[[], T]) -> T:
        if self._stream is None:
            return work()
        with torch.cuda.stream(self._stream):
            try:
                return work()
            finally:
                # Also of work that failed: what the stream still has to do may be on memory that is kept.
                self._stream.synchronize()
