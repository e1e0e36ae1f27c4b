"""The picture of the route: what it shows is what happened, at any length and whatever the prompt."""

import math
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from sdvg_core.pocket.comparison import ABOVE, EDGE, PANEL_SIDE, Side, side_by_side
from sdvg_core.report.picture import DARK, FONT_SIZE, LIGHT, SCALE, _score_keys, drawable, route_picture, tint
from sdvg_core.report.summary import INKS, OUTCOME_COLOURS, OUTCOME_LETTERS, Outcome, outcome_of
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.route import First, Gate, Route, TargetOnly
from tests.support.sample_reports import of_every_reason, record, report, route

OUTCOME_OF_COLOUR = {ImageColor.getrgb(colour): outcome for outcome, colour in OUTCOME_COLOURS.items()}


def strip(image: Image.Image) -> list[Outcome]:
    """The outcomes along the uppermost strip, read from the pixels; its squares are apart."""
    rows = ([tuple(pixel) for pixel in row] for row in np.asarray(image).tolist())
    row = next(row for row in rows if sum(pixel in OUTCOME_OF_COLOUR for pixel in row) > image.width / 4)
    return [OUTCOME_OF_COLOUR[colour] for colour, _ in groupby(row) if colour in OUTCOME_OF_COLOUR]


def test_the_strip_shows_every_block_in_the_colour_of_its_outcome_also_in_the_dark():
    light, dark = (route_picture(report(of_every_reason()), dark=dark) for dark in (False, True))
    for picture in (light, dark):
        assert "".join(OUTCOME_LETTERS[outcome] for outcome in strip(picture)) == "FaarrrBdtardtar"
    assert light.size == dark.size
    assert (light.getpixel((0, 0)), dark.getpixel((0, 0))) == ((255, 255, 255), ImageColor.getrgb(DARK.ground))


def test_every_reason_has_an_outcome_and_every_outcome_a_letter_and_colour_of_its_own():
    outcomes = [outcome_of(record(decision)) for decision in of_every_reason()]
    assert set(outcomes) == set(Outcome)
    assert len(set(OUTCOME_LETTERS.values())) == len(set(OUTCOME_COLOURS.values())) == len(Outcome)


@pytest.mark.parametrize("frames", [[math.nan] * 9, [-math.inf, 0.0], [3e38]])
def test_scores_that_are_not_finite_or_beyond_all_measure_can_be_drawn(frames):
    route_picture(report(route(Route(), [[0.0], frames])))


def test_a_frame_that_was_not_scored_has_a_mark_of_its_own_at_the_bottom():
    """Catches: a dot among the scores, at 0 or at the top."""
    first = {0: 0.5, 4: -0.2, 7: 0.9, 11: 0.4}
    decision = Decision(accepted=True, reason=Reason.REACHED, score=-0.2, threshold=-0.7)
    forced = Decision(accepted=False, reason=Reason.FORCED)
    partly, wholly = (
        route_picture(report((forced, replace(decision, frame_scores=scores))))
        for scores in (tuple(first.get(frame) for frame in range(12)), tuple(first.values()))
    )
    assert partly != wholly
    for scores, marked in (((0.5, None), True), ((0.5, math.nan), True), ((0.5,), False)):
        keys = [words for words, _ in _score_keys([record(replace(decision, frame_scores=scores))])]
        assert ("no score" in keys) == marked


@pytest.mark.parametrize(
    "prompt",
    ["", "x" * 5000, r"$\frac{$", "two\nlines\tand\0more", "狐が雪の中を走る 🦊", "\ud800"],
    ids=["empty", "long", "formula", "control", "other letters", "half a letter"],
)
def test_any_prompt_can_be_shown(prompt):
    """Dollars are no formula, and letters that the font lacks bring no warning."""
    one, two = (record(decision, i, prompt) for i, decision in enumerate(of_every_reason()[:2]))
    plain = report((), blocks=(one, two))
    assert route_picture(plain).width == 960
    several = report((), blocks=(one, replace(two, prompt="another")))
    assert route_picture(several).tobytes() != route_picture(plain).tobytes()


def test_letters_that_the_font_lacks_lose_their_accents_or_become_a_box():
    assert drawable("déjà e\u0301te\u0301 \u201cfox\u2019s\u201d \u2014 狐 \ud800") == 'deja ete "fox\'s" - ¤ ¤'


# --- contrast ----------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Return the relative luminance as WCAG 2.2 defines it."""
    parts = [part / 255 for part in ImageColor.getrgb(colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("outcome", Outcome)
def test_the_letter_on_a_square_can_be_read(outcome):
    assert contrast(OUTCOME_COLOURS[outcome], INKS[outcome]) >= 4.5


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_of_the_picture_can_be_read_on_its_ground(look):
    """On that of the page, and on the one of each outcome behind the scores."""
    grounds = [look.ground, *(tint(colour, 0.1, look.ground) for colour in OUTCOME_COLOURS.values())]
    assert min(contrast(text, ground) for text in (look.ink, look.faint) for ground in grounds) >= 4.5


# --- size, and what is left out


def test_the_picture_can_be_read_where_it_is_shown_at_the_zoom_of_a_template():
    """Eleven pixels: a node of 480, of which the picture has 460, at four fifths. Catches smaller letters."""
    shown = 460 * 0.8 / route_picture(report(of_every_reason())).width
    assert FONT_SIZE / SCALE * shown >= 11


@pytest.mark.parametrize("blocks", [1, 9, 100])
def test_a_picture_of_a_hundred_blocks_is_as_wide_as_one_of_nine(blocks):
    scores = [[0.1 * frame for frame in range(-9, 0)]] * blocks
    image = route_picture(report(route(Route(), scores)))
    assert image.width == 960
    assert image.height <= 1000


def test_there_is_no_axis_for_scores_where_there_are_none():
    silent, scored = (report(route(Route(policy), [[0.0]] * 4)) for policy in (First(1), Gate()))
    assert route_picture(scored).height - route_picture(silent).height >= 200


ROUTED = report(route(Route(), [[0.0], [1.0, 0.5], [-2.0]]))
ALONE = report(route(Route(TargetOnly()), [[0.0]] * 3))


def frames(made, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(made.pixel_frames, 3, 16, 32, generator=generator)


@pytest.fixture(scope="module")
def pictures() -> list[torch.Tensor]:
    return list(side_by_side(Side("ours", frames(ROUTED, 1), ROUTED), Side("theirs", frames(ALONE, 2), ALONE)))


def test_every_pixel_of_both_videos_is_shown_as_a_sharp_square(pictures):
    """Catches smoothing, a shift by a pixel, and the two sides swapped."""
    factor = PANEL_SIDE // 32
    assert len(pictures) == ROUTED.pixel_frames
    for made, seed, left in ((ROUTED, 1, EDGE), (ALONE, 2, 2 * EDGE + PANEL_SIDE)):
        for picture, frame in zip(pictures, frames(made, seed), strict=True):
            shown = picture[0, :, ABOVE : ABOVE + 16 * factor, left : left + PANEL_SIDE]
            squares = shown.unflatten(2, (32, factor)).unflatten(1, (16, factor))
            assert torch.equal(squares, frame[:, :, None, :, None].expand_as(squares))
