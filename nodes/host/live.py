"""The runs that the page can ask about: what each has made so far, small pictures of it, and whether to stop it."""

from __future__ import annotations

import io
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from .job import KeptBlocks

# How many are remembered: newest runs (one per node), earlier ones, takes to compare, and runs' first events.
MOST_RUNS = 16
MOST_EARLIER = 4
MOST_TAKES = 32
MOST_BEGUN = 256
SPRITE_WIDTH = 256
"""Pixels of a cell of a sprite."""
SPRITE_QUALITY = 70
"""For JPEG: about 9 KB a frame and 110 KB a block for photographs."""
LONGEST_ROW = 65_000
"""Pixels of a block's cells side by side: a JPEG has at most 65535."""
MOST_SPRITE_BYTES = 64 << 20
"""Bytes of pictures kept for one run; beyond, the oldest blocks' are dropped."""


@dataclass(slots=True)
class LiveRun:
    """One run of a sampler, as the page sees it. `begin`: the fields of its first event; `done`: of its last.

    In `begin` are the ids of `run`, `node` and `workflow`.

    `clip_frames`: how many of its frames are those of the clip that it continues.
    `models`, `keys`, `pixel_keys`: what the next run needs to use its blocks again; see `reuse`.
    `beginnings`: what can be kept of it as it is, by digest; see `kept`.
    """

    begin: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    sprites: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    done: dict[str, Any] | None = None
    stop_asked: bool = False
    clip_frames: int = 0
    models: tuple[weakref.ref[Any], ...] = ()
    keys: tuple[str, ...] = ()
    pixel_keys: list[str] = field(default_factory=list)
    beginnings: dict[str, KeptBlocks] = field(default_factory=dict)

    def add_sprite(self, number: int, frames: Tensor) -> dict[str, int]:
        """Keep a small picture of a block's frames `b f c h w`, side by side; return its measures."""
        cells = small(frames[0])
        self.sprites[number] = jpeg(cells)
        while sum(map(len, self.sprites.values())) > MOST_SPRITE_BYTES and len(self.sprites) > 1:
            self.sprites.popitem(last=False)
        return {"frames": cells.shape[0], "width": cells.shape[3], "height": cells.shape[2]}

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**self.begin, "events": self.events, "done": self.done}


def small(frames: Tensor) -> Tensor:
    """Return frames `f c h w` at most `SPRITE_WIDTH` pixels wide, narrower if there are very many."""
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
    """The newest runs, oldest first: one of every node, some earlier ones, and those that make takes."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str | None, str | None], LiveRun] = OrderedDict()
        self._takes: deque[LiveRun] = deque(maxlen=MOST_TAKES)
        self._earlier: deque[LiveRun] = deque(maxlen=MOST_EARLIER)
        self.begun: deque[dict[str, Any]] = deque(maxlen=MOST_BEGUN)

    def begin(self, run: LiveRun) -> None:
        """Remember a run as the node's newest; one that makes a take to be compared is kept with it."""
        self.begun.append(run.begin)
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

    def sprite(self, run_id: str, number: int) -> bytes | None:
        """Return the picture of a run's block; None if it is not kept."""
        return next((run.sprites.get(number) for run in self.now() if run.begin["run"] == run_id), None)

    def stop(self, node: str) -> bool:
        """Ask the run of a node to end after the current block. Return False if it has no run under way."""
        going_on = [run for run in self.now() if run.begin["node"] == node and run.done is None]
        for run in going_on:
            run.stop_asked = True
        return bool(going_on)

    def now(self) -> list[LiveRun]:
        """Return a copy: another run may begin on its own thread while the page's question is answered."""
        return [*self._takes, *self._earlier, *self._runs.values()]


RUNS = LiveRuns()
