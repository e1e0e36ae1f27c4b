"""Plots of the gate: acceptance, scores and gains. Also the seams of every configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .gate import points
from .markdown import with_interval
from .plot_curves import BLACK, BLUE, GREY, LOOKS, ORANGE, ends_of

Numbers = Mapping[str, Any]
BINS = 40


def draw_acceptance(axes: Any, summary: Numbers) -> None:
    """Draw the share of accepted drafts at each block, with a line per threshold of the worst-frame gate."""
    from matplotlib import colormaps

    sweep = sorted((c for c in summary["configurations"] if c["group"] == "reward-min"), key=lambda c: c["tau"])
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(sweep)))
    ends: list[tuple[float, str, Any]] = []
    for configuration, colour in zip(sweep, colours, strict=True):
        blocks = configuration["accepted_per_block"]
        axes.plot(range(len(blocks)), [b["value"] for b in blocks], color=colour, marker="o", markersize=4)
        axes.fill_between(
            range(len(blocks)),
            [ends_of(b)[0] for b in blocks],
            [ends_of(b)[1] for b in blocks],
            color=colour,
            alpha=0.12,
            lw=0,
        )
        # A higher threshold never accepts more, so its name goes below if two lines end together.
        ends.insert(0, (blocks[-1]["value"], f"τ {configuration['tau']:g}", colour))
    _label_ends(axes, summary["blocks"] - 1, ends)
    axes.set_title("Drafts kept, block by block, at each threshold")
    axes.set_xlabel("block (block 0 is always the target's)")
    axes.set_ylabel("share of videos that keep the draft")
    axes.set_xticks(range(summary["blocks"]))
    axes.set_ylim(-0.03, 1.03)


def _label_ends(axes: Any, x: float, ends: Sequence[tuple[float, str, Any]], gap: float = 0.05) -> None:
    """Write each line's name at its end, from the bottom up, with space between them."""
    lowest = -1.0
    for y, text, colour in sorted(ends, key=lambda end: end[0]):
        lowest = max(y, lowest + gap)
        axes.annotate(
            text,
            (x, y),
            xytext=(x + 0.15, lowest),
            textcoords="data",
            color=colour,
            va="center",
            annotation_clip=False,
        )


def draw_scores(axes: Any, summary: Numbers, gains: Sequence[Numbers]) -> None:
    """Draw the worst-frame scores of all drafts of the anchor-only videos, and what each threshold accepts."""
    worst = np.array([gain["worst_score"] for gain in gains])
    axes.hist(worst, bins=BINS, color=BLUE, alpha=0.75, label="draft's worst frame")
    target = np.array([gain["target_worst_score"] for gain in gains])
    axes.hist(
        target, bins=BINS, histtype="step", color=ORANGE, linewidth=1.8, label="target's worst frame, same block"
    )
    taus = sorted({c["tau"] for c in summary["configurations"] if c["group"] == "reward-min"})
    top = axes.get_ylim()[1]
    for tau in taus:
        axes.axvline(tau, color=GREY, linewidth=1, linestyle=":")
        kept = f"τ {tau:g}\n{np.mean(worst >= tau):.0%}"
        axes.annotate(
            kept, (tau, top), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    axes.set_title("Scores of drafts, and the share each threshold τ keeps", pad=34)
    axes.set_xlabel("score of the block's worst frame")
    axes.set_ylabel("blocks")
    axes.legend(frameon=False, loc="best")


def draw_gate(axes: Any, summary: Numbers, gains: Sequence[Numbers]) -> None:
    """Draw what the target would have gained on each block against its draft's score."""
    score, gain = points(gains, "worst_score").T
    axes.axhline(0, color=GREY, linewidth=1)
    axes.scatter(score, gain, s=16, color=BLUE, alpha=0.4, linewidths=0)
    edges = np.quantile(score, np.linspace(0, 1, 7))
    where = np.clip(np.searchsorted(edges, score, side="right") - 1, 0, 5)
    bins = [where == i for i in range(6) if np.any(where == i)]
    axes.plot(
        [score[b].mean() for b in bins], [gain[b].mean() for b in bins], color=BLACK, marker="o", label="mean"
    )
    found = summary["gate"]["worst_score_spearman"]
    words = f", rank correlation {with_interval(found, '+')}" if found else ""
    axes.set_title(f"Does the score know what the target would gain?\n{len(score)} blocks{words}")
    axes.set_xlabel("score of the draft's worst frame")
    axes.set_ylabel(f"target's block minus draft:\n{summary['quality']['words']}")
    axes.legend(frameon=False)


def draw_seams(axes: Any, summary: Numbers) -> None:
    """Draw every configuration's seam metric with its interval, in the order of the protocol."""
    metric, configurations = summary["seams"]["metric"], summary["configurations"]
    axes.figure.set_figheight(max(3.0, 1.2 + 0.21 * len(configurations)))
    for y, configuration in enumerate(configurations):
        value = configuration["metrics"][metric]
        look = LOOKS.get(configuration["group"])
        colour = look.colour if look else BLACK
        axes.plot(ends_of(value), [y, y], color=colour, linewidth=1.6)
        axes.plot([value["value"]], [y], color=colour, marker="o", markersize=5)
    axes.set_yticks(range(len(configurations)), [c["name"] for c in configurations], fontsize=9)
    axes.set_ylim(len(configurations) - 0.3, -0.7)
    axes.set_title("Seams at block borders")
    axes.set_xlabel(summary["seams"]["words"])
