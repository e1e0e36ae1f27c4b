"""Rotary tables, computed once for each position in use."""

from __future__ import annotations

from typing import Any

import torch

from .attention import Ops

REMEMBERED_TABLES = 4
Grid = tuple[int, int, int]


class RopeTables:
    """The rotary tables of one model on one device, by first position and grid. It keeps the few used last.

    A model that recomputes its context needs only one table for the window and one for the block. The context pass
    over a block that the model generated itself reuses the table of its denoising passes.
    """

    def __init__(self, tree: Any, ops: Ops, device: torch.device) -> None:
        self._tree, self._ops, self._device = tree, ops, device
        self._known: dict[tuple[int, Grid], Any] = {}

    def __call__(self, first: int, grid: Grid) -> Any:
        """Return the table of `grid` = (t, h, w) tokens whose first latent frame is at position `first`."""
        key = (first, grid)
        table = self._known.pop(key) if key in self._known else self._ops.rope(self._tree, *key, self._device)
        self._known[key] = table  # the last used comes last
        if len(self._known) > REMEMBERED_TABLES:
            del self._known[next(iter(self._known))]
        return table
