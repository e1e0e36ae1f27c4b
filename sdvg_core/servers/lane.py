"""One server's share of the videos: a short queue of ours, which is looked after until every video is delivered.

We choose the id of a prompt before it is sent. So it does not matter where a connection breaks: afterwards the
server either knows the id or has lost it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ..report.run_report import RunReport
from .answers import Refused
from .client import Away, Client
from .orders import Order, deliver
from .pool import Pool, Taken
from .workflow import Workflow

AHEAD = 2
"""Prompts of ours in a server's queue: one that runs, and one so that it need not wait for us."""
PATIENCE = 3
"""How often a server may not answer before its videos go to the others."""
ALIKE = 3
"""Videos that a server refuses in the same words, and takes none, before it gets no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds: between two looks at a server, and the first and the longest pause while one is away."""

    look: float = 1.0
    first_pause: float = 1.0
    longest_pause: float = 60.0


@dataclass(frozen=True, slots=True)
class Made:
    """A video is in its folder."""

    server: int
    order: Order
    report: RunReport


@dataclass(frozen=True, slots=True)
class Failed:
    """A server did not make a video. `again`: whether it will be tried once more."""

    server: int
    order: Order
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """A server does not answer as one does, and is asked again in `pause` seconds."""

    server: int
    reason: str
    pause: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A server answers. The numbers of our videos that it is at, and that wait there."""

    server: int
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Retired:
    """A server refused every video in the same words, and gets no more."""

    server: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes from a server. `error`: of this machine, such as a full disk, which ends the call."""

    server: int
    error: BaseException | None = None


News = Made | Failed | Gone | Seen | Retired | Ended


class Lane:
    """Serves one server until the pool is empty. `tell`: gets the news, from the thread that `run` is called in."""

    def __init__(
        self,
        number: int,
        client: Client,
        workflow: Workflow,
        pool: Pool,
        tell: Callable[[News], None],
        pace: Pace,
    ) -> None:
        self._number, self._client, self._workflow, self._pool = number, client, workflow, pool
        self._tell, self._pace = tell, pace
        self._client_id = f"sdvg-queue-{uuid.uuid4()}"
        self._flight: dict[str, Taken] = {}
        # What it may still have though it counts as lost, and what it should not have any more.
        self._left_behind: dict[str, Order] = {}
        self._unwanted: set[str] = set()
        self._seen: Seen | None = None
        self._took_any, self._refusals = False, dict[int, str]()

    def run(self) -> None:
        """Do rounds until there is nothing left, with growing pauses while the server is away."""
        try:
            self._run()
        except BaseException as error:
            self._tell(Ended(self._number, error))
        else:
            self._tell(Ended(self._number))

    def _run(self) -> None:
        misses, pace = 0, self._pace
        while not self._pool.over:
            try:
                self.round()
            except Away as away:
                pause = min(pace.first_pause * 2**misses, pace.longest_pause)
                misses = min(misses + 1, PATIENCE + 10)
                self._miss(str(away), pause, give_up=misses >= PATIENCE)
                self._pool.halted.wait(pause)
            else:
                misses = 0
                if self._is_useless:
                    self._pool.leave(self._number)
                    self._tell(Retired(self._number, next(iter(self._refusals.values()))))
                    return
                self._pool.halted.wait(pace.look)

    def round(self) -> None:
        """Look what became of our prompts, and queue new ones. Raises `Away` wherever the server is not there."""
        # The queue first: a prompt that ends in between is in neither, if one asks for the history first.
        running, waiting = self._client.in_queue()
        self._pool.join(self._number)
        self._show(running)
        self._claim_left_behind()
        for prompt_id in (running | waiting) & self._unwanted:
            self._client.cancel(prompt_id, running=prompt_id in running)
        for prompt_id in [known for known in self._flight if known not in running | waiting]:
            self._settle(prompt_id)
        if self._pool.stopping:
            for prompt_id in waiting & set(self._flight):
                self._client.cancel(prompt_id, running=False)
        while len(self._flight) < AHEAD and not self._is_useless:
            taken = self._pool.take(self._number)
            if taken is None:
                break
            self._queue(taken)
        self._show(running)

    def _queue(self, taken: Taken) -> None:
        order, prompt_id = taken[0], str(uuid.uuid4())
        self._flight[prompt_id] = taken
        try:
            self._client.queue(prompt_id, self._workflow.filled(order.prompt, order.seed), self._client_id)
        except Refused as refused:
            self._unwanted.add(prompt_id)  # a workflow may be taken in part
            self._refusals[order.number] = str(refused)
            self._fail(prompt_id, str(refused))
        else:
            self._took_any = True

    def _claim_left_behind(self) -> None:
        """Take back what counted as lost while the server was away, unless another one has got it since."""
        for prompt_id, order in self._left_behind.items():
            taken = self._pool.claim(order)
            if taken:
                self._flight[prompt_id] = taken
            else:
                self._unwanted.add(prompt_id)
        self._left_behind.clear()

    def _settle(self, prompt_id: str) -> None:
        """Take what became of a prompt that is no longer in the queue."""
        order, _ = self._flight[prompt_id]
        entry = self._client.history(prompt_id)
        if entry is None:
            self._lose(prompt_id, "the server lost it")
            return
        try:
            report = deliver(self._client, order, entry, self._pool.halted.is_set)
        except Refused as refused:
            self._fail(prompt_id, str(refused))
        else:
            del self._flight[prompt_id]
            self._tell(Made(self._number, order, report))
            self._pool.done()

    def _fail(self, prompt_id: str, reason: str) -> None:
        taken = self._flight.pop(prompt_id)
        self._tell(Failed(self._number, taken[0], reason, self._pool.failed(taken, self._number)))

    def _lose(self, prompt_id: str, reason: str) -> None:
        taken = self._flight.pop(prompt_id)
        if not self._pool.lost(taken):
            self._tell(Failed(self._number, taken[0], f"{reason}, not for the first time", again=False))

    def _miss(self, reason: str, pause: float, *, give_up: bool) -> None:
        self._pool.leave(self._number)
        self._seen = None
        self._tell(Gone(self._number, reason, pause))
        for prompt_id in list(self._flight) if give_up else ():
            self._left_behind[prompt_id] = self._flight[prompt_id][0]
            self._lose(prompt_id, f"the server is away ({reason})")

    @property
    def _is_useless(self) -> bool:
        """Whether the server has refused several videos in the same words, and taken none."""
        reasons = self._refusals.values()
        return not self._took_any and len(reasons) >= ALIKE and len(set(reasons)) == 1

    def _show(self, running: frozenset[str]) -> None:
        numbers = {prompt_id: taken[0].number for prompt_id, taken in self._flight.items()}
        here = tuple(number for prompt_id, number in numbers.items() if prompt_id in running)
        there = tuple(number for prompt_id, number in numbers.items() if prompt_id not in running)
        seen = Seen(self._number, here, there)
        if seen != self._seen:
            self._seen = seen
            self._tell(seen)
