"""What the training scripts share: a seeded stream of scenes, a log, and checkpoints one can go on from."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.rows import add_rows

WORK = Path("out/training")
"""Checkpoints and logs of the training; not part of the repository."""


class Log:
    """Prints a line of numbers and appends it to a JSON-lines file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()

    def __call__(self, **numbers: Any) -> None:
        line = {"minutes": round((time.monotonic() - self._began) / 60, 2), **numbers}
        row = {name: round(value, 5) if isinstance(value, float) else value for name, value in line.items()}
        print(json.dumps(row), flush=True)
        add_rows(self._path, [row])


class Average:
    """An exponential moving average of a module's weights, which is what gets shipped."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self.steps = 0
        self.weights = {name: w.detach().clone().float() for name, w in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move towards the module's weights; quickly at first."""
        self.steps += 1
        decay = min(self._decay, (1 + self.steps) / (10 + self.steps))
        for name, w in module.state_dict().items():
            self.weights[name].lerp_(w.float(), 1 - decay)


def save_checkpoint(path: Path, **parts: Any) -> None:
    """Write a checkpoint as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".part")
    torch.save(parts, staged)
    staged.replace(path)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of an optimiser the same learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def seeded(seed: int, *more: object) -> random.Random:
    """Return a generator of its own for a purpose."""
    return random.Random(f"{seed}/{'/'.join(map(str, more))}")
