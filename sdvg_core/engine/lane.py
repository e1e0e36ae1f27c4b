"""Work in the background: one thread, and on a CUDA device a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Unwanted(BaseException):
    """Ends work in a lane when nobody wants its result any more."""


class Promise:
    """A tensor that one thread will give and another waits for."""

    def __init__(self) -> None:
        self._given: Future[tuple[Tensor, torch.cuda.Event | None]] = Future()

    def give(self, tensor: Tensor) -> None:
        """Hand the tensor over. `take` waits for what its stream still has to compute."""
        made = torch.cuda.Event() if tensor.is_cuda else None
        if made is not None:
            made.record(torch.cuda.current_stream(tensor.device))
        self._given.set_result((tensor, made))

    def give_up(self) -> None:
        """Say that the tensor will not come: `take` then raises `Unwanted`."""
        if not self._given.done():
            self._given.set_exception(Unwanted())

    def take(self) -> Tensor:
        """Wait for the tensor. Raises `Unwanted` if it will not come."""
        tensor, made = self._given.result()
        if made is not None:
            torch.cuda.current_stream(tensor.device).wait_event(made)
        return tensor


class Lane:
    """Runs one job after another in the background.

    On CUDA, a job starts after everything the caller had queued on the device. Once its result or error is out, the
    device has finished with it.
    """

    def __init__(self, device: torch.device, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after everything submitted before it. It sees the caller's context variables."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return self._pool.submit(copy_context().run, self._do, work)

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Let the caller use and drop tensors that were made in this lane.

        Otherwise the allocator could give their memory back to this lane while the caller's stream still reads it.
        """
        if self._stream is not None:
            here = torch.cuda.current_stream(self._stream.device)
            for tensor in tensors:
                if tensor.is_cuda:  # what was used again lies in host memory
                    tensor.record_stream(here)

    def close(self) -> None:
        """Wait for the job under way; afterwards the lane takes no more."""
        self._pool.shutdown(wait=True)

    def _do(self, work: Callable[[], T]) -> T:
        if self._stream is None:
            return work()
        with torch.cuda.stream(self._stream):
            try:
                return work()
            finally:
                # After a failure too: the stream may still be working on memory that is kept.
                self._stream.synchronize()
