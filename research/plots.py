"""A study's plots. The colours are Okabe and Ito's, which people with any colour vision can tell apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import Staging

from .plot_curves import draw_gain_over_first, draw_quality_against, draw_room, has_gain_over_first
from .plot_gate import draw_acceptance, draw_gate, draw_scores, draw_seams

Numbers = Mapping[str, Any]
WIDTH, HEIGHT, DOTS_PER_INCH = 9.0, 5.4, 130
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


def check_plots() -> None:
    """Raise `BadInput` if plots cannot be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BadInput(
            "plots need the matplotlib package, but it is not installed; "
            "pip install 'sdvg[standalone]', or add --no-plots"
        ) from error


def write_plots(staging: Staging, summary: Numbers, gains: Sequence[Numbers]) -> tuple[str, ...]:
    """Draw every plot that has numbers into staged PNG files, and return their names."""
    routers = bool(summary["configurations"])
    against = {"cost": "cost", "target_calls": "target_calls", "seconds": "time"}
    drawings: dict[str, tuple[bool, Callable[[Any], None]]] = {
        **{
            f"quality_against_{word}.png": (routers, partial(draw_quality_against, summary=summary, cost=cost))
            for cost, word in against.items()
        },
        "gain_over_first.png": (
            has_gain_over_first(summary),
            lambda axes: draw_gain_over_first(axes, summary),
        ),
        "room.png": (bool(summary["room"]), lambda axes: draw_room(axes, summary)),
        "acceptance_per_block.png": (_has(summary, "reward-min"), lambda axes: draw_acceptance(axes, summary)),
        "scores.png": (bool(gains), lambda axes: draw_scores(axes, summary, gains)),
        "gate.png": (bool(summary["gate"]), lambda axes: draw_gate(axes, summary, gains)),
        "seams.png": (routers, lambda axes: draw_seams(axes, summary)),
    }
    names = tuple(name for name, (known, _) in drawings.items() if known)
    for name in names:
        _draw(staging, name, drawings[name][1])
    return names


def _has(summary: Numbers, group: str) -> bool:
    return any(c["group"] == group for c in summary["configurations"])


def _draw(staging: Staging, name: str, draw: Callable[[Any], None]) -> None:
    # Use the figure's own canvas: pyplot would keep figures in a global list and choose a window system.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.add_subplot())
        figure.savefig(staging.path(name), format="png")
