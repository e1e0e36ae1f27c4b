"""What a video shows, for its report: how long each shot and clip is, and its colours."""

from __future__ import annotations

from torch import Tensor

from ..report.joins import levels_of


class Tape:
    """What a video shows, by the names of its shots and clips, in order: numbers of frames, and their levels."""

    def __init__(self, *, measured: bool) -> None:
        """`measured`: whether levels are needed."""
        self.frames: dict[str, int] = {}
        self.levels: dict[str, list[Tensor]] = {}
        self._measured = measured

    def add(self, name: str, frames: Tensor) -> None:
        """Add frames `1 f c h w` of a shot or clip."""
        self.frames[name] = self.frames.get(name, 0) + frames.shape[1]
        if self._measured:
            self.levels.setdefault(name, []).append(levels_of(frames))
