"""Videos over servers: each whole on one of them, once in the output, whatever happens to the servers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from ..errors import BadInput
from ..pipeline.stopping import Stopping
from ..pipeline.table import Row, VideoTable, waiting_row
from .client import Address, Client
from .lane import Ended, Failed, Gone, Lane, Made, News, Pace, Retired, Seen
from .orders import Order
from .pool import Pool
from .workflow import Workflow

HEAR_SECONDS = 0.2
"""How soon a wish to stop is heard."""
FAREWELL = 3.0
"""Seconds that the threads get to leave their files in order when everything ends."""


class Progress(Protocol):
    """Shows what the servers do."""

    def news(self, news: News, row: Row | None) -> None:
        """Show one of the news. `row`: of a video that was made or given up."""
        ...


def make_on_servers(
    workflow: Workflow,
    orders: Sequence[Order],
    output: Path,
    addresses: Sequence[Address],
    show: Callable[[int], Progress],
    *,
    stopping: Stopping,
    pace: Pace | None = None,
) -> tuple[Row, ...]:
    """Have the servers make every video that is not there, in its folder, and return the rows of the table.

    `show`: gets how many videos are to be made. `stopping`: hears whether to queue nothing more, take what
    waits out of the queues and fetch what is running.
    Raises `BadInput` if no server answers at the beginning, if all refuse everything, or if nothing can be written.
    """
    rows = [waiting_row(order.number, order.folder, order.prompt, order.seed) for order in orders]
    there = {order.number: order.there for order in orders if order.there}
    table = VideoTable(output, rows, workflow.blocks, there)
    to_make = [order for order in orders if not order.there]
    if not to_make:
        return table.rows
    progress, pool = show(len(to_make)), Pool(to_make)
    with stopping.heard(), _lanes(workflow, addresses, pool, pace or Pace()) as heard:
        attendance = _Attendance(addresses)
        while not attendance.ended:
            if stopping.asked:
                pool.stop()
            try:
                news = heard.get(timeout=HEAR_SECONDS)
            except queue.Empty:
                continue
            progress.news(news, _note(news, table))
            attendance.note(news)
        if not pool.over:
            raise BadInput(f"{attendance.refusal}; change the workflow, and go on with --resume")
    return table.rows


def _note(news: News, table: VideoTable) -> Row | None:
    """Put a video's end into the table."""
    if isinstance(news, Made):
        return table.made(news.order.number, news.report)
    if isinstance(news, Failed) and not news.again:
        return table.failed(news.order.number, news.reason)
    return None


@contextmanager
def _lanes(
    workflow: Workflow, addresses: Sequence[Address], pool: Pool, pace: Pace
) -> Iterator[queue.SimpleQueue[News]]:
    """Serve every server in a thread of its own, and yield where their news arrive."""
    heard: queue.SimpleQueue[News] = queue.SimpleQueue()
    make = partial(Lane, workflow=workflow, pool=pool, tell=heard.put, pace=pace)
    lanes = [make(number, Client(address)) for number, address in enumerate(addresses)]
    # A thread may be waiting for a silent server when everything is to end at once.
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        yield heard
    finally:
        pool.halted.set()
        until = time.monotonic() + FAREWELL
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


class _Attendance:
    """Which servers there are. `refusal`: why the last one to leave takes no video."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._never: dict[int, str] = {}
        self._seen, self._ended = False, 0
        self.refusal = ""

    @property
    def ended(self) -> bool:
        """Whether no server has any more to tell."""
        return self._ended == len(self._addresses)

    def note(self, news: News) -> None:
        """Take the news. Raises what ended a thread, and `BadInput` if no server has answered, ever."""
        self._seen |= isinstance(news, Seen)
        if isinstance(news, Ended):
            if news.error:
                raise news.error
            self._ended += 1
        elif isinstance(news, Retired):
            self.refusal = f"{self._addresses[news.server]} takes no video: {news.reason}"
        elif isinstance(news, Gone) and not self._seen:
            self._never[news.server] = news.reason
            if len(self._never) == len(self._addresses):
                address, reason = self._addresses[news.server], news.reason
                raise BadInput(
                    f"a ComfyUI server should answer at {address}, but none does ({reason:.120}); start it, or "
                    "check the address"
                )
