"""`queue`: every video once in the output, whatever happens to the servers and the ways to them."""

from __future__ import annotations

from typing import Any

import pytest
from queue_runs import PROMPTS, check_whole, queue
from toy_comfyui import toys

pytestmark = pytest.mark.usefixtures("quick", "interruptible")


def test_a_server_that_restarts_with_nothing_in_memory_loses_no_video(two, asked, tmp_path, capsys):
    """Catches: what was in its queue or finished and not fetched is waited for, or made twice in the output."""
    first = two[0]

    def restart_once() -> None:
        if first.made.total() == 2:
            first.deaf, first.on_look = 5, lambda: None

    first.on_look = restart_once
    first.steps = two[1].steps = 3
    assert queue(asked, two, tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    err = capsys.readouterr().err
    assert f"{first.url} is away" in err


def test_a_restart_between_two_looks_is_noticed_too(one, asked, tmp_path):
    """The server answers all the time, but knows nothing of what it was given."""
    looks = iter(range(100))
    one.steps = 2
    one.on_look = lambda: one.forget() if next(looks) in (2, 9) else None
    assert queue(asked, [one], tmp_path / "out") == 0
    check_whole(tmp_path / "out")


def test_what_a_server_that_was_away_still_has_is_taken_off_it_if_another_got_it(two, asked, tmp_path):
    """Only the way to it was broken. Catches: a server that goes on with what another one is making."""
    first, second = two
    first.steps = second.steps = 4
    first.forget = lambda: None
    cut: list[tuple[str, int]] = []

    def cut_once() -> None:
        if first.running and first.waiting and not cut:
            cut.extend((text, seed) for _, text, seed in first.running + first.waiting)
            first.deaf = 10**6

    def mend() -> None:
        if cut and set(cut) <= second.made.keys() | {(text, seed) for _, text, seed in second.running}:
            first.deaf, second.on_look = min(first.deaf, 1), lambda: None
            second.looks_left = 200  # there is more to do until the first one is back

    honest = first._post

    def post(path: str, body: Any) -> Any:
        if path == "/interrupt":
            second.looks_left = 1
        return honest(path, body)

    first.on_look, first._post, second.on_look = cut_once, post, mend
    assert queue(asked, two, tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    assert (first.made + second.made).total() == len(PROMPTS)
    assert not first.running + first.waiting


def test_a_server_alone_goes_on_with_what_it_has_when_the_way_to_it_is_back(one, asked, tmp_path):
    """Catches: hours of a video thrown away for some seconds without a network."""
    one.steps, one.forget = 4, lambda: None

    def cut_once() -> None:
        if one.running and one.waiting:
            one.deaf, one.on_look = 6, lambda: None

    one.on_look = cut_once
    assert queue(asked, [one], tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    assert one.queued == len(PROMPTS)


def test_an_answer_that_is_lost_does_not_queue_a_video_twice(one, asked, tmp_path):
    """The server has taken the prompt, and the connection breaks before it can say so."""
    honest = one._post
    dropped = []

    def post(path: str, body: Any) -> Any:
        answer = honest(path, body)
        if path == "/prompt" and len(dropped) < 2:
            dropped.append(path)
            return None
        return answer

    one._post = post
    assert queue(asked, [one], tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    assert set(one.made.values()) == {1}
    assert len(dropped) == 2


def test_a_video_that_breaks_off_is_fetched_again_and_never_half_there(one, asked, tmp_path):
    broken = []

    def half() -> Any:
        if not broken:
            broken.append(1)
            return 200, b"\0\0\0\x18ftyp", {"Content-Length": "5000"}
        del one.strange["/view"]
        return None

    one.strange["/view"] = half
    assert queue(asked, [one], tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    assert set(one.made.values()) == {1}


def test_no_server_at_the_beginning_is_one_sentence(asked, tmp_path, capsys):
    with toys(1) as gone:
        pass
    assert queue(asked, gone, tmp_path / "out") == 2
    assert "should answer at http://127.0.0.1" in capsys.readouterr().err


def test_one_server_of_two_will_do(two, asked, tmp_path):
    two[0].deaf = 10**6
    assert queue(asked, two, tmp_path / "out") == 0
    check_whole(tmp_path / "out")
