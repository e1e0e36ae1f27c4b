"""The words of a run: its summary, and what a terminal shows meanwhile."""

import io
import math
import re
from dataclasses import replace

import pytest

from sdvg_core.engine.records import BlockRecord
from sdvg_core.report.picture import route_picture
from sdvg_core.report.progress import RouteBar
from sdvg_core.report.summary import block_line, route_in_words, summarise
from sdvg_core.settings.decision import Decision, Reason
from tests.support.sample_reports import of_every_reason, record, report

FORCED = Decision(accepted=False, reason=Reason.FORCED)


def test_summary_numbers_the_blocks_of_its_run():
    """After a clip of two blocks. Catches: a block's number in the whole clip."""
    drifts = (None, 0.1, 0.5, 0.2)
    blocks = tuple(replace(record(FORCED, 2 + place), drift=drift) for place, drift in enumerate(drifts))
    assert "at most 0.50, in block 3 " in summarise(report((), blocks=blocks))


def test_film_of_locked_blocks_has_no_counts():
    """Catches: *0 of 0 blocks* over a film. The kind: a count, a rate or seconds of nothing."""
    run = report([], settings={"kept": {"blocks": 9, "digest": "a"}}, notes=("Blocks 1 to 9 were locked.",))
    title, note = summarise(run).splitlines()
    assert "locked" in title
    assert "0" not in title
    assert note == run.notes[0]


def test_summary_counts_all_and_checked_blocks():
    run = report(of_every_reason(), notes=("A note.",))
    assert summarise(run).splitlines() == [
        "16 blocks, 189 pixel frames, 7.9 s at 24 fps",
        route_in_words(run),
        "6 of 16 blocks by the small model, 4 of 9 checked drafts kept",
        "weakest frame -3.00: pixel frame 1 of block 10",
        "176.0 s in blocks: draft 24.0, decode 8.0, score 4.0, target 128.0, context 12.0",
        "slower than the large model alone: 5 of 9 drafts were remade (156.0 s, predicted from its blocks)",
        "A note.",
    ]
    assert route_in_words(run).split("; ") == [
        "large model, by rule: 1",
        "small model, checked: 2 to 3, 10, 14",
        "large model, remade: 4 to 6, 11, 15",
        "small model, not checked: 8, 12",
        "large model: 9, 13",
        "large model, after too many remakes: 7",
        "large model, over the draft: 16",
    ]


@pytest.mark.parametrize(
    ("kept", "first"), [({}, 1), ({"kept": {"blocks": 2}}, 3), ({"kept": {"blocks": 4}}, 1), ({"kept": "a"}, 1)]
)
def test_continued_run_numbers_its_new_blocks(kept, first):
    """Catches `block 3/3` and `block 6` for one block; and a kept number from a stranger's file."""
    decisions = of_every_reason()[:3]
    blocks = tuple(record(decision, 3 + place) for place, decision in enumerate(decisions))
    continued = report(decisions, blocks=blocks)
    continued = replace(continued, settings={**continued.settings, **kept})
    assert [continued.number_of(block) for block in blocks] == [first, first + 1, first + 2]
    words = f"large model, by rule: {first}; small model, checked: {first + 1} to {first + 2}"
    assert route_in_words(continued) == words
    assert f"pixel frame 2 of block {first + 1}" in summarise(continued)
    alone = route_picture(report(decisions)).tobytes()
    assert (route_picture(continued).tobytes() == alone) == (first == 1)


@pytest.mark.parametrize(
    "kinds, known",
    [("ttd", False), ("tttdd", False), ("ttddddd", False), ("tttddd", True), ("rrr", True), ("ttttt", False)],
)
def test_speedup_needs_enough_blocks_of_the_target(kinds, known):
    """Catches a ratio that rests on one block."""
    reasons = {"t": Reason.FORCED, "d": Reason.UNJUDGED_DRAFT}
    decisions = [
        Decision(accepted=False, reason=Reason.FELL_SHORT, score=-1.0, threshold=0.0, frame_scores=(-1.0,))
        if kind == "r"
        else Decision(accepted=kind == "d", reason=reasons[kind])
        for kind in kinds
    ]
    run = report(decisions)
    assert bool(run.speed_up) == known
    assert ("the large model alone" in summarise(run)) == known


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
    f"block 1/16: made by the large model, {Reason.FORCED.value}",
    "block 2/16: draft kept, weakest frame -0.31 >= -0.70",
    "block 3/16: draft kept, weakest frame 0.50 >= -inf",
    "block 4/16: remade by the large model, weakest frame -1.31 < -0.70",
    "block 5/16: remade by the large model, weakest frame 2.00 < inf",
    f"block 6/16: remade by the large model, {Reason.NOT_FINITE.value}",
    f"block 7/16: made by the large model, {Reason.BAILED_OUT.value}",
    f"block 8/16: draft kept, {Reason.UNJUDGED_DRAFT.value}",
    f"block 9/16: made by the large model, {Reason.UNJUDGED_TARGET.value}",
    f"block 10/16: draft kept, {Reason.ROUTER_KEPT.value}, weakest frame -3.00",
    f"block 11/16: remade by the large model, {Reason.ROUTER_REMADE.value}, weakest frame 1.00",
    f"block 12/16: draft kept, {Reason.DIRECTED_DRAFT.value}",
    f"block 13/16: made by the large model, {Reason.DIRECTED_TARGET.value}",
    f"block 14/16: draft kept, {Reason.DIRECTED_KEPT.value}, weakest frame -3.00",
    f"block 15/16: remade by the large model, {Reason.DIRECTED_REMADE.value}, weakest frame 1.00",
    f"block 16/16: draft refined by the large model in place of its first 2 steps, {Reason.REFINED.value}",
]


@pytest.mark.parametrize(
    "score, threshold, shown",
    [
        (-0.7000001, -0.7, "-0.7000001 < -0.7000000"),
        (-0.71, -0.7, "-0.71 < -0.70"),
        (math.nextafter(-0.7, -1), -0.7, "-0.70 < -0.70"),
    ],
)
def test_near_miss_is_shown_with_enough_digits(score, threshold, shown):
    """Catches the line `-0.70 < -0.70`, which reads as a mistake of ours."""
    missed = Decision(
        accepted=False, reason=Reason.FELL_SHORT, score=score, threshold=threshold, frame_scores=(score,)
    )
    assert block_line(record(missed), 1, 1).endswith(shown)


@pytest.mark.parametrize(
    ("changes", "words"), [({"handover": 2}, "after 2 steps of"), ({"left_out": 1}, "with 1 step left out")]
)
def test_line_says_which_steps_were_made(changes, words):
    forced = Decision(accepted=False, reason=Reason.FORCED)
    assert words in block_line(replace(record(forced), **changes), 1, 1)
    assert words not in block_line(record(forced), 1, 1)


def test_line_counts_the_frames_scored():
    """Catches the worst of four frames that is called the worst of all."""
    kept = Decision(
        accepted=True, reason=Reason.REACHED, score=0.5, threshold=-0.7, frame_scores=(0.6, None, None, 0.5)
    )
    assert block_line(record(kept), 1, 1).endswith("weakest of 2 frames 0.50 >= -0.70")


def test_without_a_terminal_blocks_are_plain_lines():
    """Every kind of decision has its sentence."""
    stream = io.StringIO()
    bar = RouteBar(16, stream)
    for block in records():
        bar.step("draft")
        bar.block(block)
    bar.close()
    assert stream.getvalue() == "".join(line + "\n" for line in LINES)


def test_terminal_shows_strip_time_and_newest_line(monkeypatch):
    stream = Terminal()
    now = 0.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    bar = RouteBar(4, stream)
    for block in records()[:3]:
        for kind in ("draft", "target"):
            now += 15
            bar.step(kind)
        bar.block(block)
    bar.step("context")
    assert stream.screens[0].startswith(".... |")
    assert any(screen.startswith(".... |") and screen.endswith("| block 1/4: draft") for screen in stream.screens)
    second = LINES[1].replace("/16", "/4")
    assert any(s.startswith("Fa.. |") and s.endswith(f"| 01:00 left  {second}") for s in stream.screens)
    assert stream.screens[-1].startswith("Faa. |")
    assert stream.screens[-1].endswith("| 00:30 left  block 4/4: context")
    bar.close()


def test_reused_blocks_do_not_shorten_time_left(monkeypatch):
    """Catches the seconds of new blocks spread over all: a resumed run would look nearly done."""
    stream = Terminal()
    now = 0.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    bar = RouteBar(6, stream)
    for earlier in records()[:3]:
        bar.block(replace(earlier, reused=True))
    assert " left" not in stream.getvalue()
    now += 10
    bar.block(records()[3])
    assert stream.screens[-1].startswith("Faar.. |")
    assert "| 00:20 left  block 4/6" in stream.screens[-1]
    bar.close()
