"""Runs that the page can ask for: their events, small pictures of their blocks, and whether to stop.

They are kept in memory, with limits, so that a page that is reloaded can show them again.
"""

from __future__ import annotations

import io
import itertools
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from ..host.job import KeptBlocks
from .asked import Trace

MOST_RUNS = 16
MOST_EARLIER = 4
MOST_LIVE_TAKES = 32
MOST_TRACES = 256
SPRITE_WIDTH = 256
"""Pixels, of one frame in a sprite."""
SPRITE_QUALITY = 70
"""JPEG quality: about 9 KB a frame and 110 KB a block for photographs."""
LONGEST_ROW = 65_000
"""Pixels of a sprite's width: a JPEG has at most 65535."""
MOST_SPRITE_BYTES = 64 << 20
"""Bytes of sprites kept for one run; beyond, the oldest are dropped."""
_changing = threading.RLock()
_changes = itertools.count(int(1000 * time.time()))
"""Numbers of what pages can be told. Of one thousand a second, all of a server are higher than those of one before it."""


@dataclass(slots=True)
class LiveRun:
    """One run of a sampler, as the page sees it.

    `begin`: fields of its first event, among them the ids `run`, `node` and `workflow`; `done`: of its last.
    `clip_frames`: number of its frames that belong to the clip it continues. `models`, `keys`, `pixel_keys`: cache
    keys for the forecast in `reuse`. `beginnings`: its kept blocks by digest; see `kept`. `digests`: of the beginning of
    its shot up to each block. `trace`: what it left for the
    forecast; None if its signature is not known. Of a live session: `edition`: how often it was set back; `state`:
    as its pages were told last. `begun`, `changed`: numbers of its first and last change.
    """

    begin: dict[str, Any]
    sprites: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    done: dict[str, Any] | None = None
    stop_asked: bool = False
    clip_frames: int = 0
    models: tuple[weakref.ref[nn.Module], ...] = ()
    keys: tuple[str, ...] = ()
    pixel_keys: list[str] = field(default_factory=list)
    beginnings: dict[str, KeptBlocks] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    trace: Trace | None = None
    edition: int = 0
    state: dict[str, Any] | None = None
    begun: int = 0
    changed: int = 0
    _log: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of its blocks."""
        return [event for _, event in self._log]

    def add(self, event: dict[str, Any]) -> None:
        """Add the event of a block."""
        with _changing:
            self.changed = next(_changes)
            self._log.append((self.changed, event))

    def tell(self, state: dict[str, Any]) -> None:
        """Keep what pages are told of a live session's state."""
        with _changing:
            self.changed = next(_changes)
            self.state = state

    def end(self, done: dict[str, Any]) -> None:
        """Keep the last event."""
        with _changing:
            self.changed = next(_changes)
            self.done = done

    def set_back(self, number: int) -> None:
        """Drop the blocks from `number` on, from 1, which are made anew."""
        with _changing:
            self.changed = next(_changes)
            self.edition += 1
            self._log = [entry for entry in self._log if entry[1]["number"] < number]
        self.sprites = OrderedDict((at, sprite) for at, sprite in self.sprites.items() if at < number)

    def add_sprite(self, number: int, frames: Tensor) -> dict[str, int]:
        """Store a sprite of a block's frames `b f c h w`; return its frame count and cell size in pixels."""
        cells = small(frames[0])
        self.sprites[number] = jpeg(cells)
        while sum(map(len, self.sprites.values())) > MOST_SPRITE_BYTES and len(self.sprites) > 1:
            self.sprites.popitem(last=False)
        return {"frames": cells.shape[0], "width": cells.shape[3], "height": cells.shape[2]}

    def as_dict(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return {**self.begin, "events": self.events, "done": self.done, "state": self.state}

    def changes(self, after: int) -> dict[str, Any]:
        """Return the run as JSON values without what a page knows by the change `after`.

        `same`: the number of its first events that are as they were then; the events that are left come after these.
        """
        same = sum(number <= after for number, _ in self._log)
        whole = self.as_dict() if self.begun > after else {"run": self.begin["run"], "state": self.state}
        ended = {"done": self.done} if self.done else {}
        return {**whole, **ended, "same": same, "events": self.events[same:]}


def small(frames: Tensor) -> Tensor:
    """Return frames `f c h w` scaled to at most `SPRITE_WIDTH` pixels, so that a row fits `LONGEST_ROW`."""
    scale = min(SPRITE_WIDTH, LONGEST_ROW // frames.shape[0], frames.shape[3]) / frames.shape[3]
    size = (max(1, round(frames.shape[2] * scale)), max(1, round(frames.shape[3] * scale)))
    return F.interpolate(frames.float(), size=size, mode="area").clamp(0, 1)


def jpeg(frames: Tensor) -> bytes:
    """Return frames `f c h w` side by side as one JPEG."""
    row = torch.cat(tuple(frames), dim=2).movedim(0, -1)
    picture = Image.fromarray((row * 255).round().byte().cpu().numpy())
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=SPRITE_QUALITY)
    return file.getvalue()


class LiveRuns:
    """The remembered runs: the newest of every node, some earlier ones, and runs that make takes."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str | None, str | None], LiveRun] = OrderedDict()
        self._takes: deque[LiveRun] = deque(maxlen=MOST_LIVE_TAKES)
        self._earlier: deque[LiveRun] = deque(maxlen=MOST_EARLIER)
        self.traces: deque[Trace] = deque(maxlen=MOST_TRACES)

    def begin(self, run: LiveRun) -> None:
        """Remember a run as the newest of its node, or in addition to it if it makes a take."""
        with _changing:
            run.begun = run.changed = next(_changes)
            if run.begin.get("until"):
                self._takes.append(run)
                return
            place = (run.begin["workflow"], run.begin["node"])
            self._earlier.extend(filter(None, [self._runs.pop(place, None)]))
            self._runs[place] = run
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def all(self) -> list[Mapping[str, Any]]:
        """Return every run as JSON values."""
        return [run.as_dict() for run in self.now()]

    def since(self, after: int) -> dict[str, Any]:
        """Return what changed after a change, by its number; all that there is after 0, or one that never was.

        `newest`: number of the last change. `known`: all runs. `runs`: those that changed.
        """
        with _changing:
            runs = self.now()
            newest = max((run.changed for run in runs), default=0)
            after = after if after <= newest else 0
            changed = [run.changes(after) for run in runs if run.changed > after]
        known = [run.begin["run"] for run in runs]
        return {"after": after, "newest": newest, "known": known, "runs": changed}

    def sprite(self, run_id: str, number: int) -> bytes | None:
        """Return the JPEG of a run's block, or None if it is no longer kept."""
        return next((run.sprites.get(number) for run in self.now() if run.begin["run"] == run_id), None)

    def stop(self, node: str) -> bool:
        """Ask the run of a node to end after the current block. Return False if the node has no run under way."""
        active = [run for run in self.now() if run.begin["node"] == node and run.done is None]
        for run in active:
            run.stop_asked = True
        return bool(active)

    def now(self) -> list[LiveRun]:
        """Return a copy of all runs, as another thread may begin one meanwhile."""
        return [*self._takes, *self._earlier, *self._runs.values()]


RUNS = LiveRuns()
