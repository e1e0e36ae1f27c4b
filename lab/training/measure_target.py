"""Measure what a target makes of held-out prompts, and what the decoders can show at all, by size and shape.

    python -m lab.training.measure_target OUT.jsonl --shapes SHAPES.pt [--prompts 200] [--kind KIND] [--target FILE]
    python -m lab.training.measure_target OUT.jsonl --compare OTHER.jsonl

Of every block: decibels by the oracle, the share of frames with the mover at its place, and, of one thing, the
share that shows its shape. "vae" and "taehv": the world's own clip, encoded by the VAE and decoded by each.
"target": nine blocks by the target alone, with the TAEHV for everything. What a prompt measures goes into OUT.jsonl
as it is made, and the same command goes on after the last. The same seed means the same noise: two files compare in
pairs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rows import add_rows, read_rows
from sdvg_core.decoders.open import load_vae
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.presence import at_its_place
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.pocket.trained_set import pocket_fast_vae
from sdvg_core.pocket.world import SHAPES, Scene

from .causal import FRAMES
from .common import seeded
from .many_scenes import Scenes, quality
from .measure_pair import KINDS, SEAMS, interval_of_mean, numbers_of, scenes_of
from .roll_out import roll_out
from .shapes import ShapeNet
from .shipped import Shipped, load_model

TOGETHER = 20
SHOWN = ("vae", "taehv", "target")
COLUMNS = ("dB", "place", "shape")
MOMENTS: dict[str, Callable[[Any], Any]] = {
    "block 1": lambda blocks: blocks[:, 0],
    "last": lambda blocks: blocks[:, -1],
    "clip": lambda blocks: np.nanmean(blocks, axis=1),
}
"""What a table says of the figures `prompts blocks`."""


class Bench:
    """The models, the two decoders and the network that names shapes."""

    def __init__(self, target: Path | None, shapes: Path) -> None:
        self.shipped = Shipped()
        self.target = load_model(target) if target else self.shipped.models["target"]
        self.codecs = {"vae": self.shipped.vae, "taehv": load_vae(pocket_fast_vae(), layers="planes")}
        self.net = ShapeNet.load(shapes)

    @torch.no_grad()
    def measure(self, scenes: Sequence[Scene], seed: int) -> list[dict[str, Any]]:
        """Return the rows of prompts."""
        torch.manual_seed(seed)
        heard = self.shipped.embed([scene.text for scene in scenes])
        _, _, frames = roll_out(self.target, self.codecs["taehv"], *heard)
        latents = [self.shipped.vae.encode(render_scene(scene, torch.arange(FRAMES))[None]) for scene in scenes]
        clips = {
            name: torch.cat([codec.decode(clip)[0] for clip in latents]) for name, codec in self.codecs.items()
        }
        rows: list[dict[str, Any]] = [{"prompt": scene.text} for scene in scenes]
        clips["target"] = frames.clone()
        for name, frames in clips.items():
            dB = quality(Scenes.of(scenes, torch.device("cpu")), frames)
            for row, scene, clip, of_clip in zip(rows, scenes, frames, dB, strict=True):
                row[name] = {"dB": _by_block(of_clip), "place": _by_block(at_its_place(clip, scene))}
                if scene.other is None:
                    shown = self.net.named(clip) == SHAPES.index(scene.mover.shape)
                    row[name]["shape"] = _by_block(shown.float())
        return rows


def _by_block(values: Tensor) -> list[float | None]:
    means = [part.nanmean().item() for part in values.tensor_split(SEAMS)]
    return [None if np.isnan(mean) else round(mean, 4) for mean in means]


def groups(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all prompts, by size, and by size and shape of the mover."""
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        thing = parse(row["prompt"]).mover
        for group in ("all", thing.size, f"{thing.size} {thing.shape}"):
            of.setdefault(group, []).append(row)
    return dict(sorted(of.items()))


def figures(rows: Sequence[dict[str, Any]], name: str, column: str) -> dict[str, Any]:
    """Return for every moment the figure of each prompt; NaN where nothing was due, or none was asked for."""
    blocks = [row[name].get(column, [None] * (len(SEAMS) + 1)) for row in rows]
    values = numbers_of(blocks)
    return {moment: of(values) for moment, of in MOMENTS.items() if not np.isnan(values).all()}


def figure(values: Any) -> str:
    """Return the mean with its interval, or alone if they are few."""
    if len(values) < 10:
        return f"{np.nanmean(values):.2f}"
    return interval_of_mean(values)


def tables(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures by group."""
    return {
        f"{group} ({len(part)})": {
            column: {
                name: {moment: figure(values) for moment, values in figures(part, name, column).items()}
                for name in SHOWN
            }
            for column in COLUMNS
        }
        for group, part in groups(rows).items()
    }


def compared(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return by group how much more the target of the rows gives than that of others, over common prompts."""
    count = min(len(rows), len(others))
    pairs = [
        {"prompt": a["prompt"], "a": a["target"], "b": b["target"]} for a, b in zip(rows, others, strict=False)
    ]
    assert all(rows[n]["prompt"] == others[n]["prompt"] for n in range(count))
    found: dict[str, Any] = {}
    for group, part in groups(pairs).items():
        found[f"{group} ({len(part)})"] = {
            column: {
                moment: figure(values - figures(part, "b", column)[moment])
                for moment, values in figures(part, "a", column).items()
            }
            for column in COLUMNS
        }
    return found


def main() -> None:
    """Measure what is missing, and print the tables; or compare what is there."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--shapes", type=Path, help="the network of lab.training.shapes")
    options.add_argument("--prompts", type=int, default=200)
    options.add_argument("--kind", choices=KINDS, default="alone")
    options.add_argument("--seed", type=int, default=0, help="of the prompts and of the noise")
    options.add_argument("--target", type=Path, help="a file in place of the shipped one")
    options.add_argument("--compare", type=Path, help="measure nothing; by how much OUT is above this")
    args = options.parse_args()
    if args.compare:
        print(json.dumps(compared(read_rows(args.out), read_rows(args.compare)), indent=1))
        return
    torch.set_num_threads(1)
    bench = Bench(args.target, args.shapes)
    scenes = scenes_of(seeded(args.seed, "figures"), args.prompts, held_out=True, kind=args.kind)
    for first in range(len(read_rows(args.out)), args.prompts, TOGETHER):
        add_rows(args.out, bench.measure(scenes[first : first + TOGETHER], 1000 * args.seed + first))
    print(json.dumps(tables(read_rows(args.out)), indent=1))


if __name__ == "__main__":
    main()
