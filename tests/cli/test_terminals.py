"""Terminals, signals and interpreters: the command line works, or ends in a sentence, in any of them."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import sdvg_core
from sdvg_core.__main__ import run
from sdvg_core.cli import main
from sdvg_core.files.outputs import unfinished_blocks
from tests.support.cli_runs import OUTPUTS, SMALL, names, override
from tests.support.forked import fork, signalled

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(sdvg_core.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shells and signals of POSIX")


@pytest.fixture
def command(base) -> list[str]:
    """Return the shell's words for a video by tiny models, all but its folder."""
    return [sys.executable, "-m", "sdvg_core", *base, *SMALL, "--prompt", "a red ball", "--blocks", "1"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's")
def test_a_full_standard_output_costs_no_video_and_is_no_success(tmp_path, command):
    out = tmp_path / "out"
    with Path("/dev/full").open("w") as full:
        words = [*command, "--output", str(out)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, names(out)) == (1, OUTPUTS), done.stderr
    assert "Traceback" not in done.stderr
    said = "sdvg: not all could be printed (No space left on device); the files are written"
    assert done.stderr.splitlines()[-1] == said


@pytest.mark.parametrize("streams", [(os.devnull, "/dev/full"), (None, None)])
def test_a_terminal_that_is_closed_or_full_costs_no_video(tmp_path, command, streams):
    """The kind: what is said of the work ends the work."""
    out = tmp_path / "out"
    process = fork(lambda: run([*command[3:], "--output", str(out)]), *streams)
    process.join(600)
    assert (process.exitcode, names(out)) == (0, OUTPUTS)


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.heavy)])
def test_a_signal_that_ends_a_run_is_answered_in_a_sentence_and_the_blocks_stay(tmp_path, command, name):
    """The kind: an end from outside. As a shell expects: 128 and the signal's number."""
    out, number = tmp_path / "out", getattr(signal, name)

    def long() -> int:
        signal.signal(number, signal.SIG_DFL)  # a shell in the background ignores some
        return run(override(command[3:], "--blocks", "400", "--output", str(out)))

    code, lines = signalled(long, number)
    assert code == 128 + number, lines
    made = len(unfinished_blocks(out))
    assert made >= 2
    assert lines[-2] == f"sdvg: kept {made} of 400 blocks of {out}; the same command continues from there\n"
    assert lines[-1] == f"sdvg: ended by {name}; no half-written file is left\n"


@pytest.mark.parametrize("words", [["doctor"], ["--help"]])
def test_without_docstrings_and_asserts_every_command_says_the_same(words, capsys):
    """The kind: how Python itself was started. `python -OO` drops both."""
    command = [sys.executable, "-OO", "-m", "sdvg_core", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    with suppress(SystemExit):  # what argparse does after its help
        main(words)
    assert (done.returncode, done.stdout, done.stderr) == (0, *capsys.readouterr())
