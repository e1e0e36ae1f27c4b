"""The demo's race: a block is shown once it was made, and what each video cost stands at the end."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import ImageColor

from sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_core.pocket import race
from sdvg_core.pocket.race import (
    ASKED,
    AUTHOR_COLOURS,
    CELLS,
    EDGE,
    LANE_SIDE,
    LEAST_SECONDS,
    LEGEND,
    RESULT,
    RESULT_SECONDS,
    TITLE,
    Lane,
    cost_of,
    race_frames,
    timetable,
)
from sdvg_core.settings.context import get_preset
from sdvg_core.settings.decision import Decision, Reason
from tests.support.sample_reports import record

FPS = 16.0
PRESETS = {"drafter": get_preset("self-forcing-1.3b"), "target": get_preset("krea-14b")}
DRAFTED = Decision(accepted=True, reason=Reason.UNJUDGED_DRAFT)
FORCED = Decision(accepted=False, reason=Reason.FORCED)


def records(seconds: float, blocks: int = 3, decision: Decision = DRAFTED) -> tuple[BlockRecord, ...]:
    return tuple(record(decision, index, seconds=Seconds(target=seconds)) for index in range(blocks))


def lane(seconds: float, decision: Decision = DRAFTED) -> Lane:
    """A video whose blocks took so many seconds each; every pixel of a frame is its number by 100."""
    made = records(seconds, decision=decision)
    count = sum(block.pixel_frames for block in made)
    frames = (torch.arange(count) / 100).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    return Lane("A video", frames, made, costs=(0.05, 0.15, 0.25), figures={"quality": 12.34, "at_its_place": 0.5})


def test_block_is_shown_once_it_is_made():
    """And only after the one before was played. Catches: a quick video that is cut to the pace of a slow one."""
    quick = timetable(lane(0.1), 1.0, FPS)
    assert quick.shown == pytest.approx((0.1, 0.1 + 9 / FPS, 0.1 + 21 / FPS))
    slow = timetable(lane(5.0), 2.0, FPS)
    assert slow.shown == pytest.approx((10, 20, 30))
    assert slow.end == pytest.approx(30 + 12 / FPS)
    assert slow.frame_at(9.9, FPS) is None
    assert [slow.frame_at(time, FPS) for time in (10, 10.0625, 15, 20, 99)] == [0, 1, 8, 9, 32]


def lane_pixels(picture: torch.Tensor, place: int) -> torch.Tensor:
    left = EDGE + place * (LANE_SIDE + EDGE)
    return picture[0, :, ASKED + TITLE : ASKED + TITLE + LANE_SIDE, left : left + LANE_SIDE]


def test_race_shows_every_frame_in_its_lane():
    """The quick one has ended while the slow one goes on. Catches: lanes swapped, a lane that waits for another."""
    lanes = (lane(0.5), lane(4.0))
    shown = [
        [float(lane_pixels(picture, place).max()) for place in (0, 1)] for picture in race_frames(lanes, "x", FPS)
    ]
    at_6 = shown[round(6 * FPS)]
    assert at_6 == pytest.approx([0.32, 0.08], abs=1e-4)
    assert len(shown) == np.ceil((12 + 12 / FPS + RESULT_SECONDS) * FPS)
    quick = [round(100 * value) for value, _ in shown[8:] if value < 0.8]
    assert quick[:33] == list(range(33))


def test_short_race_is_slowed():
    """All lanes alike, to eight seconds for the slowest."""
    lanes = (lane(0.01), lane(0.1))
    pictures = list(race_frames(lanes, "x", FPS))
    assert len(pictures) == np.ceil((LEAST_SECONDS + 12 / FPS + RESULT_SECONDS) * FPS)


def test_strip_fills_by_author():
    picture = list(race_frames((lane(1.0), lane(1.0, FORCED)), "x", FPS))[-1]
    row = ASKED + TITLE + LANE_SIDE + 12
    for place, author in enumerate(("drafter", "target")):
        left = EDGE + place * (LANE_SIDE + EDGE)
        colours = (picture[0, :, row, [left + 20, left + 300]] * 255).round().int().T.tolist()
        assert colours == [list(ImageColor.getrgb(AUTHOR_COLOURS[author]))] * 2


def test_marks_of_the_key_are_level_with_their_words():
    """Before a block is made, which has the same colours. Catches: the upper half of a mark."""
    picture = next(race_frames((lane(1.0), lane(1.0, FORCED)), "x", FPS))[0]
    for colour in AUTHOR_COLOURS.values():
        is_mark = ((picture * 255).round().permute(1, 2, 0) == torch.tensor(ImageColor.getrgb(colour))).all(dim=2)
        rows = is_mark.any(dim=1).nonzero()
        middle = ASKED + TITLE + LANE_SIDE + CELLS + RESULT + LEGEND / 2
        assert float(rows[0] + rows[-1]) / 2 == middle


def words_of_race(monkeypatch, lanes: tuple[Lane, ...]) -> list[list[str]]:
    """Return what is written on each picture that differs from the one before."""
    words: list[list[str]] = []
    whole = race.write

    def write(pen, x, y, text, *look):
        if text == "Asked for:":
            words.append([])
        words[-1].append(text)
        whole(pen, x, y, text, *look)

    monkeypatch.setattr(race, "write", write)
    list(race_frames(lanes, "x", FPS))
    return words


def test_cost_grows_with_the_blocks(monkeypatch):
    """Catches: the cost of another block, or of all, while the race goes on."""
    words = words_of_race(monkeypatch, (lane(1.0),))
    costs = [next(text for text in texts if text.endswith(" of the cost")) for texts in words]
    assert costs == [f"{cost} of the cost" for cost in ("0%", "5%", "15%", "25%", "25%")]


@pytest.mark.parametrize(("seconds", "slowed"), [(1.0, "Slowed 2.7 times."), (4.0, "Cost: ")])
def test_slowed_race_says_so(monkeypatch, seconds, slowed):
    """Catches: a race at its own speed, said to be slowed."""
    [first, *_] = words_of_race(monkeypatch, (lane(seconds),))
    assert next(text for text in first if "Cost: " in text).startswith(slowed)


@pytest.mark.parametrize("placed", [0.5, math.nan])
def test_result_says_cost_and_likeness(monkeypatch, placed):
    """Catches: a share of no frames, written as a number."""
    video = replace(lane(1.0), figures={"quality": 12.34, "at_its_place": placed})
    result = words_of_race(monkeypatch, (video,))[-1]
    assert {"25% of the cost", "likeness 12.3 dB", "3.0 s here"} <= set(result)
    assert any("50%" in text for text in result) != math.isnan(placed)
    assert not any("nan" in text for text in result)


def test_cost_counts_every_pass_of_rejected_drafts():
    """By the table of the published pair: a target's block is 1 with its context pass, a decode and an encode."""
    scored = Decision(accepted=False, reason=Reason.FELL_SHORT, threshold=0.0, frame_scores=(-1.0, -2.0))
    kept = cost_of(records(1.0, 1), PRESETS)
    remade = cost_of(records(1.0, 1, scored), PRESETS)
    forced = cost_of(records(1.0, 1, FORCED), PRESETS)
    assert kept == pytest.approx(4 * 0.0301 + 0.0227 + 0.1042 + 0.0088)
    assert forced == pytest.approx(4 * 0.1839 + 2 * 0.1514 + 0.1042)
    assert remade == pytest.approx(kept + forced + 2 * 0.0037)


def test_cost_counts_the_frames_scored_alone():
    """Catches: frames that a cascade did not look at, in the cost of its block."""
    scores = (-0.1, None, None, -0.4, None, None, -0.2, None, None)
    cascade = Decision(accepted=True, reason=Reason.REACHED, score=-0.4, threshold=-0.7, frame_scores=scores)
    unscored = cost_of(records(1.0, 1), PRESETS)
    assert cost_of(records(1.0, 1, cascade), PRESETS) == pytest.approx(unscored + 3 * 0.0037)


def test_lane_adds_the_seconds_of_its_blocks():
    video = replace(lane(2.0))
    assert video.seconds == pytest.approx(6)
    assert video.made_at == pytest.approx((2, 4, 6))
