"""Quality against cost: routers as curves, fixed routes as points. The first m blocks, and the room above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Numbers = Mapping[str, Any]
BLACK, GREY, ORANGE, SKY, GREEN, BLUE, RED, PINK = (
    "#000000", "#777777", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw a group of configurations; a `line` joins those that differ in one number."""

    words: str
    colour: str
    marker: str
    line: str = ""


LOOKS = {
    "first": Look("first m blocks the target's", BLACK, "o", "-"),
    "handover-2": Look("first m, 2 steps handed over", RED, "P", "-"),
    "passes-2": Look("first m, the target in 2 passes", ORANGE, "X", "--"),
    "random": Look("random, block 0 the target's", GREY, "o", "-"),
    "random-open": Look("random, block 0 too", GREY, "X"),
    "reward-min": Look("reward, worst frame", BLUE, "o", "-"),
    "reward-mean": Look("reward, mean frame", GREEN, "s", "--"),
    "relative": Look("worst frame against the last one", SKY, "^", "-"),
    "own": Look("worst frame, own drafts as context", PINK, "D"),
    "repair": Look("worst frame, repaired after k steps", RED, "d"),
    "percentile": Look("percentile", ORANGE, "v"),
    "every": Look("every n-th block the target's", BLACK, ">"),
}
ENDS_OF = {"first": ("target-only", "anchor-only", "draft-only"), "random": ("target-only", "anchor-only")}
ENDS = ("target-only", "draft-only", "anchor-only")
COSTS = {
    "cost": "cost per video of the published pair, in target blocks",
    "target_calls": "target calls per video",
    "seconds": "seconds per video, computed alone",
}
TITLES = {"cost": "cost", "target_calls": "target calls", "seconds": "time"}


def draw_quality_against(axes: Any, summary: Numbers, cost: str) -> None:
    """Draw mean quality, with its interval, against mean cost: a name of `COSTS`."""
    metric = summary["quality"]["metric"]
    configurations = {c["name"]: c for c in summary["configurations"]}
    ends = [configurations[name] for name in ENDS if name in configurations]
    groups = {group: [c for c in summary["configurations"] if c["group"] == group] for group in LOOKS}
    for group, look in LOOKS.items():
        members = [*groups[group], *(configurations[n] for n in ENDS_OF.get(group, ()) if n in configurations)]
        if groups[group]:
            _draw_group(axes, members, look, cost, metric)
    for end in ends:
        _draw_end(axes, end, cost, metric)
    _label_taus(axes, groups["reward-min"], cost, metric)
    axes.set_title(f"Quality against {TITLES[cost]}")
    axes.set_xlabel(COSTS[cost])
    axes.set_ylabel(summary["quality"]["words"])
    axes.margins(x=0.12, y=0.1)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def has_gain_over_first(summary: Numbers) -> bool:
    """Tell whether anything can be compared with the first m blocks at the same cost."""
    return any(_over_first(c) for c in summary["configurations"])


def draw_gain_over_first(axes: Any, summary: Numbers) -> None:
    """Draw quality minus that of the first m blocks at the same cost, with paired intervals, against cost."""
    axes.axhline(0.0, color=BLACK, linewidth=1.6, label=LOOKS["first"].words)
    for group, look in LOOKS.items():
        members = [c for c in summary["configurations"] if c["group"] == group and _over_first(c)]
        if members:
            _draw_points(axes, [(cost_of(c, "cost")["value"], _over_first(c)) for c in members], look)
    axes.set_title("Quality against the first m blocks, at the same cost")
    axes.set_xlabel(COSTS["cost"])
    axes.set_ylabel("difference (dB)" if "dB" in summary["quality"]["words"] else "difference")
    axes.margins(x=0.06, y=0.08)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def _over_first(configuration: Numbers) -> Any:
    return configuration["at_same"].get("first", {}).get("cost")


ROOM = {
    "best": Look("best route of each video (hindsight)", GREEN, "^", "--"),
    "first": Look("first m blocks the target's", BLACK, "o", "-"),
    "fixed": Look("best fixed set of the other prompts", ORANGE, "s", "--"),
    "random": Look("random", GREY, "o", "-"),
}


def draw_room(axes: Any, summary: Numbers) -> None:
    """Draw what each number of target calls gives, over every route."""
    calls = [at["calls"] for at in summary["room"]]
    for name, look in ROOM.items():
        values = [at[name] for at in summary["room"]]
        axes.plot(
            calls,
            [value["value"] for value in values],
            label=look.words,
            color=look.colour,
            marker=look.marker,
            linestyle=look.line,
        )
    axes.set_title("The room above the first m blocks, over every route")
    axes.set_xlabel(COSTS["target_calls"])
    axes.set_ylabel(summary["quality"]["words"])
    axes.legend(frameon=False, loc="best")


def cost_of(configuration: Numbers, cost: str) -> Numbers:
    """Return the interval of a configuration's cost."""
    found: Numbers = configuration["seconds"]["total"] if cost == "seconds" else configuration[cost]
    return found


def _draw_group(axes: Any, members: Sequence[Numbers], look: Look, cost: str, metric: str) -> None:
    _draw_points(axes, [(cost_of(c, cost)["value"], c["metrics"][metric]) for c in members], look)


def _draw_points(axes: Any, places: list[tuple[float, Numbers]], look: Look) -> None:
    """Draw intervals at their costs, joined if the look has a line. The bars are pale: the means are the news."""
    places = sorted(places, key=lambda place: place[0])
    x, y = [place[0] for place in places], [place[1] for place in places]
    _, caps, bars = axes.errorbar(
        x,
        [value["value"] for value in y],
        yerr=_bars(y),
        label=look.words,
        color=look.colour,
        marker=look.marker,
        linestyle=look.line or "none",
        markersize=6,
        linewidth=1.6,
        elinewidth=0.8,
        capsize=2,
    )
    for pale in (*caps, *bars):
        pale.set_alpha(0.4)


def _draw_end(axes: Any, end: Numbers, cost: str, metric: str) -> None:
    x, y = cost_of(end, cost)["value"], end["metrics"][metric]
    axes.errorbar([x], [y["value"]], yerr=_bars([y]), color=BLACK, marker="*", markersize=13, capsize=3, zorder=5)
    left = end["name"] != "draft-only"  # the curves begin on the right of the others
    axes.annotate(
        end["name"],
        (x, y["value"]),
        xytext=(-8, 9) if left else (10, -14),
        textcoords="offset points",
        ha="right" if left else "left",
        fontweight="bold",
    )


def _label_taus(axes: Any, members: Sequence[Numbers], cost: str, metric: str) -> None:
    """Write each threshold next to its point; if several coincide, the lowest and the highest."""
    labels: dict[tuple[float, float], list[float]] = {}
    for c in members:
        at = (round(cost_of(c, cost)["value"], 2), round(c["metrics"][metric]["value"], 3))
        labels.setdefault(at, []).append(c["tau"])
    for place, taus in labels.items():
        text = f"{taus[0]:g}" if len(taus) == 1 else f"{min(taus):g} to {max(taus):g}"
        axes.annotate(f"τ {text}", place, xytext=(7, -13), textcoords="offset points", color=BLUE, fontsize=9)


def _bars(intervals: Sequence[Numbers]) -> list[list[float]]:
    ends = [ends_of(i) for i in intervals]
    return [
        [i["value"] - low for i, (low, _) in zip(intervals, ends, strict=True)],
        [high - i["value"] for i, (_, high) in zip(intervals, ends, strict=True)],
    ]


def ends_of(figure: Numbers) -> tuple[float, float]:
    """Return the ends of a figure's interval; without one, the figure twice."""
    value = figure["value"]
    if figure["low"] is None:
        return value, value
    # A mean lies within its interval, except for rounding.
    return min(value, figure["low"]), max(value, figure["high"])
