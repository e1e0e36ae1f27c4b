"""Measure what routes are worth on held-out prompts: decibels, and what is there at all, block by block.

    python -m lab.training.measure_pair OUT.jsonl [--prompts 60] [--skip 0] [--kind KIND]
        [--drafter FILE] [--target FILE]

Of all kinds, every second prompt is of a thing alone. What a prompt measures goes into OUT.jsonl as it is made, and
the same command goes on after the last. A video of fewer blocks is the beginning of that of nine. "anchor": all but
the first block by the drafter (the preset `fast`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lab.research.world import draw_scene
from lab.rows import add_rows, read_rows
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import judge
from sdvg_core.pocket.presence import presence
from sdvg_core.pocket.world import Scene

from .causal import BLOCK, BLOCKS, FRAMES, SCHEDULE, Prompted
from .common import seeded
from .roll_out import FIRST, roll_out
from .shipped import Shipped, load_model

TOGETHER = 20
SEAMS = tuple(FIRST + 4 * BLOCK * number for number in range(BLOCKS - 1))
HANDED_OVER = "handed over"
ROUTES = {
    "draft": ((BLOCKS, "drafter"),),
    "anchor": ((1, "target"), (BLOCKS, "drafter")),
    "first two": ((1, "target"), (2, HANDED_OVER), (BLOCKS, "drafter")),
    "careful": ((1, "target"), (4, HANDED_OVER), (BLOCKS, "drafter")),
    "target": ((BLOCKS, "target"),),
}
"""Who makes the blocks up to which."""

LENGTHS = (3, 4, 5, 6, 9)


KINDS: dict[str, Callable[[Scene], bool]] = {
    "all": lambda scene: True,
    "alone": lambda scene: scene.other is None,
    "alone, big": lambda scene: scene.other is None and scene.mover.size == "big",
    "alone, big, slow": lambda scene: KINDS["alone, big"](scene) and scene.mover.pace != "runs",
    "alone, small": lambda scene: scene.other is None and scene.mover.size == "small",
    "two": lambda scene: scene.other is not None,
    "two, both big": lambda scene: scene.other is not None and {t.size for t in scene.things} == {"big"},
}


def scenes_of(generator: random.Random, count: int, held_out: bool = False, kind: str = "all") -> list[Scene]:
    """Draw scenes of a kind; of all kinds, every second one of a thing alone."""
    found: list[Scene] = []
    while len(found) < count:
        scene = draw_scene(generator, held_out=held_out)
        if KINDS[kind](scene) and (kind != "all" or bool(scene.relation) == bool(len(found) % 2)):
            found.append(scene)
    return found


class HandedOver(Prompted):
    """Half of the steps of denoising by the drafter, the others by the target."""

    def __init__(self, models: Mapping[str, WanTree], embedding: Tensor, real: Tensor) -> None:
        super().__init__(models["drafter"], embedding, real)
        self._target = Prompted(models["target"], embedding, real)

    def see(self, context: Tensor) -> Prompted:
        """Let both models take in the context."""
        self._target.see(context)
        return super().see(context)

    def velocity(self, x: Tensor, timestep: float) -> Tensor:
        """Predict the velocity by the model whose step it is."""
        late = timestep <= SCHEDULE[len(SCHEDULE) // 2].timestep
        return self._target.velocity(x, timestep) if late else super().velocity(x, timestep)


@torch.no_grad()
def measure(
    shipped: Shipped, models: Mapping[str, WanTree], scenes: Sequence[Scene], seed: int
) -> list[dict[str, Any]]:
    """Return by prompt and route decibels and presence of every block; the same noise for every route."""
    heard = shipped.embed([scene.text for scene in scenes])
    found: list[dict[str, Any]] = [{"prompt": scene.text} for scene in scenes]
    for name, stages in ROUTES.items():
        torch.manual_seed(seed)
        blocks: list[Tensor] = []
        for count, maker in stages:
            tree, ask = (models, HandedOver) if maker == HANDED_OVER else (models[maker], Prompted)
            _, blocks, frames = roll_out(tree, shipped.vae, *heard, count=count, begun=blocks, ask=ask)
        for row, clip, scene in zip(found, frames, scenes, strict=True):
            there = presence(clip, scene, torch.arange(FRAMES))
            row[name] = {
                "dB": [part.mean().item() for part in judge(clip, scene).quality.tensor_split(SEAMS)],
                "there": [[thing.nanmean().item() for thing in part.T] for part in there.tensor_split(SEAMS)],
            }
    return found


def interval(value: Callable[[Any], float], count: int, draws: int = 2000) -> str:
    """Return a figure of `count` prompts, given by their numbers, with its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).integers(count, size=(draws, count))
    low, high = np.nanquantile([value(numbers) for numbers in drawn], (0.025, 0.975))
    return f"{value(np.arange(count)):.2f} [{low:.2f}, {high:.2f}]"


def numbers_of(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return nested lists of a row as an array, with NaN for null."""
    return np.array(values, dtype=float)


def interval_of_mean(values: ArrayLike) -> str:
    """Return the mean of figures `prompts ...` with its interval; NaN is left out."""
    array = np.asarray(values)
    return interval(lambda numbers: float(np.nanmean(array[numbers])), len(array))


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return by kind of prompt the figures of every block, and those of videos of several lengths."""
    made: dict[str, Any] = {}
    for kind, fits in KINDS.items():
        part = [row for row in rows if fits(parse(row["prompt"]))]
        if len(part) < 3:
            continue
        dB = {name: np.array([row[name]["dB"] for row in part]) for name in ROUTES}
        there = {
            name: np.array([np.nanmean(np.array(row[name]["there"], dtype=float), axis=1) for row in part])
            for name in ROUTES
        }
        found: dict[str, Any] = {
            "dB by block": {name: of.mean(axis=0).round(1).tolist() for name, of in dB.items()},
            "there by block": {name: np.nanmean(of, axis=0).round(2).tolist() for name, of in there.items()},
        }
        for blocks in LENGTHS:
            whole = {name: of[:, :blocks].mean(axis=1) for name, of in dB.items()}
            last = {name: of[:, blocks - 1] for name, of in there.items()}

            def share(i: Any, of: Mapping[str, Any] = whole) -> float:
                draft, anchor, target = (of[name][i].mean() for name in ("draft", "anchor", "target"))
                return float(100 * (anchor - draft) / (target - draft))

            found[f"{blocks} blocks"] = {
                "dB": {name: interval_of_mean(of) for name, of in whole.items()},
                "there": {name: interval_of_mean(of) for name, of in last.items()},
                "share closed": interval(share, len(part)),
            }
        made[f"{kind} ({len(part)})"] = found
    return made


def main() -> None:
    """Measure what is missing, and print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--prompts", type=int, default=60)
    options.add_argument("--skip", type=int, default=0, help="prompts measured before, a multiple of 20")
    options.add_argument("--kind", choices=KINDS, default="all")
    options.add_argument("--seed", type=int, default=0, help="of the prompts and of the noise")
    for role in ("drafter", "target"):
        options.add_argument(f"--{role}", type=Path, help="a file in place of the shipped one")
    args = options.parse_args()
    torch.set_num_threads(1)
    shipped = Shipped()
    models = shipped.models | {
        role: load_model(getattr(args, role)) for role in shipped.models if getattr(args, role)
    }
    scenes = scenes_of(seeded(args.seed, "figures"), args.prompts, held_out=True, kind=args.kind)
    done = args.skip + len(read_rows(args.out))
    for first in range(done - done % TOGETHER, args.prompts, TOGETHER):
        found = measure(shipped, models, scenes[first : first + TOGETHER], 1000 * args.seed + first)
        add_rows(args.out, found[max(0, done - first) :])
    print(json.dumps(tables(read_rows(args.out)), indent=1))


if __name__ == "__main__":
    main()
