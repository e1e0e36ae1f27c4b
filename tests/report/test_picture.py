"""The picture of the route: what it shows is what happened, at any length and whatever the prompt."""

import math
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
from PIL import Image, ImageColor

from sdvg_core.report.picture import (
    DARK,
    FONT_SIZE,
    KEY_WIDTH,
    LIGHT,
    LINE_HEIGHT,
    MARGIN,
    NOTE_LINES,
    PICTURE_WIDTH,
    SCALE,
    Pen,
    _key_rows,
    _score_keys,
    _strip_keys,
    _ticks,
    drawable,
    fitted,
    font,
    route_picture,
    tint,
)
from sdvg_core.report.summary import INKS, OUTCOME_COLOURS, OUTCOME_LETTERS, Outcome, outcome_of
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.route import First, Gate, Route
from tests.support.sample_reports import of_every_reason, record, report, route

OUTCOME_OF_COLOUR = {ImageColor.getrgb(colour): outcome for outcome, colour in OUTCOME_COLOURS.items()}


def strip(image: Image.Image) -> list[Outcome]:
    """The outcomes along the uppermost strip, read from the pixels; its squares are apart."""
    pixels = np.asarray(image)
    coloured = sum((pixels == colour).all(axis=2) for colour in OUTCOME_OF_COLOUR)
    first = int(np.argmax(coloured.sum(axis=1) > image.width / 4))
    row = [tuple(pixel) for pixel in pixels[first].tolist()]
    return [OUTCOME_OF_COLOUR[colour] for colour, _ in groupby(row) if colour in OUTCOME_OF_COLOUR]


def test_strip_shows_each_block_in_its_colour():
    light = route_picture(report(of_every_reason()), dark=False)
    dark = route_picture(report(of_every_reason()), dark=True)
    for picture in (light, dark):
        assert "".join(OUTCOME_LETTERS[outcome] for outcome in strip(picture)) == "FaarrrBdtardtarO"
    assert light.size == dark.size
    assert light.getpixel((0, 0)) == (255, 255, 255)
    assert dark.getpixel((0, 0)) == ImageColor.getrgb(DARK.ground)


CLIPS = [("#a", 3), ("#b", 3), ("#end", 4)]
"""Names of clips, and the blocks that they are shown before, of a film of three blocks."""


@pytest.mark.parametrize("given", [0, 2])
def test_clip_has_a_column_without_colour(given):
    """Catches: a film whose footage is not to be seen, or stands before another block."""
    clips = [{"name": name, "before_block": before + given, "frames": 8} for name, before in CLIPS]
    film = report(of_every_reason()[:3])
    film = replace(film, settings={**film.settings, "clips": clips, "blocks_given": given})
    assert [part if isinstance(part, str) else "" for part in film.shown] == ["", "", "#a", "#b", "", "#end"]
    pixels = np.asarray(route_picture(film))
    coloured = sum((pixels == colour).all(axis=2) for colour in OUTCOME_OF_COLOUR)
    first = int(np.argmax(coloured.sum(axis=1) > pixels.shape[1] / 4))
    begins = np.flatnonzero(np.diff(coloured[first].astype(int), prepend=0) == 1)
    column = (960 - 80 - 30) / 6
    assert [round((begin - 80) / column) for begin in begins] == [0, 1, 4]
    assert route_picture(film) != route_picture(report(of_every_reason()[:3]))


@pytest.mark.parametrize(("blocks", "named"), [(17, True), (18, False)])
def test_clip_is_named_where_there_is_room(blocks, named):
    """Catches: names over each other in the picture of a long film."""
    film = report([of_every_reason()[0]] * blocks)
    pictures = []
    for name in ("#a", "#b"):
        clip = {"name": name, "before_block": 2, "frames": 8}
        pictures.append(route_picture(replace(film, settings={**film.settings, "clips": [clip]})))
    assert (pictures[0] != pictures[1]) is named


@pytest.mark.parametrize(("blocks", "every"), [(18, 1), (19, 2)])
def test_blocks_are_numbered_as_there_is_room(blocks, every):
    """Catches: numbers left out of a short video; numbers over each other below a long one."""
    decision = of_every_reason()[0]
    pixels = np.asarray(route_picture(report([decision] * blocks)))
    strip_colour = ImageColor.getrgb(OUTCOME_COLOURS[outcome_of(record(decision))])
    squares = np.flatnonzero((pixels == strip_colour).all(axis=2).sum(axis=1) > 400)  # rows of the strip
    inked = (pixels[squares[-1] + 5 : squares[-1] + 35, 80:930] != 255).any(axis=(0, 2))
    numbered = [number for number, column in enumerate(np.array_split(inked, blocks), 1) if column.any()]
    assert numbered == list(range(every, blocks + 1, every))


def test_each_outcome_has_its_letter_and_colour():
    outcomes = [outcome_of(record(decision)) for decision in of_every_reason()]
    assert set(outcomes) == set(Outcome)
    assert len(set(OUTCOME_LETTERS.values())) == len(set(OUTCOME_COLOURS.values())) == len(Outcome)


def test_keys_stand_beside_each_other():
    """In rows as wide as the picture. Catches: a key that is drawn over the one before."""
    rows = _key_rows(_strip_keys([record(decision) for decision in of_every_reason()], ["#a"]))
    assert sum(map(len, rows)) == len(Outcome) + 1
    for row in rows:
        ends = [x + KEY_WIDTH + font(FONT_SIZE).getlength(words) for x, words, _ in row]
        assert all(end < x for end, (x, *_) in zip(ends, row[1:], strict=False))
        assert row[0][0] == MARGIN
        assert ends[-1] < PICTURE_WIDTH


@pytest.mark.parametrize("frames", [[math.nan] * 9, [-math.inf, 0.0], [3e38]])
def test_infinite_and_huge_scores_are_drawn(frames):
    route_picture(report(route(Route(), [[0.0], frames])))


@pytest.mark.parametrize(("scores", "marked"), [((0.5, None), True), ((0.5, math.nan), True), ((0.5,), False)])
def test_frame_without_a_score_is_marked(scores, marked):
    """Catches: a frame that was not scored, or whose score is no number, left out of the key."""
    kept = Decision(accepted=True, reason=Reason.REACHED, score=0.5, threshold=-0.7, frame_scores=scores)
    keys = [words for words, _ in _score_keys([record(kept)])]
    assert ("no score" in keys) == marked


def test_key_shows_a_line_for_the_score_of_a_block():
    """As wide as its place in the key. Catches: a dot, as if of a frame."""
    kept = Decision(accepted=True, reason=Reason.REACHED, score=0.6, threshold=-0.7, frame_scores=(0.5, 0.7))
    mark = dict(_score_keys([record(kept)]))["score of the block"]
    image = Image.new("RGB", (100, 40), LIGHT.ground)
    mark(Pen(image, LIGHT), 20, 20)
    inked = np.flatnonzero((np.asarray(image) == ImageColor.getrgb(LIGHT.ink)).all(axis=2).any(axis=0))
    assert (inked[0], inked[-1]) == (20, 20 + KEY_WIDTH)


def test_cross_has_four_equal_arms():
    """Of a frame without a score. Catches: a mark that is no cross, as which the key shows it."""
    image = Image.new("RGB", (40, 40), LIGHT.ground)
    Pen(image, LIGHT).cross(20, 20)
    inked = (np.asarray(image) == ImageColor.getrgb(LIGHT.ink)).all(axis=2)
    arms = inked.reshape(2, 20, 2, 20).sum(axis=(1, 3))
    assert arms.min() > 40
    assert arms.max() < 1.3 * arms.min()


def test_frame_without_a_score_takes_its_place():
    """Catches: scores drawn side by side, as if the frames between them were not there."""
    scores = {0: 0.5, 4: -0.2, 7: 0.9, 11: 0.4}
    kept = Decision(accepted=True, reason=Reason.REACHED, score=-0.2, threshold=-0.7)
    forced = Decision(accepted=False, reason=Reason.FORCED)
    some = replace(kept, frame_scores=tuple(scores.get(frame) for frame in range(12)))
    four = replace(kept, frame_scores=tuple(scores.values()))
    assert route_picture(report((forced, some))) != route_picture(report((forced, four)))


def dots(image: Image.Image, outcome: Outcome) -> list[tuple[float, float]]:
    """Return the centres of the frames' dots of an outcome, from left to right, read from the pixels."""
    coloured = (np.asarray(image) == ImageColor.getrgb(OUTCOME_COLOURS[outcome])).all(axis=2)
    squares = np.flatnonzero(coloured.sum(axis=1) > 100)  # rows of the strip
    rows, columns = np.nonzero(coloured[squares[0] + 60 : squares[0] + 250])
    places = np.unique(columns)
    groups = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return [(float(group.mean()), float(rows[np.isin(columns, group)].mean())) for group in groups]


def test_frames_are_drawn_at_their_place_and_score():
    """Catches: dots beside their block's column, or upside down, or not in proportion."""
    image = route_picture(report(route(Route(Gate()), [[0.0], [0.0, 0.5, 1.5, 0.5], [1.0]])))
    centres = dots(image, Outcome.KEPT)
    across = [x for x, _ in centres]
    below = [y for _, y in centres]
    column = across[4] - (across[1] + across[2]) / 2  # between the middles of blocks 2 and 3
    assert [right - left for left, right in pairwise(across[:4])] == pytest.approx([0.2 * column] * 3, abs=2)
    assert below[0] - below[2] == pytest.approx(3 * (below[0] - below[1]), abs=3)
    assert below[1] - below[2] == pytest.approx(2 * (below[4] - below[2]), abs=3)
    assert below[0] > below[1]


def test_tau_is_drawn_through_each_column():
    """Catches: a dashed line that ends before its block, or runs beyond the last one."""
    image = route_picture(report(route(Route(Gate(0.5)), [[0.0], [1.0], [0.0], [1.0], [0.0]])))
    inked = (np.asarray(image) == ImageColor.getrgb(LIGHT.ink)).all(axis=2)
    columns = np.array_split(inked[:, 80:930], 5, axis=1)  # of 850 pixels; the first block was not scored
    row = int(np.argmax(sum(column.sum(axis=1) for column in columns[1:])))
    shares = [float(column[row].mean()) for column in columns]
    assert shares[0] < 0.2
    assert min(shares[1:]) > 0.3


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [(0, 21, "0 5 10 15 20"), (-1, 0.5, "-1.0 -0.5 0.0 0.5"), (-0.31, 0.1, "-0.3 -0.2 -0.1 0.0 0.1")],
)
def test_axis_has_at_most_five_round_values(low, high, texts):
    ticks = _ticks(low, high)
    assert [text for _, text in ticks] == texts.split()
    assert [value for value, _ in ticks] == pytest.approx([float(text) for text in texts.split()])


def test_long_line_fills_its_room():
    """Catches: a prompt of which no letter is left, or that is drawn beyond the picture."""
    width = font(FONT_SIZE).getlength(fitted("a storm at sea " * 99, FONT_SIZE, 900))
    assert 800 < width <= 900


@pytest.mark.parametrize(
    "prompt",
    ["", "x" * 5000, r"$\frac{$", "two\nlines\tand\0more", "狐が雪の中を走る 🦊", "\ud800"],
    ids=["empty", "long", "formula", "control", "other letters", "half a letter"],
)
def test_any_prompt_can_be_shown(prompt):
    """Dollars are no formula, and letters that the font lacks bring no warning."""
    first, second = (record(decision, i, prompt) for i, decision in enumerate(of_every_reason()[:2]))
    plain = report((), blocks=(first, second))
    assert route_picture(plain).width == 960
    several = report((), blocks=(first, replace(second, prompt="another")))
    assert route_picture(several).tobytes() != route_picture(plain).tobytes()


def test_letters_the_font_lacks_are_replaced():
    assert drawable("déjà e\u0301te\u0301 \u201cfox\u2019s\u201d \u2014 狐 \ud800") == 'deja ete "fox\'s" - ¤ ¤'


# --- contrast ----------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Return the relative luminance as WCAG 2.2 defines it."""
    parts = [part / 255 for part in ImageColor.getrgb(colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(colour: str, ground: str) -> float:
    dark, light = sorted((luminance(colour), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("outcome", Outcome)
def test_letter_contrasts_with_its_square(outcome):
    assert contrast(OUTCOME_COLOURS[outcome], INKS[outcome]) >= 4.5


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_each_text_contrasts_with_its_ground(look):
    """On that of the page, and on the one of each outcome behind the scores."""
    grounds = [look.ground, *(tint(colour, 0.1, look.ground) for colour in OUTCOME_COLOURS.values())]
    assert min(contrast(text, ground) for text in (look.ink, look.faint) for ground in grounds) >= 4.5


NOTE = "The prompt is not of the small world; the nearest one that is was shown and scored."


NOTED = [((), 0), ((NOTE,), 2), ((NOTE, "short"), 3), ((NOTE,) * 9, NOTE_LINES)]


@pytest.mark.parametrize(("notes", "lines"), NOTED)
def test_picture_shows_what_a_run_notes(notes, lines):
    """Catches: a prompt replaced by another one, where only the picture is seen; notes without end."""
    plain = route_picture(report(of_every_reason()))
    noted = route_picture(replace(report(of_every_reason()), notes=notes))
    assert noted.height - plain.height == pytest.approx(lines * LINE_HEIGHT / SCALE, abs=1)


# --- size, and what is left out


def test_letters_are_legible_in_a_template():
    """Eleven pixels: a node of 480, of which the picture has 460, at four fifths. Catches smaller letters."""
    shown = 460 * 0.8 / route_picture(report(of_every_reason())).width
    assert FONT_SIZE / SCALE * shown >= 11


@pytest.mark.parametrize("blocks", [1, 9, 100])
def test_picture_is_as_wide_for_any_length(blocks):
    scores = [[0.1 * frame for frame in range(-9, 0)]] * blocks
    image = route_picture(report(route(Route(), scores)))
    assert image.width == 960
    assert image.height <= 1000


def test_axis_is_drawn_only_for_scores():
    unscored = route_picture(report(route(Route(First(1)), [[0.0]] * 4)))
    scored = route_picture(report(route(Route(Gate()), [[0.0]] * 4)))
    assert scored.height - unscored.height >= 200
