"""Terminals, signals and interpreters: the command line works, or ends in a sentence, in any of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import OUTPUTS, SMALL, names

import sdvg_core
from sdvg_core.files.outputs import unfinished_blocks

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}
PROMPT = "a red ball"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shells and signals of POSIX")


@pytest.fixture
def command(base) -> list[str]:
    """Return the shell's words for a video by tiny models, all but the prompt."""
    return [sys.executable, "-m", "sdvg_core", *base, *SMALL]


@pytest.mark.parametrize(
    ("streams", "code"),
    [
        ("2>&-", 0),
        (">&- 2>&-", 0),
        ("2>/dev/full", 0),
        pytest.param(">/dev/full", 1, marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's")),
    ],
)
def test_a_terminal_that_is_closed_or_full_costs_no_video(tmp_path, command, streams, code):
    """The kind: what is said of the work ends the work. Standard output lost is told and is no success."""
    out = tmp_path / "out"
    words = [*command, "--prompt", PROMPT, "--blocks", "1", "--output", str(out)]
    shell = ["bash", "-c", f'"$@" {streams}', "bash", *words]
    done = subprocess.run(shell, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, names(out)) == (code, OUTPUTS), done.stderr
    assert "Traceback" not in done.stderr
    if code:
        said = "sdvg: not all could be printed (No space left on device); the files are written"
        assert done.stderr.splitlines()[-1] == said


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.heavy)])
def test_a_signal_that_ends_a_run_is_answered_in_a_sentence_and_the_blocks_stay(tmp_path, command, name):
    """The kind: an end from outside. As a shell expects: 128 and the signal's number."""
    out, number = tmp_path / "out", getattr(signal, name)
    long = [*command, "--prompt", PROMPT, "--blocks", "400", "--output", str(out)]
    with subprocess.Popen(
        long,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a shell in the background ignores some
    ) as run:
        assert run.stderr is not None
        lines = []
        for line in run.stderr:
            lines.append(line)
            if sum(line.startswith("block ") for line in lines) == 2 and line.startswith("block "):
                run.send_signal(number)
        assert run.wait(600) == 128 + number, lines
    made = len(unfinished_blocks(out))
    assert made >= 2
    assert lines[-2] == f"sdvg: kept {made} of 400 blocks of {out}; the same command continues from there\n"
    assert lines[-1] == f"sdvg: ended by {name}; no half-written file is left\n"


@pytest.mark.parametrize("words", [["doctor"], ["--help"]])
def test_without_docstrings_and_asserts_every_command_says_the_same(words):
    """The kind: how Python itself was started. `python -OO` drops both."""
    said = []
    for level in ([], ["-OO"]):
        command = [sys.executable, *level, "-m", "sdvg_core", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert said[0][0] == 0


@pytest.mark.heavy
def test_workers_leave_nothing_behind_in_the_system(tmp_path, command):
    """Catches `leaked semaphore objects` at the end of a list, one for every worker."""
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n{PROMPT}\n", encoding="utf-8")
    listed = [*command, "--prompt-file", str(tmp_path / "prompts.txt"), "--blocks", "1", "--workers", "2"]
    done = subprocess.run(
        [*listed, "--output", str(tmp_path / "out")], capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    lines = [line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("video ")]
    assert "leaked" not in done.stderr
    assert sorted(lines) == ["video 0001 finished", "video 0002 finished"], done.stderr
