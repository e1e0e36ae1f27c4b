"""What a person sees on the terminal while a run goes on."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator

import pytest
from sample_reports import of_every_reason, record

from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.router import Decision, Reason
from sdvg_core.report.fates import Fate, fate_of
from sdvg_core.report.progress import (
    WIDEST_STRIP,
    RouteBar,
    block_line,
    can_colour,
    expected_passes,
    seconds_left,
    strip,
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal of some encoding."""

    def __init__(self, encoding: str | None = "utf-8", tty: bool = True) -> None:
        super().__init__()
        self._encoding, self._tty = encoding, tty

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty

    @property
    def screens(self) -> list[str]:
        """What stood on the line, one after another."""
        return [screen.strip() for screen in re.split(r"[\r\n]", self.getvalue()) if screen.strip()]


class Clock:
    """Goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def records() -> list[BlockRecord]:
    return [record(decision, i) for i, decision in enumerate(of_every_reason())]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return


LINES = [
    "block 1/11: made by the target, the first block is always the target's",
    "block 2/11: kept the draft, worst frame -0.31 >= -0.70",
    "block 3/11: kept the draft, worst frame 0.50 >= -inf",
    "block 4/11: remade by the target, worst frame -1.31 < -0.70",
    "block 5/11: remade by the target, worst frame 2.00 < inf",
    "block 6/11: remade by the target, a frame's score is not a finite number",
    "block 7/11: made by the target, too many blocks in a row were rejected, so the target makes the rest",
    "block 8/11: kept the draft, the policy keeps the draft unseen",
    "block 9/11: made by the target, the policy gives the block to the target",
    "block 10/11: kept the draft, the script keeps the draft, worst frame -3.00",
    "block 11/11: remade by the target, the script rejects the draft, worst frame 1.00",
]


def test_every_kind_of_decision_has_its_sentence() -> None:
    assert [block_line(block, i + 1, 11) for i, block in enumerate(records())] == LINES


def test_a_score_that_is_no_single_frames_is_called_a_score() -> None:
    mean = Decision(accepted=True, reason=Reason.REACHED, score=0.5, threshold=0.0, frame_scores=(0.0, 1.0))
    assert block_line(record(mean), 1, 1).endswith("kept the draft, score 0.50 >= 0.00")


@pytest.mark.parametrize(
    "score, threshold, shown",
    [
        (-0.7000001, -0.7, "-0.7000001 < -0.7000000"),
        (-0.704, -0.7, "-0.704 < -0.700"),
        (-0.71, -0.7, "-0.71 < -0.70"),
        (math.nextafter(-0.7, -1), -0.7, "-0.70 < -0.70"),
    ],
)
def test_a_near_miss_is_shown_with_the_digits_it_takes(score: float, threshold: float, shown: str) -> None:
    """Catches the line `-0.70 < -0.70`, which reads as a mistake of ours."""
    missed = Decision(
        accepted=False, reason=Reason.FELL_SHORT, score=score, threshold=threshold, frame_scores=(score,)
    )
    assert block_line(record(missed), 1, 1).endswith(shown)


def test_where_there_is_no_terminal_each_block_is_one_plain_line() -> None:
    stream = Terminal(tty=False)
    bar = RouteBar(11, stream, clock=Clock())
    for block in records():
        bar.step("draft")
        bar.block(block)
    bar.close()
    assert stream.getvalue() == "".join(line + "\n" for line in LINES)


def test_a_terminal_shows_the_strip_the_time_left_and_the_newest_line() -> None:
    stream, clock = Terminal(), Clock()
    bar = RouteBar(4, stream, colour=False, clock=clock)
    for block in records()[:3]:
        bar.step("draft")
        clock.now += 30
        bar.block(block)
    bar.step("context")
    assert stream.screens[0].startswith(".... |")
    assert any(screen.startswith(".... |") and screen.endswith("| block 1/4: draft") for screen in stream.screens)
    assert any(
        screen.startswith("Fa.. |") and screen.endswith(f"| 1:00 left  {LINES[1].replace('/11', '/4')}")
        for screen in stream.screens
    )
    assert stream.screens[-1].startswith("Faa. |")
    assert stream.screens[-1].endswith("| 0:30 left  block 4/4: context")
    bar.close()


def test_the_bar_is_full_when_the_last_block_is_done_and_not_before() -> None:
    """Drafts alone, then drafts and remakes: the passes of a run are not known before its end."""
    stream = Terminal("ascii")
    bar = RouteBar(3, stream, clock=Clock())
    for block, passes in zip(records()[1:4], (4, 4, 9), strict=True):
        for _ in range(passes):
            bar.step("draft")
        bar.block(block)
    bar.close()
    full = "#" * 16
    assert full in stream.screens[-1]
    assert not any(full in screen for screen in stream.screens if "block 2/3" in screen)
    assert all("#" in screen for screen in stream.screens if "block 3/3" in screen)


def test_closing_twice_or_early_is_no_error() -> None:
    stream = Terminal()
    bar = RouteBar(2, stream)
    bar.step("draft")
    bar.close()
    bar.close()
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize(
    "stream, environment, colour",
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal("ascii"), {}, False),
        (Terminal("latin-1"), {}, False),
        (Terminal(None), {}, False),
        (Terminal("no such encoding"), {}, False),
        (Terminal(tty=False), {}, False),
    ],
)
def test_squares_are_shown_only_where_they_can_be(
    stream: Terminal, environment: dict[str, str], colour: bool
) -> None:
    assert can_colour(stream, environment) is colour


def test_no_color_gives_letters_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    bar = RouteBar(2, stream)
    bar.block(records()[0])
    bar.close()
    assert "\x1b[38" not in stream.getvalue()
    assert "F. |" in stream.getvalue()


def test_a_terminal_gets_a_coloured_square_for_each_block() -> None:
    stream = Terminal()
    bar = RouteBar(3, stream)
    bar.block(records()[0])
    bar.block(records()[1])
    bar.close()
    assert "\x1b[38;5;33m■\x1b[0m\x1b[38;5;36m■\x1b[0m□ |" in stream.getvalue()


def test_the_strip_has_a_letter_for_every_fate() -> None:
    assert strip([fate_of(block) for block in records()], 13, colour=False) == "FaarrrBdtar.."


@pytest.mark.parametrize("done", [0, 1, 24, 25, 100, 199, 200])
def test_the_strip_of_a_long_run_shows_its_newest_blocks(done: int) -> None:
    fates = [Fate.KEPT] * (done - 1) + [Fate.REMADE] if done else []
    shown = strip(fates, 200, colour=False)
    assert len(shown) == WIDEST_STRIP
    assert shown.count("r") == (done > 0)
    assert shown.endswith(".") == (done < 200)


@pytest.mark.parametrize("passes, done, expected", [(0, 0, 36), (4, 1, 36), (12, 2, 54), (60, 9, 60)])
def test_passes_to_come_are_those_of_the_blocks_so_far(passes: int, done: int, expected: int) -> None:
    assert expected_passes(passes, done, blocks=9, steps=4) == expected


@pytest.mark.parametrize(
    "now, then, done, left", [(5, 0, 0, None), (10, 10, 1, 80), (15, 10, 1, 75), (500, 10, 1, 0), (90, 90, 9, 0)]
)
def test_time_left_is_that_of_the_blocks_so_far_less_what_has_passed(
    now: float, then: float, done: int, left: float | None
) -> None:
    assert seconds_left(now, then, done, blocks=9) == left
