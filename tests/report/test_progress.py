"""What a person sees on the terminal while a run goes on."""

import io
import math
import re
from dataclasses import replace

import pytest
from sample_reports import of_every_reason, record

from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.router import Decision, Reason
from sdvg_core.report.progress import RouteBar
from sdvg_core.report.summary import block_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def screens(self) -> list[str]:
        """What stood on the line, one after another."""
        return [screen.strip() for screen in re.split(r"[\r\n]", self.getvalue()) if screen.strip()]


def records() -> list[BlockRecord]:
    return [record(decision, i) for i, decision in enumerate(of_every_reason())]


@pytest.fixture(autouse=True)
def usual_width(monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


LINES = [
    f"block 1/15: made by the large model, {Reason.FORCED.value}",
    "block 2/15: draft kept, weakest frame -0.31 >= -0.70",
    "block 3/15: draft kept, weakest frame 0.50 >= -inf",
    "block 4/15: remade by the large model, weakest frame -1.31 < -0.70",
    "block 5/15: remade by the large model, weakest frame 2.00 < inf",
    f"block 6/15: remade by the large model, {Reason.NOT_FINITE.value}",
    f"block 7/15: made by the large model, {Reason.BAILED_OUT.value}",
    f"block 8/15: draft kept, {Reason.UNJUDGED_DRAFT.value}",
    f"block 9/15: made by the large model, {Reason.UNJUDGED_TARGET.value}",
    f"block 10/15: draft kept, {Reason.ROUTER_KEPT.value}, weakest frame -3.00",
    f"block 11/15: remade by the large model, {Reason.ROUTER_REMADE.value}, weakest frame 1.00",
    f"block 12/15: draft kept, {Reason.DIRECTED_DRAFT.value}",
    f"block 13/15: made by the large model, {Reason.DIRECTED_TARGET.value}",
    f"block 14/15: draft kept, {Reason.DIRECTED_KEPT.value}, weakest frame -3.00",
    f"block 15/15: remade by the large model, {Reason.DIRECTED_REMADE.value}, weakest frame 1.00",
]


@pytest.mark.parametrize(
    "score, threshold, shown",
    [
        (-0.7000001, -0.7, "-0.7000001 < -0.7000000"),
        (-0.71, -0.7, "-0.71 < -0.70"),
        (math.nextafter(-0.7, -1), -0.7, "-0.70 < -0.70"),
    ],
)
def test_a_near_miss_is_shown_with_the_digits_it_takes(score, threshold, shown):
    """Catches the line `-0.70 < -0.70`, which reads as a mistake of ours."""
    missed = Decision(
        accepted=False, reason=Reason.FELL_SHORT, score=score, threshold=threshold, frame_scores=(score,)
    )
    assert block_line(record(missed), 1, 1).endswith(shown)


def test_a_line_says_of_how_many_frames_the_worst_is():
    """Catches the worst of four frames that is called the worst of all."""
    kept = Decision(
        accepted=True, reason=Reason.REACHED, score=0.5, threshold=-0.7, frame_scores=(0.6, None, None, 0.5)
    )
    assert block_line(record(kept), 1, 1).endswith("weakest of 2 frames 0.50 >= -0.70")


def test_where_there_is_no_terminal_each_block_is_one_plain_line():
    """Every kind of decision has its sentence."""
    stream = io.StringIO()
    bar = RouteBar(15, stream)
    for block in records():
        bar.step("draft")
        bar.block(block)
    bar.close()
    assert stream.getvalue() == "".join(line + "\n" for line in LINES)


def test_a_terminal_shows_the_strip_the_time_left_and_the_newest_line(monkeypatch):
    """Two passes a block; the time left is that of the passes so far, and the estimate grows with the blocks."""
    stream = Terminal()
    bar = RouteBar(4, stream)
    now = bar._bar.start_t
    monkeypatch.setattr(bar._bar, "_time", lambda: now)
    for block in records()[:3]:
        for kind in ("draft", "target"):
            now += 15
            bar.step(kind)
        bar.block(block)
    bar.step("context")
    assert stream.screens[0].startswith(".... |")
    assert any(screen.startswith(".... |") and screen.endswith("| block 1/4: draft") for screen in stream.screens)
    second = LINES[1].replace("/15", "/4")
    assert any(s.startswith("Fa.. |") and s.endswith(f"| 01:00 left  {second}") for s in stream.screens)
    assert stream.screens[-1].startswith("Faa. |")
    assert stream.screens[-1].endswith("| 00:30 left  block 4/4: context")
    bar.close()


def test_blocks_made_before_count_for_the_strip_and_not_for_the_time_left():
    """Catches passes a block taken over all blocks: a resumed run would look nearly done."""
    stream = Terminal()
    bar = RouteBar(6, stream, steps=3)
    for earlier in records()[:3]:
        bar.block(replace(earlier, reused=True))
    bar.step("draft")
    assert (bar._bar.n, bar._bar.total) == (0, 9)
    bar.step("draft")
    bar.block(records()[3])
    assert stream.screens[-1].startswith("Faar.. |")
    assert (bar._bar.n, bar._bar.total) == (2, 6), "two passes a block, two blocks to come"
    bar.close()
