"""A study's plots. The colours are Okabe and Ito's, which people with any colour vision can tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sdvg_core.files.outputs import whole_file

from .markdown import Numbers
from .statistics import CURVES

SIZE = (9.0, 5.4)
DOTS_PER_INCH = 130
BLACK = "#000000"
GREY = "#777777"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
RED = "#D55E00"
PINK = "#CC79A7"
STYLE: dict[str, Any] = {
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "axes.edgecolor": "#888888",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
BESIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False, "fontsize": 9}


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How to draw a group of configurations; a `line` joins those that differ in one number."""

    words: str
    colour: str
    marker: str
    line: str = "none"

    @property
    def style(self) -> dict[str, str]:
        return {"label": self.words, "color": self.colour, "marker": self.marker, "linestyle": self.line}


LOOKS = {
    "first": LineStyle("first m blocks the target's", BLACK, "o", "-"),
    "handover-2": LineStyle("first m, 2 steps handed over", RED, "P", "-"),
    "handover-3": LineStyle("first m, 3 steps handed over", RED, "X", "--"),
    "passes-2": LineStyle("first m, 2 passes of the target", SKY, "v", "-"),
    "stride": LineStyle("every nth block the target's", GREEN, "v"),
    "stride-2": LineStyle("every nth, 2 steps handed over", GREEN, "P"),
    "stride-3": LineStyle("every nth, 3 steps handed over", GREEN, "X"),
    "hybrid": LineStyle("SDVG-hybrid", ORANGE, "o", "-"),
    "drafts-3": LineStyle("the same with drafts of 3 steps", BLACK, "x"),
    "random": LineStyle("random, block 0 the target's", GREY, "o", "-"),
    "reward-min": LineStyle("reward, worst frame", BLUE, "o", "-"),
    "reward-mean": LineStyle("reward, mean frame", GREEN, "s", "--"),
    "random-unforced": LineStyle("random, block 0 too", SKY, "^"),
    "own": LineStyle("worst frame, own drafts as context", PINK, "D"),
}
COST = "cost per video of the published pair, in target blocks"


@contextmanager
def figure(path: Path, shape: tuple[int, int] = (1, 1), size: tuple[float, float] = SIZE) -> Iterator[Any]:
    """Give axes to draw on, or rows of them; then the figure is saved as PNG."""
    # The figure's own canvas: pyplot would keep figures in a global list and choose a window system.
    with rc_context(STYLE):
        drawn = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(drawn)
        yield drawn.subplots(*shape, sharey="row")
        drawn.savefig(path, format="png")


def titled(axes: Any, title: str, x: str, y: str, **legend: Any) -> None:
    """Write the words around a plot."""
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.legend(**legend)


def write_plots(folder: Path, summary: Numbers) -> tuple[str, ...]:
    """Draw every plot that has numbers into PNG files in `folder`, and return their names."""
    drawings = {"quality_against_cost.png": draw_quality_against_cost}
    if any(map(_over_first, summary["configurations"])):
        drawings["gain_over_first.png"] = draw_gain_over_first
    for name, draw in drawings.items():
        with whole_file(folder / name) as path, figure(path) as axes:
            draw(axes, summary)
    return tuple(drawings)


def draw_quality_against_cost(axes: Any, summary: Numbers) -> None:
    """Draw mean quality against mean cost."""
    metric = summary["quality"]["metric"]
    known = {c["name"]: c for c in summary["configurations"]}

    def place(configuration: Numbers) -> tuple[float, Numbers]:
        return configuration["cost"]["value"], configuration["metrics"][metric]

    for group, look in LOOKS.items():
        members = [c for c in known.values() if c["group"] == group]
        ends = [known[name] for name in CURVES.get(group, ()) if name in known]
        _draw_points(axes, [place(c) for c in (*members, *ends) if members], look)
    for name in CURVES["first"]:
        if name not in known:
            continue
        x, y = place(known[name])
        axes.errorbar(
            [x], [y["value"]], yerr=_bars([y]), color=BLACK, marker="*", markersize=13, capsize=3, zorder=5
        )
        # Clear of the curves: the gate's begins right below anchor-only.
        places = {"draft-only": ((10, -14), "left"), "anchor-only": ((8, -38), "left")}
        offset, side = places.get(name, ((-8, 9), "right"))
        axes.annotate(name, (x, y["value"]), xytext=offset, textcoords="offset points", ha=side, fontweight="bold")
    labels: dict[tuple[float, float], list[float]] = {}  # if several coincide, the lowest and the highest
    for c in (c for c in known.values() if c["group"] == "reward-min"):
        x, y = place(c)
        labels.setdefault((round(x, 2), round(y["value"], 3)), []).append(c["tau"])
    for at, taus in labels.items():
        text = f"τ {taus[0]:g}" if len(taus) == 1 else f"τ {min(taus):g} to {max(taus):g}"
        axes.annotate(text, at, xytext=(7, -13), textcoords="offset points", color=BLUE, fontsize=9)
    axes.margins(x=0.12, y=0.1)
    titled(axes, "Quality against cost", COST, summary["quality"]["words"], **BESIDE)


def draw_gain_over_first(axes: Any, summary: Numbers) -> None:
    """Draw quality minus that of the first m blocks at the same cost, with paired intervals, against cost."""
    axes.axhline(0.0, color=BLACK, linewidth=1.6, label=LOOKS["first"].words)
    for group, look in LOOKS.items():
        members = [c for c in summary["configurations"] if c["group"] == group and _over_first(c)]
        _draw_points(axes, [(c["cost"]["value"], _over_first(c)) for c in members], look)
    axes.margins(x=0.06, y=0.08)
    words = "difference (dB)" if "dB" in summary["quality"]["words"] else "difference"
    titled(axes, "Quality against the first m blocks, at the same cost", COST, words, **BESIDE)


def _over_first(configuration: Numbers) -> Any:
    return configuration["at_same"].get("first", {}).get("cost")


def _draw_points(axes: Any, places: Sequence[tuple[float, Numbers]], look: LineStyle) -> None:
    """Draw intervals at their costs, joined if the look has a line. The bars are pale, as the means matter."""
    if not places:
        return
    x, y = zip(*sorted(places, key=lambda place: place[0]), strict=True)
    _, caps, bars = axes.errorbar(
        x,
        [value["value"] for value in y],
        yerr=_bars(y),
        **look.style,
        markersize=6,
        linewidth=1.6,
        elinewidth=0.8,
        capsize=2,
    )
    for pale in (*caps, *bars):
        pale.set_alpha(0.4)


def _bars(intervals: Sequence[Numbers]) -> list[list[float]]:
    """Return how far the ends are from each figure; 0 without them, or where rounding swaps the two."""

    def off(one: Numbers, end: str, way: int) -> float:
        return 0.0 if one[end] is None else max(0.0, way * (one[end] - one["value"]))

    return [[off(one, end, way) for one in intervals] for end, way in (("low", -1), ("high", 1))]
