"""`queue`: a run that was stopped, and one that goes on."""

from __future__ import annotations

from typing import Any

import pytest
from queue_runs import PROMPTS, check_whole, names, queue, rows

from sdvg_core.pipeline import table

pytestmark = pytest.mark.usefixtures("quick", "interruptible")


def test_an_interrupt_fetches_what_runs_and_cancels_what_waits(one, asked, tmp_path, capsys):
    """The server comes no further until the cancellation is there, or has not come for two hundred looks."""

    def interrupt_once() -> None:
        if len([pair for pair in one.made if pair[0] in PROMPTS]) == 1 and one.running and one.waiting:
            one.on_look, one.looks_left = (lambda: None), 200
            _interrupt_main()

    honest = one._post

    def post(path: str, body: Any) -> Any:
        if path == "/queue":
            one.looks_left = 1
        return honest(path, body)

    one.steps, one.on_look, one._post = 3, interrupt_once, post
    foreign = ("11111111-0000-0000-0000-000000000000", "somebody else's", 1)
    one.waiting.append(foreign)
    assert queue(asked, [one], tmp_path / "out") == 130
    err = capsys.readouterr().err
    assert "Ctrl-C again stops at once" in err
    assert "the same command with --resume makes the rest" in err
    states = [line["state"] for line in rows(tmp_path / "out")]
    ours = {pair: count for pair, count in one.made.items() if pair[0] != foreign[1]}
    assert (len(ours), states) == (2, ["finished"] * 2 + ["waiting"] * 4)
    assert not one.waiting
    assert one.made[foreign[1:]] == 1, "another's prompt was cancelled"

    one.on_look = lambda: None
    assert queue(asked, [one], tmp_path / "out", "--resume") == 0
    check_whole(tmp_path / "out")
    assert {count for pair, count in one.made.items() if pair[0] != foreign[1]} == {1}


def _interrupt_main() -> None:
    """Ctrl-C, from whatever thread: the main thread hears it."""
    import _thread

    _thread.interrupt_main()


def test_a_second_interrupt_ends_at_once_and_leaves_whole_videos(one, asked, tmp_path, capsys):
    one.steps = 10**6
    looks = iter(range(10**6))
    one.on_look = lambda: _interrupt_main() if next(looks) in (3, 30) else None
    assert queue(asked, [one], tmp_path / "out") == 130
    assert "interrupted" in capsys.readouterr().err
    assert {line["state"] for line in rows(tmp_path / "out")} == {"waiting"}
    assert names(tmp_path / "out") == [table.CSV, table.LINES]


def test_resume_leaves_finished_videos_alone_and_refuses_others(one, asked, tmp_path, capsys):
    out = tmp_path / "out"
    assert queue(asked, [one], out) == 0
    (out / "0003" / "report.json").unlink()
    (out / "0003" / "video.mp4").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/video.mp4")}
    assert queue(asked, [one], out, "--resume") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    check_whole(out)
    assert one.made[PROMPTS[2], 42] == 2
    assert one.made.total() == len(PROMPTS) + 1
    capsys.readouterr()
    assert queue(asked, [one], out, "--resume", "--seeds", "9") == 2
    assert "0001 holds another video" in capsys.readouterr().err


def test_with_everything_there_no_server_is_asked(one, asked, tmp_path):
    assert queue(asked, [one], tmp_path / "out") == 0
    asked_before = one.requests
    assert queue(asked, [one], tmp_path / "out", "--resume") == 0
    assert one.requests == asked_before
