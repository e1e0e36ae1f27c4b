"""`queue`: every video once in the output, whatever happens to the servers, the run or the disk."""

from __future__ import annotations

import csv
import errno
import json
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from toy_comfyui import BLOCKS, Toy, pocket, shown_in, toys

from sdvg_core.cli import main
from sdvg_core.pipeline import table
from sdvg_core.servers import orders, spread
from sdvg_core.servers.lane import Pace

PROMPTS = [f"a red ball {number}" for number in range(6)]
OUTPUTS = ["report.json", "request.json", "route.png", "video.mp4"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and pauses as short as can be, and pictures too."""
    monkeypatch.setattr(orders, "route_picture", lambda report: Image.new("L", (2, 2)))
    monkeypatch.setattr(spread, "Pace", partial(Pace, look=0.002, first_pause=0.002, longest_pause=0.01))
    monkeypatch.setattr(spread, "HEAR_SECONDS", 0.01)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Processes that run tests side by side ignore Ctrl-C."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture
def two() -> Iterator[list[Toy]]:
    with toys(2) as found:
        yield found


@pytest.fixture
def one() -> Iterator[Toy]:
    with toys(1) as found:
        yield found[0]


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """The words of a command, but for servers and output."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    (tmp_path / "workflow.json").write_text(json.dumps(pocket()), encoding="utf-8")
    return ["--workflow", str(tmp_path / "workflow.json"), "--prompt-file", str(tmp_path / "prompts.txt")]


def queue(asked: list[str], servers: list[Toy], out: Path, *more: str) -> int:
    named = [word for toy in servers for word in ("--server", toy.url)]
    return main(["queue", *asked, *named, "--output", str(out), *more])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows(out: Path) -> list[dict[str, Any]]:
    """The lines of the table, which its two files agree about."""
    lines = [json.loads(line) for line in (out / table.LINES).read_text(encoding="utf-8").splitlines()]
    with (out / table.CSV).open(encoding="utf-8", newline="") as file:
        for line, cells in zip(lines, csv.DictReader(file), strict=True):
            assert {name: "" if value is None else str(value) for name, value in line.items()} == cells
    return lines


def check_whole(out: Path, prompts: list[str] = PROMPTS, seeds: tuple[int, ...] = (42,)) -> None:
    """Every video is there whole, shows what belongs there, and has a line that says so; nothing else is there."""
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    folders = [f"{number:04d}" for number in range(1, len(pairs) + 1)]
    assert names(out) == [*folders, table.CSV, table.LINES]
    for folder, pair, line in zip(folders, pairs, rows(out), strict=True):
        assert names(out / folder) == OUTPUTS
        assert shown_in(out / folder / "video.mp4") == pair
        assert (line["state"], line["folder"], line["seed"], line["route"]) == ("finished", folder, pair[1], "Far")


# --- every video once


def test_two_servers_make_every_prompt_with_every_seed_once(two, asked, tmp_path, capsys):
    """Catches: more than two at a time with one server; a seed or prompt that does not get there."""
    assert queue(asked, two, tmp_path / "out", "--seeds", "7", "8") == 0
    check_whole(tmp_path / "out", seeds=(7, 8))
    assert two[0].made + two[1].made == Counter({(prompt, seed): 1 for prompt in PROMPTS for seed in (7, 8)})
    assert all(toy.made and toy.most_at_once == 2 for toy in two)
    said = capsys.readouterr()
    assert "12 of 12 videos finished" in said.out
    assert "12/12 videos, 0:00 left" in said.err
    assert not any(
        prompt in text for prompt in PROMPTS for text in (said.err, (tmp_path / "out" / table.CSV).read_text())
    )


def test_the_folder_becomes_a_page(one, asked, tmp_path, capsys):
    assert queue(asked, [one], tmp_path / "out") == 0
    assert main(["report", "--html", str(tmp_path / "out"), "--json"]) == 0
    page = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (page["videos"], page["unreadable"]) == (len(PROMPTS), {})


# --- servers that go away


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


# --- refusals and failures


def refusal(kind: str = "SDVGTargetLoader") -> dict[str, Any]:
    told = {"type": "value_not_in_list", "message": "Value not in list", "details": "file: 'krea.safetensors'"}
    errors = {"4": {"errors": [told], "class_type": kind, "dependent_outputs": ["5"]}}
    return {"error": {"type": "prompt_outputs_failed_validation", "message": "..."}, "node_errors": errors}


def test_a_server_that_refuses_everything_alike_ends_the_run_early(one, asked, tmp_path, capsys):
    one.refuses = lambda text: refusal()
    assert queue(asked, [one], tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert "node 4 (SDVGTargetLoader): Value not in list: file: 'krea.safetensors'" in err.splitlines()[-1]
    assert one.requests < 10, "it goes on asking"
    assert {line["state"] for line in rows(tmp_path / "out")} == {"waiting"}


def test_of_two_servers_the_one_that_refuses_everything_gets_no_more(two, asked, tmp_path):
    two[0].refuses = lambda text: refusal()
    assert queue(asked, two, tmp_path / "out") == 0
    check_whole(tmp_path / "out")
    assert not two[0].made


def test_a_prompt_that_fails_twice_is_told_at_the_end_and_the_others_are_made(two, asked, tmp_path, capsys):
    for toy in two:
        toy.fails = lambda text: "the drafter made NaN\x1b[2J" if text.endswith("3") else None
    assert queue(asked, two, tmp_path / "out") == 1
    err = capsys.readouterr().err
    assert "video 0004 is tried once more" in err
    told = "sdvg: video 0004 was not made: node 3 (SDVGSpeculativeSampler) failed: the drafter made NaN\\x1b[2J"
    assert told in err.splitlines()
    found = rows(tmp_path / "out")
    assert [line["state"] for line in found] == ["finished"] * 3 + ["failed"] + ["finished"] * 2
    assert found[3]["error"] in told
    assert not (tmp_path / "out" / "0004").exists()


def test_a_prompt_that_ends_every_server_is_given_up(one, asked, tmp_path, capsys):
    """Catches: a video that kills the server it is given to, again and again."""
    one.on_look = lambda: one.forget() if any(job[1] == PROMPTS[1] for job in one.running) else None
    assert queue(asked, [one], tmp_path / "out") == 1
    assert "video 0002 was not made: the server lost it, not for the first time" in capsys.readouterr().err
    assert [line["state"] for line in rows(tmp_path / "out")].count("finished") >= 4


def test_a_workflow_that_is_taken_in_part_is_refused(one, asked, tmp_path, capsys):
    """ComfyUI answers 200 and makes what it can. Catches: a run of which the video is missing."""
    honest = one._post

    def post(path: str, body: Any) -> Any:
        status, content, headers = honest(path, body)
        if path == "/prompt":
            content = json.dumps(
                {**json.loads(content), "node_errors": refusal("SaveVideo")["node_errors"]}
            ).encode()
        return status, content, headers

    one._post = post
    assert queue(asked, [one], tmp_path / "out") == 2
    assert "node 4 (SaveVideo)" in capsys.readouterr().err
    assert names(tmp_path / "out") == [table.CSV, table.LINES]


# --- stopping and going on


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


# --- the table


@pytest.mark.parametrize("name", ["write_text", "replace"])
@pytest.mark.parametrize("nth", [3, 6, 9])
def test_a_fault_at_any_step_of_the_tables_writing_loses_no_line(
    one, asked, tmp_path, monkeypatch, capsys, name, nth
):
    """The disk is full in the middle of a run. Catches: a video whose line is gone, or that is made again."""
    honest, calls = getattr(Path, name), []

    def failing(self: Path, *arguments: Any, **options: Any) -> Any:
        if ".unfinished-" in str(self) and self.name in (table.CSV, table.LINES):
            calls.append(self)
            if len(calls) == nth:
                raise OSError(errno.ENOSPC, "no space left on device")
        return honest(self, *arguments, **options)

    out = tmp_path / "out"
    with monkeypatch.context() as planted:
        planted.setattr(Path, name, failing)
        assert queue(asked, [one], out) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert len(rows(out)) == len(PROMPTS), "the table of before is whole"
    there = [path.parent.name for path in out.glob("*/video.mp4")]
    assert queue(asked, [one], out, "--resume") == 0
    check_whole(out)
    assert there
    for folder in there:
        assert one.made[PROMPTS[int(folder) - 1], 42] == 1, "a video that was there is made again"


def test_a_table_says_which_videos_were_stopped_early(one, asked, tmp_path):
    """Someone pressed Stop on the server. Catches: a short video that counts as finished, or is not made again."""
    workflow = pocket()
    workflow["3"]["inputs"]["blocks"] = BLOCKS + 1
    (tmp_path / "workflow.json").write_text(json.dumps(workflow), encoding="utf-8")
    assert queue(asked, [one], tmp_path / "out") == 0
    assert {line["state"] for line in rows(tmp_path / "out")} == {"stopped"}
    assert queue(asked, [one], tmp_path / "out", "--resume") == 0
    assert set(one.made.values()) == {2}
