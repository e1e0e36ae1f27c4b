"""Rotary tables, computed once for every position that is in use."""

from __future__ import annotations

from typing import Any

import torch

from .attention import Ops

REMEMBERED_TABLES = 4
Grid = tuple[int, int, int]


class RopeTables:
    """The rotary tables of one model on one device, by first position and grid; the few last used are remembered.

    A model that recomputes its context has a table for the window and one for the block, and needs no others. The
    context pass over a block that the model made itself takes the table of its denoising.
    """

    def __init__(self, tree: Any, ops: Ops, device: torch.device) -> None:
        self._tree, self._ops, self._device = tree, ops, device
        self._known: dict[tuple[int, Grid], Any] = {}

    def __call__(self, first: int, grid: Grid) -> Any:
        """Return the table of `grid` = (t, h, w) tokens whose first latent frame is at position `first`."""
        key = (first, grid)
        table = self._known.pop(key) if key in self._known else self._ops.rope(self._tree, *key, self._device)
        self._known[key] = table  # the last used is the last in order
        if len(self._known) > REMEMBERED_TABLES:
            del self._known[next(iter(self._known))]
        return table
