"""The command line alone on a foreign machine: no network, no home to write to, odd paths and a terminal of old.

Every command runs once in a process of its own, which is watched from inside (Python's audit events) and from
outside (which files there are afterwards), and has to make the very latents that it makes elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

import sdvg_core
from sdvg_core.cli import main
from sdvg_core.pocket.random_set import write_random_set

PACKAGE = Path(sdvg_core.__file__).parent
PROMPT = "ein Bär läuft über weißen Schnee 雪"
SMALL = ["--width", "32", "--height", "32", "--schedule", "1000,625", "--blocks", "2"]

# Runs before anything else in the process. It notes what a library may swallow, and lets nothing out.
WATCH = """
import os
import sys

NOTES = open(os.environ["SDVG_NOTES"], "a", encoding="utf-8", errors="backslashreplace")
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
CHANGES = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod")


def note(kind, what):
    if isinstance(what, bytes):
        what = os.fsdecode(what)
    NOTES.write(f"{kind}\\t{what if kind == 'network' else os.path.abspath(what)}\\n")
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


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "Modelle für später"
    write_random_set(folder)
    return folder


def options(models: Path) -> list[str]:
    files = {
        "drafter": "tiny_self_forcing.pt",
        "target": "tiny_krea.safetensors",
        "vae": "tiny_wan_2.1_vae.safetensors",
        "text-encoder": "tiny_umt5.safetensors",
        "reward": "TinyImageReward.pt",
    }
    named = [word for role, name in files.items() for word in (f"--{role}", str(models / name))]
    return [
        *named,
        "--drafter-preset",
        "self-forcing-1.3b",
        "--target-preset",
        "krea-14b",
        "--text-dtype",
        "float32",
    ]


def commands(models: Path, prompts: Path) -> dict[str, list[str]]:
    study = ["study", "--prompts", "1", "--blocks", "1", "--schedule", "1000,625", "--workers", "1"]
    return {
        "generate": ["generate", *options(models), *SMALL, "--prompt-file", str(prompts)],
        "demo": ["demo", "--blocks", "1"],
        "study": [*study, "--configurations", "target-only"],
    }


def stay(models: Path, tmp_path: Path, *before: str, **environment: str) -> Stay:
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
    asked += [["inspect", str(models / "tiny_krea.safetensors")], ["doctor", "--models", str(models), "--json"]]
    asked += [["plan", "--vram", "24"]]
    (watch / "commands.json").write_text(json.dumps(asked), encoding="utf-8")
    home.chmod(0o555)
    folders = (home, cwd, temp, PACKAGE, models)
    there = files_in(*folders)
    done = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM, str(watch / "commands.json")],
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join((str(watch), str(PACKAGE.parent))),
            "PYTHONDONTWRITEBYTECODE": "1",
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
    return Stay(work, done, notes, files_in(*folders) ^ there)


def files_in(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(
    scope="module",
    params=[
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        pytest.param({"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}, marks=pytest.mark.heavy),
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


def test_nothing_is_written_but_into_the_output_and_temp_folders(abroad):
    """Catches a cache in the home folder, a file beside the package or in the current folder.

    But for matplotlib, which draws a study's plots: it keeps a list of fonts, where every program finds it.
    """
    home, chosen = abroad.work / "home", (abroad.work / "out put", abroad.work / "temp", Path(os.devnull))
    fonts = {home / kind / name for kind in (".cache", ".config") for name in ("", "matplotlib")}
    written = {Path(what) for kind, what in abroad.notes if kind == "write"}
    for path in sorted(written | abroad.changed):
        ours = any(path.is_relative_to(place) for place in chosen)
        assert ours or path in fonts or path.parent == home / ".cache" / "matplotlib", path
    assert any(path.is_relative_to(chosen[0]) for path in written)


def test_the_latents_are_those_made_at_home(abroad, models, tmp_path):
    """The prompts' letters, the paths and the locale change no bit."""
    (tmp_path / "prompts.txt").write_text(PROMPT + "\n", encoding="utf-8")
    for name, words in commands(models, tmp_path / "prompts.txt").items():
        if name != "study":
            assert main([*words, "--output", str(tmp_path / name)]) == 0
            places = (tmp_path / name, abroad.output(name))
            here, there = (load_file(place / "latents.safetensors")["latents"] for place in places)
            assert here.equal(there), name


def test_all_outputs_are_there_and_the_folder_is_named_on_any_terminal(abroad):
    for name, expected in {"generate": "video.mp4", "demo": "video.mp4", "study": "table.md"}.items():
        assert (abroad.output(name) / expected).is_file(), name
    assert "Written to" in abroad.done.stdout
    assert "Traceback" not in abroad.done.stderr


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare, which Linux has")
def test_everything_runs_where_there_is_no_network_at_all(models, tmp_path):
    """In a namespace without even a loopback: what does not go through Python counts too."""
    cut = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*cut, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this kernel lets nobody have a network of their own")
    found = stay(models, tmp_path, *cut)
    assert found.done.returncode == 0, found.done.stderr


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
