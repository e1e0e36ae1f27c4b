"""Every command of the command line, run once in a process of its own, with an empty home and nothing inherited.

It is watched from inside (Python's audit events) and from outside (which files there are afterwards).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cli_runs import SMALL, options

import sdvg_core
from sdvg_core.checkpoints.model_files import ModelFiles

PACKAGE = Path(sdvg_core.__file__).parent
PROMPT = "ein Bär läuft über weißen Schnee 雪"

# The number of the call for a socket, where the system can be told to refuse it to a process; else empty.
NUMBERS = {"x86_64": "41", "aarch64": "198"}
SOCKET_CALL = NUMBERS.get(platform.machine(), "") if sys.platform == "linux" else ""

# Runs before anything else in the process. It notes what a library may swallow, and lets nothing out: not what goes
# through Python, and where the system can refuse every internet socket (seccomp), not native code nor a child.
WATCH = """
import ctypes
import errno
import os
import struct
import sys

SOCKET_CALL = int(os.environ.get("SDVG_SOCKET_CALL") or 0)
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


def refuse_internet_sockets():
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EACCES
    # Load the call's number; go on if it is another than socket. Load its first argument, a family of addresses;
    # refuse 2 and 10, the two of the internet.
    steps = [(0x20, 0, 0, 0), (0x15, 0, 4, SOCKET_CALL), (0x20, 0, 0, 16), (0x15, 1, 0, 2), (0x15, 0, 1, 10)]
    steps += [(0x06, 0, 0, refuse), (0x06, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    control = ctypes.CDLL(None).prctl
    no_new_privileges, seccomp, by_program = 38, 22, 2
    denied = control(no_new_privileges, 1, 0, 0, 0) or control(seccomp, by_program, program, 0, 0)
    note("refused", "nothing" if denied else "every internet socket")


if SOCKET_CALL:
    refuse_internet_sockets()
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


def stay(models: ModelFiles, tmp_path: Path, *before: str, **environment: str) -> Stay:
    """Run every command somewhere else, with an empty home and nothing inherited."""
    work = tmp_path / "ein schöner Ordner 文件夹"
    home, cwd, temp, watch = (work / name for name in ("home", "somewhere else", "temp", "watch"))
    for folder in (home, cwd, temp, watch):
        folder.mkdir(parents=True)
    (watch / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    (watch / "prompts.txt").write_text(PROMPT + "\n", encoding="utf-8")
    asked = [
        [*words, "--output", str(work / "out put" / name)]
        for name, words in commands(models, watch / "prompts.txt").items()
    ]
    asked += [["inspect", str(models.target)], ["doctor", "--models", str(models.target.parent), "--json"]]
    asked += [["plan", "--vram", "24"], ["report", "--html", str(work / "out put" / "demo")]]
    (watch / "commands.json").write_text(json.dumps(asked), encoding="utf-8")
    home.chmod(0o555)
    folders = (home, cwd, temp, PACKAGE, models.target.parent)
    there = files_in(*folders)
    done = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM, str(watch / "commands.json")],
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join((str(watch), str(PACKAGE.parent))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),
            "SDVG_NOTES": str(watch / "notes"),
            "SDVG_SOCKET_CALL": SOCKET_CALL,
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
    return Stay(work, done, notes, files_in(*folders) ^ there)


def files_in(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}
