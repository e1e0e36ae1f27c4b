"""A live session as pages steer it: a mailbox by run, and how far a page has played.

A page plays what is made, and says how far it is. The run then makes no more than a few blocks ahead, so that a word
acts soon; it holds when nobody watches, and ends when nobody comes back. Without any page nothing paces it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...sdvg_core.errors import BadInput, quoted
from ...sdvg_core.text.prompts import ALMOST, PROMPT_LINE, check_prompt
from ...sdvg_core.videos.live import AHEAD, Steering
from .live import LiveRun

CONNECTED = 10.0
"""Seconds after its last word for which a page counts as one that plays."""
UNSEEN = 60.0
"""Seconds without such a page after which a session holds."""
MOST_AHEAD = 16
PATIENCE = 10
"""Minutes for which a session is held before it ends, so that it never blocks the queue for ever."""
MOST_PATIENCE = 24 * 60
PACE = {"ahead": [AHEAD, MOST_AHEAD], "patience": [PATIENCE, MOST_PATIENCE]}
"""What a page may set: the usual value, and the most."""
ACTS_A_SECOND = 20
TOO_MANY = f"over {ACTS_A_SECOND} messages came in a second; wait a moment"
MOST_PAGES = 64
STRIPPED = ("//", "/*", "\\")
"""What the page's own code takes out of a prompt before it is queued."""


class TooMany(BadInput):
    """More acts came than a session takes."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A page that plays a session. `at`: number of blocks that it has shown.

    `since`, `seen`: seconds of its first and last word. `moved`: of the last one with another `at`.
    """

    since: float
    seen: float
    moved: float
    at: float


class LiveSession:
    """What pages ask of a live session. `act` is for any thread; `waits` for the run's own."""

    def __init__(
        self,
        steering: Steering,
        run: LiveRun,
        understand: Callable[[str], str],
        tell: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run`: as the page sees it. `understand`: see `PromptEncoder`. `tell`: tells pages the state."""
        self.why = ""  # it ended, if that was not asked for
        self._steering = steering
        self._run = run
        self._understand = understand
        self._tell = tell
        self._clock = clock
        self._lock = threading.RLock()
        self._acts = deque[float](maxlen=ACTS_A_SECOND)
        self._viewers = dict[str, Viewer]()
        self._ahead = AHEAD
        self._patience = float(PATIENCE)
        self._unseen = False
        self._held_since: float | None = None
        self._words = ""
        self._encoding = 0.0
        self._turns = itertools.count(1)
        self._telling = threading.Lock()
        self._told = 0

    # What pages ask for.

    def act(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a page asks for; return the block, from 1, that it counts from, and the prompt as it is taken.

        Raises `BadInput` for what cannot be, and `TooMany` if too much is asked.
        """
        act = asked.get("act")
        if act not in ("play", "end"):  # a page's own words are counted by page, and an end is never refused
            self._count()
        text = ""
        if act == "prompt":
            block, text = self._steer(asked)
        elif act == "again":
            block = self._steering.again(_whole(asked.get("block")))
        elif act == "hold":
            block = self._steering.hold()
        elif act == "resume":
            block = self._steering.resume()
        elif act == "end":
            block = self._steering.end()
        elif act == "play":
            block = self._play(asked)
        else:
            raise BadInput("a live session takes prompt, again, hold, resume, end and play; send one of them")
        if act != "play":
            self.show()
        return {"block": block, "text": text}

    def _count(self) -> None:
        with self._lock:
            now = self._clock()
            if len(self._acts) == ACTS_A_SECOND and now - self._acts[0] < 1:
                raise TooMany(TOO_MANY)
            self._acts.append(now)

    def _steer(self, asked: Mapping[str, Any]) -> tuple[int, str]:
        given = asked.get("text")
        text = None if given is None else self._understand(check_words(given))
        cut, fresh = asked.get("cut", False) is True, asked.get("fresh", False) is True
        block = self._steering.steer(text, cut=cut, fresh=fresh)
        self._words = text or self._words
        return block, text or ""

    def _play(self, asked: Mapping[str, Any]) -> int:
        page = str(asked.get("page"))[:64]
        at = _number(asked.get("at"), 0.0, 1e6, "at")
        with self._lock:
            now = self._clock()
            known = self._viewers.get(page, Viewer(now, -math.inf, now, at))
            if now - known.seen < 1 / ACTS_A_SECOND:
                raise TooMany(TOO_MANY)
            self._viewers.pop(page, None)  # so that it becomes the newest
            while len(self._viewers) >= MOST_PAGES:
                del self._viewers[next(iter(self._viewers))]
            self._viewers[page] = Viewer(known.since, now, known.moved if at == known.at else now, at)
            self._ahead = int(_number(asked.get("ahead", AHEAD), 1, MOST_AHEAD, "ahead"))
            self._patience = _number(asked.get("patience", PATIENCE), 0.1, MOST_PATIENCE, "patience")
        return self._steering.upcoming

    # What the run asks for.

    def waits(self) -> bool:
        """Return whether to wait with the next block; end a session that is stopped, or held for too long."""
        if self._run.stop_asked:
            self._steering.end()
            return False
        with self._lock:
            now = self._clock()
            ahead = self._is_ahead(now)
            unseen = self._is_unseen(now, ahead=ahead)
            held = unseen or self._steering.held
            self._held_since = (now if self._held_since is None else self._held_since) if held else None
            too_long = self._held_since is not None and now - self._held_since >= 60 * self._patience
            changed = unseen != self._unseen
            self._unseen = unseen
        if too_long:
            self.why = f"The session was held for {self._patience:g} minutes, so it ended; what was made is kept."
            self._steering.end()
            return False
        if changed:
            self.show()
        return unseen or ahead

    def _is_unseen(self, now: float, *, ahead: bool) -> bool:
        """Return whether no page plays: all are gone, or all stand still with blocks ahead of them."""
        pages = self._viewers.values()
        gone = all(now - page.seen > UNSEEN for page in pages)
        return bool(pages) and (gone or (ahead and all(now - page.moved > UNSEEN for page in pages)))

    def _is_ahead(self, now: float) -> bool:
        """Return whether enough is made ahead of the newest page that plays, or that did before all went."""
        if not self._viewers:
            return False
        playing = [page for page in self._viewers.values() if now - page.seen <= CONNECTED]
        newest = max(playing or self._viewers.values(), key=lambda page: page.since)
        return self._steering.upcoming - newest.at > self._ahead

    def encoded(self, seconds: float) -> None:
        """Tell pages how long a prompt took to encode."""
        self._encoding = seconds
        self.show()

    def show(self) -> None:
        """Tell pages the state, unless another thread has told them a newer one meanwhile."""
        turn = next(self._turns)
        held = self._unseen or self._steering.held
        state = {
            "turn": turn,
            "held": held,
            "why": ("unseen" if self._unseen else "asked") if held else "",
            "upcoming": self._steering.upcoming,
            "encoding": self._encoding,
            "words": self._words,
        }
        with self._telling:
            if turn > self._told:
                self._told = turn
                self._tell(state)


SESSIONS: dict[str, LiveSession] = {}
"""Live sessions under way, by id of their run."""


def check_words(text: Any) -> str:
    """Return a prompt for a live session. Raises `BadInput` for one that the graph could not hold as it is."""
    check_prompt(text)
    if len(str(text).strip().splitlines()) > 1:
        raise BadInput("a prompt of a live session is one line; leave the line breaks out")
    line = one_line(str(text))
    if found := next((mark for mark in STRIPPED if mark in line), None):
        raise BadInput(f"ComfyUI takes {quoted(found)} out of a prompt; write it in another way")
    if PROMPT_LINE.fullmatch(line) or ALMOST.fullmatch(line):
        raise BadInput(
            "the prompt begins as a line for a block does; leave the number out, it counts from the next block"
        )
    return line


def one_line(text: str) -> str:
    """Return a prompt as the lines of a recording have it, with one blank between words."""
    return " ".join(text.split())


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput("again names no block; send its number, such as 5")
    return value


def _number(value: Any, least: float, most: float, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise BadInput(f"{name} is no number; send one from {least:g} to {most:g}")
    return float(min(max(value, least), most))
