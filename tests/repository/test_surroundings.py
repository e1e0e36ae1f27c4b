"""The command line alone on a foreign machine: no network, no home to write to, odd paths and a terminal of old.

Every command runs once in a process of its own, which is watched from inside (Python's audit events) and from
outside (which files there are afterwards), and has to make the very latents that it makes elsewhere.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_machine import PROMPT, SOCKET_CALL, WATCH, Stay, commands, stay
from random_set import write_random_set
from safetensors.torch import load_file

import sdvg_core
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("models") / "Modelle für später")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, marks=pytest.mark.heavy),
        pytest.param({"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}, marks=pytest.mark.exhaustive),
    ],
    ids=["ASCII", "Turkish"],
)
def abroad(request, models, tmp_path_factory) -> Stay:
    found = stay(models, tmp_path_factory.mktemp("abroad"), **request.param)
    assert found.done.returncode == 0, found.done.stderr
    return found


def test_nothing_asks_for_the_network(abroad):
    """Catches what a library tries and gives up in silence."""
    assert [what for kind, what in abroad.notes if kind == "network"] == []


@pytest.mark.skipif(not SOCKET_CALL, reason="needs Linux on x86-64 or Arm, which can refuse sockets to a process")
def test_everything_is_made_where_the_system_refuses_every_internet_socket(abroad):
    """To native code too, which does not ask Python."""
    if ["refused", "nothing"] in abroad.notes:
        pytest.skip("this system lets no process do without sockets")
    assert ["refused", "every internet socket"] in abroad.notes
    assert abroad.done.returncode == 0


def test_nothing_is_written_but_into_the_output_and_temp_folders(abroad):
    """Catches a cache in the home folder, a file beside the package or in the current folder."""
    chosen = (abroad.work / "out put", abroad.work / "temp", Path(os.devnull))
    written = {Path(what) for kind, what in abroad.notes if kind == "write"}
    for path in sorted(written | abroad.changed):
        assert any(path.is_relative_to(place) for place in chosen), path
    assert any(path.is_relative_to(chosen[0]) for path in written)


VIDEO = {"generate": "0001"}  # a prompt file has a folder for each video


def test_the_latents_are_those_made_at_home(abroad, models, tmp_path):
    """The prompts' letters, the paths and the locale change no bit."""
    (tmp_path / "prompts.txt").write_text(PROMPT + "\n", encoding="utf-8")
    for name, words in commands(models, tmp_path / "prompts.txt").items():
        assert main([*words, "--output", str(tmp_path / name)]) == 0
        places = (tmp_path / name / VIDEO.get(name, ""), abroad.output(name) / VIDEO.get(name, ""))
        here, there = (load_file(place / "latents.safetensors")["latents"] for place in places)
        assert here.equal(there), name


# What Python has on POSIX alone: modules, names of os and signal; and a start of processes that copies locks.
POSIX = re.compile(
    r"^\s*(?:import|from) (?:fcntl|grp|posix|pty|pwd|resource|syslog|termios|tty)\b|[\"']fork"
    r"|\bsignal\.SIG(?:ALRM|HUP|KILL|USR)|\bos\.(?:l?chown|fork|get\w*[ug]id|getloadavg|kill|mkfifo|nice|sched_|setsid|statvfs|sysconf|uname)",
    re.MULTILINE,
)


def test_nothing_is_asked_of_the_system_that_windows_lacks():
    root = Path(sdvg_core.__file__).parents[1]
    files = [path for folder in ("sdvg_core", "nodes") for path in (root / folder).rglob("*.py")]
    assert [(path.name, found[0]) for path in files if (found := POSIX.search(path.read_text("utf-8")))] == []


def test_a_connection_and_a_file_in_the_home_folder_are_seen(tmp_path):
    """Without it, a watch that sees nothing would prove nothing."""
    (tmp_path / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    program = (
        "import contextlib, pathlib, socket\n"
        "with contextlib.suppress(OSError):\n    socket.create_connection(('127.0.0.1', 9))\n"
        "pathlib.Path('left').write_text('x')\npathlib.Path('folder').mkdir()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SDVG_NOTES": str(tmp_path / "notes")}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    notes = [line.split("\t", 1) for line in (tmp_path / "notes").read_text(encoding="utf-8").splitlines()]
    assert notes[0][0] == "network"
    assert ["write", str(tmp_path / "left")] in notes
    assert ["write", str(tmp_path / "folder")] in notes
