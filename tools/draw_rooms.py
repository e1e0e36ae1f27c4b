"""Draw the rooms of the code and what they import from one another into docs/images/rooms.png.

`python tools/draw_rooms.py`, in an environment with the dev packages. The floors are those that
tests/repository/test_rooms.py checks, and the arrows are the imports, counted. Dark arrows are enough to get from a
room to everything it imports; the pale ones behind them are its direct imports of what it also reaches that way.
"""

from __future__ import annotations

import ast
import io
import random
import runpy
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for what the rules import
PICTURE = ROOT / "docs" / "images" / "rooms.png"
RULES = runpy.run_path(str(ROOT / "tests" / "repository" / "test_rooms.py"))
# From the ground up, without errors.py, which everything imports. Nodes and commands share the top.
FLOORS: tuple[tuple[str, ...], ...] = (*RULES["FLOORS"][1:-1], (*RULES["FLOORS"][-1], "nodes"))
WIDTH = 8
WIDE = 1.75
HIGH = 0.5
STEP = 1.1
FILLS = ("#E6ECF5", "#E6ECF5", "#E3F0EC", "#E3F0EC", "#F4EFDF", "#F4EFDF", "#F4EFDF", "#F5E6E2")
INK = "#26323D"
DARK = "#5B7690"
PALE = "#DFE6EC"
ROUND = "round,pad=0,rounding_size=0.1"
Arrow = tuple[str, str]
Places = dict[str, tuple[float, float]]


def lines_of(room: str) -> int:
    """Count the lines of a room."""
    folder = ROOT / "nodes" if room == "nodes" else ROOT / "sdvg_core" / room
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def arrows() -> Counter[Arrow]:
    """Count the imports from each room to each other one."""
    room_of = RULES["room_of"]
    doors = RULES["DOORS"]
    pairs = [(room_of(a), room_of(b)) for a, b in RULES["arrows"]() if a not in doors]
    for path in (ROOT / "nodes").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("sdvg_core."):
                pairs.append(("nodes", room_of(module.removeprefix("sdvg_core."))))
    return Counter(sorted((a, b) for a, b in pairs if a != b and "root" not in (a, b)))


def needed(every: Counter[Arrow]) -> list[Arrow]:
    """Return the arrows that no way along other arrows replaces."""

    def reach(room: str) -> set[str]:
        below = {b for a, b in every if a == room}
        return below.union(*(reach(b) for b in below))

    return [(a, b) for a, b in every if not any(b in reach(c) for x, c in every if x == a and c != b)]


def place(dark: list[Arrow]) -> Places:
    """Try columns for the rooms of every floor; keep those with short arrows that pass behind no other room."""
    dice = random.Random(1)

    def columns(floor: tuple[str, ...]) -> dict[str, float]:
        while True:
            tried = [dice.randrange(2 * WIDTH - 1) / 2 for _ in floor]
            if all(abs(a - b) >= WIDE + 0.2 for a, b in combinations(tried, 2)):
                return dict(zip(floor, tried, strict=True))

    def cost(places: Places) -> float:
        total = sum(0.02 * abs(x - (WIDTH - 1) / 2) for x, _ in places.values())
        for above, below in dark:
            (x0, y0) = places[above]
            (x1, y1) = places[below]
            total += 0.1 * abs(x0 - x1)
            for x, y in places.values():
                if y1 < y < y0:
                    total += max(0.0, 0.75 * WIDE - abs(x0 + (x1 - x0) * (y0 - y) / (y0 - y1) - x))
        return total

    found: list[tuple[float, Places]] = []
    for _ in range(8):
        best = {room: (x, h * STEP) for h, floor in enumerate(FLOORS) for room, x in columns(floor).items()}
        for _ in range(2000):
            height = dice.randrange(len(FLOORS))
            tried = best | {room: (x, height * STEP) for room, x in columns(FLOORS[height]).items()}
            best = min(best, tried, key=cost)
        found.append((cost(best), best))
    return min(found, key=lambda pair: pair[0])[1]


def draw(places: Places, every: Counter[Arrow], dark: list[Arrow]) -> Any:
    """Return the figure."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    figure = Figure(figsize=(9, 7.4))
    columns = [x for x, _ in places.values()]
    xlim = (min(columns) - WIDE * 0.6, max(columns) + WIDE * 0.6)
    ylim = (-0.4, len(FLOORS) * STEP - 0.7)
    axes = figure.add_axes((0, 0, 1, 1), xlim=xlim, ylim=ylim)
    axes.set_axis_off()
    for (above, below), count in every.items():
        (x0, y0) = places[above]
        (x1, y1) = places[below]
        ends = (x0 + 0.08 * (x1 - x0), y0 - HIGH / 2), (x1 - 0.08 * (x1 - x0), y1 + HIGH / 2)
        color, z = (DARK, 2) if (above, below) in dark else (PALE, 1)
        head: dict[str, Any] = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 1, "mutation_scale": 11}
        axes.add_patch(FancyArrowPatch(*ends, lw=0.8 + 0.15 * count, color=color, zorder=z, **head))
    for room, (x, y) in places.items():
        fill = FILLS[min(round(y / STEP), len(FILLS) - 1)]
        corner = (x - WIDE / 2, y - HIGH / 2)
        axes.add_patch(FancyBboxPatch(corner, WIDE, HIGH, boxstyle=ROUND, fc=fill, ec=INK, zorder=3))
        words: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "zorder": 4}
        axes.text(x, y + 0.08, room, weight="bold", size=12, **words)
        axes.text(x, y - 0.13, f"{round(lines_of(room), -2):,} lines", size=9.5, **words)
    return figure


if __name__ == "__main__":
    every = arrows()
    buffer = io.BytesIO()
    draw(place(needed(every)), every, needed(every)).savefig(buffer, dpi=120)
    Image.open(buffer).convert("RGB").quantize(48).save(PICTURE, optimize=True)
