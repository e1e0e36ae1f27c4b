"""The videos that are left, shared by the threads that each serve one server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from ..workers.news import Queue
from .orders import Order

TRIES, LOSSES = 2, 5
"""How often a video is tried, and how often a server may lose it."""

Taken = tuple[Order, frozenset[int]]
"""A video, and the servers that failed at it before."""


class Pool:
    """Every video is in one place at any time: here, with one server, or done with.

    `stopping`: nothing more is queued. `halted`: everything ends at once.
    """

    def __init__(self, orders: Iterable[Order]) -> None:
        self._left = Queue(orders, TRIES)
        self._lock = threading.Lock()
        self._alive: frozenset[int] = frozenset()
        self._out, self._losses = 0, Counter[int]()
        self.stopping, self.halted = False, threading.Event()

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        with self._lock:
            return self.halted.is_set() or not (self._left or self._out)

    def join(self, server: int) -> None:
        """Note that a server is there."""
        with self._lock:
            self._alive |= {server}

    def leave(self, server: int) -> None:
        """Note that a server is away; a video that others failed at does not wait for it."""
        with self._lock:
            self._alive -= {server}

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self.stopping = True
            self._left.drop()

    def take(self, server: int) -> Taken | None:
        """Return the next video for a server; None if there is none for it."""
        with self._lock:
            taken = self._left.take(server, self._alive)
            self._out += taken is not None
            return taken

    def claim(self, order: Order) -> Taken | None:
        """Return a video that was lost to the server that still has it; None if it is no longer here."""
        with self._lock:
            taken = self._left.claim(order)
            self._out += taken is not None
            self._losses[order.number] -= taken is not None
            return taken

    def done(self) -> None:
        """Note that a video was made."""
        with self._lock:
            self._out -= 1

    def failed(self, taken: Taken, server: int) -> bool:
        """Note that a server failed at a video. Return whether it will be tried again."""
        with self._lock:
            self._out -= 1
            again = self._left.give_back(*taken, server)
            if self.stopping:
                self._left.drop()
            return again

    def lost(self, taken: Taken) -> bool:
        """Take back a video that a server knows nothing of any more. Return False if that has happened too often.

        For some videos end the server that tries them.
        """
        with self._lock:
            self._out -= 1
            if self.stopping:
                return True
            self._losses[taken[0].number] += 1
            again = self._losses[taken[0].number] < LOSSES
            if again:
                self._left.put_back(*taken)
            return again
