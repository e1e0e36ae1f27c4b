"""What a `queue` over toy servers is asked for, and what it leaves in its output."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from toy_comfyui import Toy, shown_in

from sdvg_core.cli import main
from sdvg_core.pipeline import table

PROMPTS = [f"a red ball {number}" for number in range(6)]
OUTPUTS = ["report.json", "request.json", "route.png", "video.mp4"]


def queue(asked: list[str], servers: list[Toy], out: Path, *more: str) -> int:
    named = [word for toy in servers for word in ("--server", toy.url)]
    return main(["queue", *asked, *named, "--output", str(out), *more])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows(out: Path) -> list[dict[str, Any]]:
    """The lines of the table, which its two files agree about."""
    lines = [json.loads(line) for line in (out / table.LINES).read_text(encoding="utf-8").splitlines()]
    with (out / table.CSV).open(encoding="utf-8", newline="") as file:
        for line, cells in zip(lines, csv.DictReader(file), strict=True):
            assert {name: "" if value is None else str(value) for name, value in line.items()} == cells
    return lines


def check_whole(out: Path, prompts: list[str] = PROMPTS, seeds: tuple[int, ...] = (42,)) -> None:
    """Every video is there whole, shows what belongs there, and has a line that says so; nothing else is there."""
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    folders = [f"{number:04d}" for number in range(1, len(pairs) + 1)]
    assert names(out) == [*folders, table.CSV, table.LINES]
    for folder, pair, line in zip(folders, pairs, rows(out), strict=True):
        assert names(out / folder) == OUTPUTS
        assert shown_in(out / folder / "video.mp4") == pair
        assert (line["state"], line["folder"], line["seed"], line["route"]) == ("finished", folder, pair[1], "Far")
