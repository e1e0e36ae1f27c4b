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


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_sentences_come_as_they_are_written(unbuffered):
    """Catches: with PYTHONUNBUFFERED, as in containers, a refused line of a live run is told at its end."""
    sentence = "m.main = lambda words: (sys.stderr.write('now' + chr(10)), os._exit(0))"
    words = [sys.executable, "-c", f"import os, sys; from sdvg_core import __main__ as m; {sentence}; m.run()"]
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    assert subprocess.run(words, env=environment, capture_output=True, check=True).stderr == b"now\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's")
def test_full_standard_output_ends_in_a_sentence():
    """Catches: a traceback as Python ends, and exit code 0 of a command whose output is lost."""
    words = [sys.executable, "-m", "sdvg_core", "demo", "--list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "not all could be printed (No space left on device)" in line


@pytest.mark.parametrize(
    "streams, code", [(("/dev/full", os.devnull), 1), ((os.devnull, "/dev/full"), 0), ((None, None), 0)]
)
def test_closed_or_full_terminal_costs_no_video(tmp_path, command, streams, code):
    """The kind: what is said of the work ends the work."""
    out = tmp_path / "out"
    process = fork(lambda: run([*command[3:], "--output", str(out)]), *streams)
    process.join(600)
    assert (process.exitcode, names(out)) == (code, OUTPUTS)


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.heavy)])
def test_signal_ends_a_run_and_keeps_its_blocks(tmp_path, command, name):
    """The kind: an end from outside. As a shell expects: 128 and the signal's number."""
    out = tmp_path / "out"
    number = getattr(signal, name)

    def long() -> int:
        signal.signal(number, signal.SIG_DFL)  # a shell in the background ignores some
        return run(override(command[3:], "--blocks", "400", "--output", str(out)))

    code, lines = signalled(long, number)
    assert code == 128 + number, lines
    finished = len(unfinished_blocks(out))
    assert finished >= 2
    assert lines[-2].startswith(f"sdvg: kept {finished} of 400 blocks of {out}")
    assert lines[-1].startswith(f"sdvg: ended by {name}")


@pytest.mark.parametrize("words", [["doctor"], ["--help"]])
def test_python_without_docstrings_prints_the_same(words, capsys):
    """The kind: how Python itself was started. `python -OO` drops both."""
    command = [sys.executable, "-OO", "-m", "sdvg_core", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    with suppress(SystemExit):  # what argparse does after its help
        main(words)
    assert (done.returncode, done.stdout, done.stderr) == (0, *capsys.readouterr())
