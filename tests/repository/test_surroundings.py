"""The command line alone on a foreign machine: no network, no home to write to, odd paths and a terminal of old.

Every command, but for `doctor --fetch`, runs once in a process of its own, with an empty home and nothing
inherited. Python's audit events and the files afterwards say what it did, and it has to make the very latents that
it makes elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file

import sdvg_core
from sdvg_core.cli import main
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import SMALL, options
from tests.support.random_set import write_random_set

PACKAGE = Path(sdvg_core.__file__).parent
PROMPT = "ein Bär läuft über weißen Schnee 雪"

# Runs before anything else in the process. It notes what a library may swallow, and lets no connection out.
WATCH = """
import os
import sys

NOTES = open(os.environ["SDVG_NOTES"], "a", encoding="utf-8", errors="backslashreplace")
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
CHANGES = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod")


def note(kind, what):
    if isinstance(what, bytes):
        what = os.fsdecode(what)
    NOTES.write(f"{kind}\\t{os.path.abspath(what) if kind == 'write' else what}\\n")
    NOTES.flush()


def watch(event, args):
    if event in NETWORK:
        note("network", f"{event} {args[1:]!r}")
        raise ConnectionRefusedError("the network is cut")
    if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        note("write", args[0])
    elif event in CHANGES:
        for place in args[:2]:
            if isinstance(place, (str, bytes)):
                note("write", place)


sys.addaudithook(watch)
"""

# All commands in one process, because most of a command's time goes into importing torch.
PROGRAM = """
import json, sys
from sdvg_core.__main__ import run
codes = [run(arguments) for arguments in json.load(open(sys.argv[1], encoding="utf-8"))]
sys.exit(any(codes))
"""


@dataclass(frozen=True)
class Stay:
    """A process that has run, where it could write, and what it noted."""

    work: Path
    done: subprocess.CompletedProcess[str]
    notes: list[list[str]]
    changed: set[Path]

    def output(self, name: str) -> Path:
        """Return the folder that a command wrote into."""
        return self.work / "out put" / name


def commands(models: ModelFiles, prompts: Path) -> dict[str, list[str]]:
    return {
        "generate": [*options(models), *SMALL, "--blocks", "2", "--prompt-file", str(prompts)],
        "demo": ["demo", "--blocks", "1"],
    }


def stay(models: ModelFiles, tmp_path: Path, environment: dict[str, str]) -> Stay:
    """Run every command somewhere else, with an empty home and nothing inherited."""
    work = tmp_path / "ein schöner Ordner 文件夹"
    home = work / "home"
    cwd = work / "somewhere else"
    temp = work / "temp"
    watch = work / "watch"
    for folder in (home, cwd, temp, watch):
        folder.mkdir(parents=True)
    (watch / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    (watch / "prompts.txt").write_text(PROMPT + "\n", encoding="utf-8")
    asked = [
        [*words, "--output", str(work / "out put" / name)]
        for name, words in commands(models, watch / "prompts.txt").items()
    ]
    asked += [["doctor", str(models.target)], ["doctor", "--models", str(models.target.parent)]]
    asked += [["doctor", "--vram", "24"], ["demo", "--blocks", "1"]]
    smaller = str(work / "out put" / "smaller.safetensors")
    if find_spec("comfy_kitchen"):
        asked += [["convert", str(models.target), "--format", "int8", "--output", smaller]]
    (watch / "commands.json").write_text(json.dumps(asked), encoding="utf-8")
    home.chmod(0o555)
    folders = (home, cwd, temp, PACKAGE, models.target.parent)
    before = files_in(*folders)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(watch / "commands.json")],
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join((str(watch), str(PACKAGE.parent))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),
            "SDVG_NOTES": str(watch / "notes"),
            "HOME": str(home),
            "TMPDIR": str(temp),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=1200,
        check=False,
    )
    notes = [line.split("\t", 1) for line in (watch / "notes").read_text(encoding="utf-8").splitlines()]
    return Stay(work, done, notes, files_in(*folders) ^ before)


def files_in(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}


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
    guest = stay(models, tmp_path_factory.mktemp("abroad"), request.param)
    assert guest.done.returncode == 0, guest.done.stderr
    return guest


def test_commands_use_no_network(abroad):
    """Catches what a library tries and gives up in silence."""
    assert [what for kind, what in abroad.notes if kind == "network"] == []


def test_commands_write_only_output_and_temporary_files(abroad):
    """Catches a cache in the home folder, a file beside the package or in the current folder."""
    numbered = abroad.work / "somewhere else" / "out"
    chosen = (abroad.work / "out put", numbered, abroad.work / "temp", Path(os.devnull))
    written = {Path(what) for kind, what in abroad.notes if kind == "write"}
    for path in sorted(written | abroad.changed):
        assert any(path.is_relative_to(place) for place in chosen), path
    assert any(path.is_relative_to(chosen[0]) for path in written)
    assert [path.relative_to(numbered) for path in numbered.glob("*/*")] == [Path("demo", "001")]


VIDEO = {"generate": "0001"}  # a prompt file has a folder for each video


def test_surroundings_leave_latents_unchanged(abroad, models, tmp_path):
    """The prompts' letters, the paths and the locale change no bit."""
    (tmp_path / "prompts.txt").write_text(PROMPT + "\n", encoding="utf-8")
    for name, words in commands(models, tmp_path / "prompts.txt").items():
        assert main([*words, "--output", str(tmp_path / name)]) == 0
        folder = VIDEO.get(name, "")
        latents = load_file(tmp_path / name / folder / "latents.safetensors")["latents"]
        assert latents.equal(load_file(abroad.output(name) / folder / "latents.safetensors")["latents"]), name


# What Python has on POSIX alone: modules, names of os and signal; and a start of processes that copies locks.
POSIX = re.compile(
    r"^\s*(?:import|from) (?:fcntl|grp|posix|pty|pwd|resource|syslog|termios|tty)\b|[\"']fork"
    r"|\bsignal\.SIG(?:ALRM|HUP|KILL|USR)|\bos\.(?:l?chown|fork|get\w*[ug]id|getloadavg|kill|mkfifo|nice|sched_|setsid|statvfs|sysconf|uname)",
    re.MULTILINE,
)


def test_code_asks_nothing_windows_lacks():
    root = Path(sdvg_core.__file__).parents[1]
    files = [path for folder in ("sdvg_core", "nodes") for path in (root / folder).rglob("*.py")]
    assert [path.name for path in files if POSIX.search(path.read_text("utf-8"))] == []


def test_watch_sees_connections_and_files(tmp_path):
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
