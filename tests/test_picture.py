"""The picture of the route: what it shows is what happened, at any length and whatever the prompt."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from sample_reports import of_every_reason, record, report, route

from sdvg_core.errors import BadInput
from sdvg_core.fates import COLOURS, LETTERS, Fate, fate_of
from sdvg_core.picture import route_picture, shorten
from sdvg_core.picture_scores import draw_scores, score_range
from sdvg_core.records import Seconds
from sdvg_core.report import RunReport
from sdvg_core.router import Decision, Reason, RouterConfig

FATE_OF_COLOUR = {tuple(round(255 * part) for part in to_rgb(colour)): fate for fate, colour in COLOURS.items()}
STRIP_ROW = 130


def run(blocks: int, config: RouterConfig | None = None) -> RunReport:
    scores = [[0.5 - 0.2 * ((7 * i + j) % 11) for j in range(12)] for i in range(blocks)]
    return report(route(config or RouterConfig(), scores))


def strip(image: Image.Image) -> list[Fate]:
    """The fates along the uppermost strip, read from the pixels."""
    row = [tuple(pixel) for pixel in np.asarray(image)[STRIP_ROW].tolist()]
    inside = row[: max(i for i, pixel in enumerate(row[: image.width - 300]) if pixel in FATE_OF_COLOUR) + 1]
    return [FATE_OF_COLOUR[colour] for colour, _ in groupby(inside) if colour in FATE_OF_COLOUR]


def drawn_scores(decisions: Sequence[Decision]) -> Any:
    figure = Figure()
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    draw_scores(panel, tuple(record(decision, i) for i, decision in enumerate(decisions)))
    return panel


def legend(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.get_legend().get_texts()]


def test_the_strip_shows_every_block_in_the_colour_of_its_fate() -> None:
    seen = strip(route_picture(report(of_every_reason())))
    assert "".join(LETTERS[fate] for fate in seen) == "FaarrrBdtar"


def test_every_reason_has_a_fate_and_every_fate_a_letter_and_colour_of_its_own() -> None:
    fates = [fate_of(record(Decision(accepted=False, reason=reason))) for reason in Reason]
    assert set(fates) == set(Fate)
    assert len(set(LETTERS.values())) == len(set(COLOURS.values())) == len(Fate)


@pytest.mark.parametrize("blocks, width", [(1, 970), (9, 970), (30, 1870), (200, 1970)])
def test_the_picture_grows_with_the_blocks_up_to_a_limit(blocks: int, width: int) -> None:
    image = route_picture(run(blocks))
    assert (image.mode, image.width) == ("RGB", width)
    assert image.height == (724 if blocks > 1 else 464)


def test_the_same_report_gives_the_same_picture() -> None:
    assert route_picture(run(9)).tobytes() == route_picture(run(9)).tobytes()


def test_the_worst_frame_of_each_block_is_marked_with_its_score() -> None:
    panel = drawn_scores(of_every_reason()[:4])
    assert [text.get_text() for text in panel.texts] == ["-0.31", "0.50", "-1.31"]


def test_the_legend_explains_what_is_there_and_nothing_else() -> None:
    frames = ["a frame", "the worst frame of its block"]
    assert legend(drawn_scores(route(RouterConfig(), [[0.0]] * 3))) == [*frames, "threshold -0.70"]
    broken = route(RouterConfig(), [[0.0], [math.nan, 1.0]])
    assert legend(drawn_scores(broken)) == [*frames, "a score that is not finite"]
    mean = route(RouterConfig(aggregation="mean"), [[0.0], [0.0, 1.0]])
    assert legend(drawn_scores(mean)) == [*frames, "the score of the block", "threshold -0.70"]
    assert legend(drawn_scores(of_every_reason())) == [*frames, "a score that is not finite", "threshold"]


def test_no_scores_at_all_are_said_to_be_none() -> None:
    panel = drawn_scores(route(RouterConfig(policy="always-draft", force_first=False), [[0.0]] * 3))
    assert [text.get_text() for text in panel.texts] == ["no block was scored"]


def test_a_threshold_far_off_does_not_squash_the_scores() -> None:
    """Catches an axis from -100 to 1, on which all frames are one dot."""
    decisions = route(RouterConfig(tau=-100.0), [[0.0], [0.25, 0.5]])
    blocks = [record(decision, i) for i, decision in enumerate(decisions)]
    low, high = score_range(blocks[1:])
    assert -1 < low < 0.25 < 0.5 < high < 1
    assert legend(drawn_scores(decisions))[-1] == "threshold -100.00, outside"


@pytest.mark.parametrize("frames", [[math.nan], [math.inf], [-math.inf, 0.0], [math.nan] * 9])
def test_scores_that_are_not_finite_are_drawn_without_a_warning(frames: list[float]) -> None:
    route_picture(report(route(RouterConfig(), [[0.0], frames])))


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "word " * 2000,
        "x" * 5000,
        "costs $5 to $10",
        r"$\frac{$",
        "two\nlines\tand\0more",
        "狐が雪の中を走る 🦊",
        "\ud800",
    ],
    ids=["empty", "long", "one word", "dollars", "formula", "control", "other letters", "half a letter"],
)
def test_any_prompt_can_be_shown(prompt: str) -> None:
    """Dollars are no formula, and letters that the font lacks bring no warning."""
    one, two = (record(decision, i, prompt) for i, decision in enumerate(of_every_reason()[:2]))
    plain = report((), blocks=(one, two))
    assert route_picture(plain).width == 970
    assert (
        route_picture(report((), blocks=(one, replace(two, prompt="another")))).height
        == route_picture(plain).height + 24
    )


def test_many_prompts_take_three_lines() -> None:
    blocks = tuple(record(decision, i, f"prompt {i}") for i, decision in enumerate(of_every_reason()))
    assert route_picture(report((), blocks=blocks)).height == route_picture(report(of_every_reason())).height + 48


def test_a_run_that_took_no_time_can_be_shown() -> None:
    blocks = (record(of_every_reason()[0], seconds=Seconds()),)
    route_picture(report((), blocks=blocks))


def test_a_clip_that_goes_on_keeps_the_numbers_of_its_blocks() -> None:
    blocks = tuple(record(decision, 100 + i) for i, decision in enumerate(of_every_reason()))
    assert strip(route_picture(report((), blocks=blocks))) == [fate_of(block) for block in blocks]


@pytest.mark.parametrize(
    "letters, shown", [(20, "a red fox"), (9, "a red fox"), (8, "a red f…"), (1, "…"), (0, "…")]
)
def test_a_long_line_is_cut(letters: int, shown: str) -> None:
    assert shorten(" a  red\nfox ", letters) == shown


def test_without_matplotlib_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadInput, match="pip install matplotlib"):
        route_picture(run(1))
