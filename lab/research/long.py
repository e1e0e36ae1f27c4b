"""Make the pocket world's clips far longer than its models were trained for, and show what each memory keeps.

    python -m lab.research.long --prompts 20 --output out/long

Every prompt by each of ROUTES with each of VARIANTS, or those that are named. Per block: its drift; the oracle's
quality of its last frame at the moment it shows, and at whichever moment of the thing's way fits best, for a clip
that runs late may be as clear as ever. Killed at any moment, it goes on where it stopped; several processes share
the prompts by --shard. Writes rows.csv, and long.png and long.md of the prompts that are finished. The finding:
docs/study.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from lab.rows import APPEND
from sdvg_core.cli import guarded
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import Condition
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import encode_prompts, load_models
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import BEST, REACH, weighted_error
from sdvg_core.pocket.renderer import render_with_mask
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from sdvg_core.pocket.world import PACES, RADII, SIZE, Scene
from sdvg_core.settings.route import First, Route, Stride, TargetOnly

from .markdown import markdown, with_interval
from .plots import BESIDE, BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, figure
from .protocol import FIRST_TWO
from .statistics import Bootstrap, as_json
from .world import held_out_prompts

INCREMENTAL = {"policy": "incremental", "relative": True, "window": 12}
VARIANTS: Mapping[str, tuple[dict[str, Any], float, str]] = {
    "recompute": ({}, 0.0, BLACK),
    "recompute, first frame kept": ({"keep_first_frame": True}, 0.0, ORANGE),
    "recompute, colour hold 0.3": ({}, 0.3, GREEN),
    "window of 12": (INCREMENTAL, 0.0, GREY),
    "window of 12, sink 3": ({**INCREMENTAL, "sink": 3}, 0.0, BLUE),
    "window of 12, deep sink": ({**INCREMENTAL, "context_memory": "deep-sink"}, 0.0, PINK),
    "window of 12, MemRoPE": ({**INCREMENTAL, "sink": 3, "context_memory": "memrope"}, 0.0, RED),
}
FIRST = "first two"
ROUTES = {
    "drafter": Route(First(0)),
    FIRST: FIRST_TWO.route,
    "stride 6": Route(Stride(6)),
    "stride 4": Route(Stride(4)),
    "target": Route(TargetOnly()),
}
NUMBERS = {
    "quality": "at its moment, dB",
    "clearness": "at the best moment, dB",
    "drift": "colour drift",
}
COLUMNS = ("prompt", "variant", "route", "block", *NUMBERS)
STEP = 4
ENDS = 8
"""Blocks that a point of the picture, and a figure of the table, is the mean of."""
LATE = 15
"""Blocks after which a clip of the first two shows nothing of the target's any more."""


def main(words: Sequence[str] | None = None) -> int:
    """Make what is missing, show what there is, and return the exit code."""
    parser = argparse.ArgumentParser("python -m lab.research.long", description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("out/long"))
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS))
    parser.add_argument("--routes", nargs="+", choices=tuple(ROUTES), default=tuple(ROUTES))
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="only every N-th prompt, from I on"
    )
    options = parser.parse_args(words)
    return guarded(lambda: _work(options), extra="research", instead="study")


def shard(text: str) -> tuple[int, int]:
    """Return which shard of how many, from 1, such as 2/8. Argparse prints the error for anything else."""
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no shard; give such as 2/8, the second of eight")
    return int(part), int(parts)


def _work(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "rows.csv"
    alone = [text for text in held_out_prompts(4 * options.prompts) if not parse(text).relation]
    first, step = options.shard
    prompts = alone[first - 1 : options.prompts : step]
    done = set(_videos(file, options.blocks))
    wanted = [(name, route) for name in options.variants for route in options.routes]
    files = replace(trained_set(), vae=pocket_fast_vae(), reward=None)
    load = pocket_options()
    embeddings = encode_prompts(files, prompts, load)
    models = {}
    for text in prompts:
        for name, route in wanted:
            settings, hold, _ = VARIANTS[name]
            own = replace(load, drafter=replace(load.drafter, **settings), target=replace(load.target, **settings))
            if name not in models:
                models[name] = load_models(files, own, check_models(files, own))
            if (text, name, route) not in done:
                rows = _video(models[name].build(), ROUTES[route], embeddings[text], text, options.blocks, hold)
                lines = [[text, name, route, n, *row] for n, row in enumerate(rows, 1)]
                with FileLock(options.output / APPEND), file.open("a", newline="", encoding="utf-8") as notes:
                    csv.writer(notes).writerows(lines)
        if step == 1:
            show(options.output, _videos(file, options.blocks), options.variants, options.routes)
    return 0


def _video(
    engine: Engine, route: Route, embedding: torch.Tensor, text: str, blocks: int, hold: float
) -> Iterable[tuple[float | None, ...]]:
    """Make a video, and return what NUMBERS names of each block."""
    condition = Condition(embedding, text)
    options: dict[str, Any] = {"width": SIZE, "height": SIZE, "colour_hold": hold}
    run = plan_run(engine, route, lambda _: condition, blocks=blocks, seed=42, **options)
    emitted = list(run.blocks())
    frames = torch.stack([one.frames[0, -1] for one in emitted])
    ends = torch.tensor([one.frames.shape[1] for one in emitted]).cumsum(0) - 1
    return zip(*qualities(frames, ends, parse(text)), (one.record.drift for one in emitted), strict=True)


def qualities(frames: torch.Tensor, shown_at: torch.Tensor, scene: Scene) -> tuple[list[float], ...]:
    """Return decibels of frames `f c h w` at their moments, give or take REACH, and at the best of a way."""
    way = int(2 * (SIZE - 2 * RADII[scene.mover.size]) / PACES[scene.mover.pace]) + 1
    reach = torch.arange(-REACH, REACH + 1)
    whole = render_with_mask(scene, torch.arange(way))
    found: tuple[list[float], ...] = [], []
    for frame, at in zip(frames, shown_at, strict=True):
        due = render_with_mask(scene, (at + reach).clamp(min=0))
        for moments, into in zip((due, whole), found, strict=True):
            into.append(min(float(-10 * weighted_error(frame[None], *moments).min().log10()), BEST))
    return found


def _videos(file: Path, blocks: int) -> Mapping[tuple[str, ...], list[dict[str, str]]]:
    """Return the rows of each whole video, by prompt, variant and route."""
    found: dict[tuple[str, ...], dict[str, dict[str, str]]] = defaultdict(dict)
    if file.exists():
        with file.open(newline="", encoding="utf-8") as notes:
            for row in csv.DictReader(notes, COLUMNS):
                found[row["prompt"], row["variant"], row["route"]][row["block"]] = row
    return {key: [*rows.values()] for key, rows in found.items() if len(rows) == blocks}


def show(
    folder: Path,
    videos: Mapping[tuple[str, ...], list[dict[str, str]]],
    variants: Sequence[str],
    routes: Sequence[str],
) -> None:
    """Draw and tabulate the means over the prompts that all of these variants and routes have."""
    everything = [(name, route) for name in variants for route in routes]
    prompts = [text for text in {key[0] for key in videos} if all((text, *one) in videos for one in everything)]
    if not prompts:
        return
    blocks = len(next(iter(videos.values())))

    def mean(name: str, route: str, number: str, first: int, last: int) -> float:
        rows = (row for text in prompts for row in videos[text, name, route][first:last])
        return fmean(float(row[number]) for row in rows if row[number])

    with figure(folder / "long.png", shape=(len(NUMBERS), len(routes)), size=(2 + 3.7 * len(routes), 10.0)) as axes:
        for row, (number, words) in zip(axes, NUMBERS.items(), strict=True):
            for one, route in zip(row, routes, strict=True):
                for name in variants:
                    parts = range(0, blocks, STEP)
                    values = [mean(name, route, number, first, first + STEP) for first in parts]
                    one.plot(
                        [first + (1 + STEP) / 2 for first in parts], values, color=VARIANTS[name][2], label=name
                    )
                one.set(title=route, ylabel=words if one is row[0] else "")
        axes[-1][len(routes) // 2].set_xlabel(
            f"block; each point the mean of {STEP} blocks, {len(prompts)} prompts"
        )
        axes[0][-1].legend(**BESIDE)
    columns = {"dB, first": ("clearness", 0), "dB, last": ("clearness", blocks - ENDS)}
    columns |= {"drift, last": ("drift", blocks - ENDS)}
    table = [
        [
            name,
            *(f"{mean(name, route, what, at, at + ENDS):.2f}" for route in routes for what, at in columns.values()),
        ]
        for name in variants
    ]
    head = (f"{ENDS} blocks at the best moment", *(f"{route}: {words}" for route in routes for words in columns))
    sections = (
        f"{len(prompts)} prompts",
        markdown(head, table),
        against_first_two(videos, prompts, variants, routes),
    )
    (folder / "long.md").write_text("\n\n".join(filter(None, sections)) + "\n", encoding="utf-8")


def against_first_two(
    videos: Mapping[tuple[str, ...], list[dict[str, str]]],
    prompts: Sequence[str],
    variants: Sequence[str],
    routes: Sequence[str],
) -> str:
    """Return by how much routes are clearer than the first two after block LATE, with intervals over prompts."""
    strides = [route for route in routes if route.startswith("stride")]
    blocks = len(next(iter(videos.values())))
    if FIRST not in routes or not strides or blocks <= LATE:
        return ""

    def late(text: str, name: str, route: str) -> float:
        return fmean(float(row["clearness"]) for row in videos[text, name, route][LATE:])

    bootstrap = Bootstrap(len(prompts))
    rows = []
    for name, route in product(variants, strides):
        gains = [late(text, name, route) - late(text, name, FIRST) for text in prompts]
        gain = as_json(bootstrap.mean(np.array(gains)), len(prompts))
        rows.append([name, route, with_interval(gain, sign="+")])
    return markdown(("context", f"blocks {LATE + 1} on, minus first two", "dB at the best moment"), rows)


if __name__ == "__main__":
    sys.exit(main())
