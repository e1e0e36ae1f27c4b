"""`generate --live`: words from a terminal or a pipe, the files of the recording, and a run that is cut off."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from sdvg_core.cli import main
from sdvg_core.cli import steering as terminal
from sdvg_core.cli.steering import Pace, ask
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import VideoRequest
from sdvg_core.text.prompts import read_prompt
from sdvg_core.videos import live_video
from sdvg_core.videos.live import Steering
from tests.support.cli_runs import OUTPUTS, generate, options, override

BALL = "a ball"
PROMPT = ["--prompt", BALL, "--blocks", "5"]


@pytest.fixture(scope="module")
def base(files) -> list[str]:
    return [*options(files), *PROMPT]


@pytest.fixture
def cut_off(monkeypatch):
    """Interrupt a live run after its third block."""
    show = terminal.LiveTerminal.show

    def cut(self: terminal.LiveTerminal, number: int, *details: object) -> None:
        show(self, number, *details)
        if number == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(terminal.LiveTerminal, "show", cut)


@pytest.fixture
def piped(monkeypatch):
    """Pipe lines into the command, one for each block."""

    def pipe(*lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return pipe


def report_in(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def prompts_in(folder: Path) -> list[str]:
    return [block["prompt"] for block in report_in(folder)["blocks"]]


@pytest.fixture(scope="module")
def steered(base, tmp_path_factory) -> Path:
    """A run of four blocks: another text from block 2 on, a shot of its own from block 3 on.

    It begins with the one line of a file, and is no list for that.
    """
    folder = tmp_path_factory.mktemp("live") / "out"
    prompt = folder.with_name("prompt.txt")
    prompt.write_text(BALL, encoding="utf-8")
    words = [*base[: base.index("--prompt")], "--prompt-file", str(prompt), "--blocks", "5"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", io.StringIO("\na cross\n/fresh a ring\n\n/end\n"))
        assert generate(words, folder, "--live") == 0
    return folder


def test_piped_line_counts_from_the_next_block(steered):
    assert sorted(path.name for path in steered.iterdir()) == sorted([*OUTPUTS, "session.txt"])
    assert not list(steered.parent.glob(".*.live"))
    assert prompts_in(steered) == [BALL, "a cross", "a ring", "a ring"]
    assert {block["author"] for block in report_in(steered)["blocks"]} == {"drafter"}


def test_session_is_a_prompt_file(steered):
    remark, *lines = (steered / "session.txt").read_text(encoding="utf-8").splitlines()
    assert remark == "# --blocks 4 --seed 42 --policy first --forced-blocks 0"
    prompt = read_prompt("\n".join(lines))
    assert prompt.entries == ((0, BALL), (1, "a cross"), (2, "a ring"))
    assert [shot.start for shot in prompt.shots] == [0, 2]


def test_report_makes_the_run_again(steered, base, tmp_path, capsys):
    """From nothing: the same latents without a word being typed."""
    words = base[: base.index("--prompt")]
    assert generate(words, tmp_path / "again", "--from", str(steered / "report.json")) == 0
    assert "The same video as in" in capsys.readouterr().out


def test_gate_finishes_the_run_without_a_draft(steered, base, tmp_path):
    """Of a run with the drafter's own context. Catches drafts that are kept without what is handed over."""
    words = base[: base.index("--prompt")]
    wanted = ["--from", str(steered / "report.json"), "--gate", "100", "--handover", "1", "--reuse", str(steered)]
    assert generate(words, tmp_path / "finished", *wanted, "--drafter-context", "own") == 0
    report = report_in(tmp_path / "finished")
    assert [block["author"] for block in report["blocks"]] == ["target"] * 4
    assert [block["seconds"]["draft"] for block in report["blocks"]] == [0.0] * 4
    assert "Drafts that an earlier run made: 2 of 2." in report["notes"]
    assert not any("Nothing of the earlier video" in note for note in report["notes"])


def test_gate_of_a_finished_run_keeps_no_steps(steered, base, tmp_path):
    """Catches: the handover for which a live run keeps its drafts, in the route that finishes it."""
    words = base[: base.index("--prompt")]
    wanted = ["--from", str(steered / "report.json"), "--gate", "100", "--reuse", str(steered)]
    assert generate(words, tmp_path / "finished", *wanted, "--drafter-context", "own") == 0
    report = report_in(tmp_path / "finished")
    assert report["settings"]["route"]["handover"] == 0
    assert "Drafts that an earlier run made: 2 of 2." in report["notes"]


def test_refining_finishes_the_run_without_a_draft(steered, base, tmp_path, capsys):
    """Also with the handover of the live run's route, which refining does not have."""
    words = base[: base.index("--prompt")]
    wanted = ["--from", str(steered / "report.json"), "--refine", "strong", "--reuse", str(steered)]
    assert generate(words, tmp_path / "refined", *wanted) == 0
    report = report_in(tmp_path / "refined")
    assert [block["reason"] for block in report["blocks"]] == ["refined"] * 4
    assert [block["refined"] for block in report["blocks"]] == [1] * 4
    assert [block["draft"]["denoising_passes"] for block in report["blocks"]] == [0] * 4
    assert [block["target"]["denoising_passes"] for block in report["blocks"]] == [1] * 4
    assert "Drafts that an earlier run made: 4 of 4." in report["notes"]
    assert report["settings"]["drafter_context"] == "own"
    assert "large model, over the draft: 1 to 4" in capsys.readouterr().out


def test_private_run_keeps_no_prompt(base, piped, tmp_path):
    piped("", "a cross", "/end")
    assert generate(base, tmp_path / "out", "--live", "--private") == 0
    assert not (tmp_path / "out" / "session.txt").exists()
    assert all(text.startswith("sha256") for text in prompts_in(tmp_path / "out"))


@pytest.mark.parametrize("words", [("", "a cross"), ()])
@pytest.mark.usefixtures("cut_off")
def test_run_that_is_cut_off_can_be_made_into_a_video(base, piped, tmp_path, capsys, words):
    """Also one of one prompt. Catches: its file, a numbered line, taken for a list of videos."""
    piped(*words)
    folder = tmp_path / "out"
    assert generate(base, folder, "--live") == 130
    session = tmp_path / ".out.live"
    told = capsys.readouterr().err
    assert f"the run's 3 blocks went into {session}" in told
    way = shlex.split(told.partition("--reuse")[2].partition(" makes their video")[0])
    piped("")
    assert generate(base, folder, "--live") == 2
    assert "has a live run that was cut off" in capsys.readouterr().err
    assert generate(base[: base.index("--prompt")], folder, "--reuse", *way) == 0
    assert prompts_in(folder) == ([BALL, "a cross", "a cross"] if words else [BALL] * 3)
    assert all(block["reused"] for block in report_in(folder)["blocks"])


def test_video_that_fails_at_the_end_keeps_the_run(base, piped, tmp_path, monkeypatch, capsys):
    """Catches: a disk that is full as the video is written, and nobody told where the blocks are."""

    def fail(*_: object) -> None:
        raise BadInput("the disk is full; free some room")

    monkeypatch.setattr(live_video, "_finish", fail)
    piped("", "/end")
    assert generate(base, tmp_path / "out", "--live") == 2
    told = capsys.readouterr().err
    assert f"the run's 1 block went into {tmp_path / '.out.live'}" in told
    assert (tmp_path / ".out.live" / "session.txt").is_file()


def test_embedded_models_are_steered_by_prompts_they_know(piped, tmp_path, capsys):
    """Catches: typed words that are taken as they are, and by the report as the nearest ones."""
    piped("", "a storm over the sea", "/end")
    words = ["generate", "--models", "pocket", "--blocks", "2"]
    first = ["--live", "--prompt", "a big blue ball drifts right from the left over sand"]
    assert main([*words, *first, "--output", str(tmp_path / "out")]) == 0
    assert prompts_in(tmp_path / "out")[1] != "a storm over the sea"
    report = str(tmp_path / "out" / "report.json")
    assert main(["generate", "--models", "pocket", "--from", report, "--output", str(tmp_path / "again")]) == 0
    assert "The same video as in" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more, words",
    [
        (["--preset", "fast"], "without --preset"),
        (["--gate", "0"], "without --gate"),
        (["--budget", "0.5"], "without --budget"),
        (["--seeds", "1", "2"], "one prompt and one seed"),
        (["--reuse", "out"], "leave --reuse out"),
        (["--directions", "t...."], "directions are for two models"),
    ],
)
def test_options_of_two_models_are_refused(base, tmp_path, capsys, more, words):
    assert generate(base, tmp_path / "out", "--live", *more) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_finished_live_run_is_not_made_again(base, piped, tmp_path, capsys):
    """Catches: the video of the same words replaced by another of them."""
    words = override([*base, "--live"], "--blocks", "1")
    piped()
    assert generate(words, tmp_path / "out") == 0
    made = (tmp_path / "out" / "report.json").read_bytes()
    piped()
    assert generate(words, tmp_path / "out") == 2
    assert "has this very video" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.json").read_bytes() == made


# --- lines, and the pace


@pytest.fixture
def steering() -> Steering:
    run = Steering(VideoRequest(blocks=9), read_prompt(BALL), given=0)
    shot = run.shot()
    assert shot is not None
    for block in range(3):
        run.decide(block, shot, lambda: False)
        run.count(block + 1, shot)
    return run


@pytest.mark.parametrize(
    "line, answer",
    [
        ("  a cross \n", "from block 4 on: a cross"),
        ("/cut", "from block 4 on, a new scene"),
        ("/cut a ring", "from block 4 on, a new scene"),
        ("/fresh a ring", "from block 4 on, a shot of its own"),
        ("/again 2", "block 2 once more"),
        ("/hold", "holds before block 4"),
        ("/resume", "goes on with block 4"),
        ("/end", "ends before block 4"),
        ("\n", ""),
    ],
)
def test_line_is_answered_with_its_block(steering, line, answer):
    assert ask(steering, line) == answer


@pytest.mark.parametrize(
    "line, words",
    [
        ("/stop", "is no command; write /cut"),
        ("/end now", "is no command"),
        ("/again", "is no command"),
        ("/again two", "/again two names no block"),
        ("/again 9", "choose one of blocks 1 to 3"),
    ],
)
def test_other_lines_are_refused(steering, line, words):
    with pytest.raises(BadInput, match=words):
        ask(steering, line)


def test_run_waits_where_two_blocks_are_ahead():
    """Of 0.75 s each. Catches a run that is made to its end while its first block is seen."""
    now = [100.0]
    pace = Pace(16.0, clock=lambda: now[0])
    assert not pace.waits
    pace.add(12)
    pace.add(12)
    assert (pace.ahead, pace.waits) == (1.5, False)
    pace.add(12)
    assert (pace.ahead, pace.waits) == (2.25, True)
    now[0] += 0.75
    assert not pace.waits
    now[0] += 60
    pace.add(12)
    assert pace.ahead == 0.75
