"""A command line that is killed outright, with no chance to tidy up, is gone on with like one that was stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import OUTPUTS, names
from reuse_folders import contents, counted_passes, decisions, five, made

from sdvg_core.files.outputs import unfinished_blocks

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")

# Runs the command line in a process of its own, which kills itself at the given call of a function.
DRIVER = """
import importlib, os, signal, sys, torch
torch.set_num_threads(1)
from sdvg_core.cli import main
place, name, number, *arguments = sys.argv[1:]
owner = importlib.import_module(place.partition(":")[0])
for part in filter(None, place.partition(":")[2].split(".")):
    owner = getattr(owner, part)
honest, calls = getattr(owner, name), 0
def call(*given, **options):
    global calls
    calls += 1
    if calls == int(number):
        if name in ("save_latents", "write_block"):
            given[0].write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(*given, **options)
setattr(owner, name, call)
main(arguments)
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory) -> tuple[Path, tuple[bytes, str, dict]]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, made(folder, [*five(files), "--prompt", "a red ball"])


def kill(arguments: list[str], place: str, name: str, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, place, name, str(number), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


# Where it is killed, and how many blocks are then kept.
PASS, RENAME = ("sdvg_core.causal_wan.generator", "denoise_pass"), ("pathlib:Path", "rename")
POINTS = {
    "in a pass of block 4": (*PASS, 5, 3),
    "before any block": (*PASS, 1, 0),
    "half a block written": ("sdvg_core.videos.blocks", "write_block", 3, 2),
    "half the latents written": ("sdvg_core.videos.rendering", "save_latents", 1, 5),
    "all written, before it is renamed": (*RENAME, 1, 5),
}
MARKS = [pytest.mark.heavy] + [pytest.mark.exhaustive] * 4


@pytest.mark.parametrize(
    "place, name, number, kept",
    [pytest.param(*POINTS[name], id=name, marks=mark) for name, mark in zip(POINTS, MARKS, strict=True)],
)
def test_a_run_that_was_killed_goes_on_to_the_same_video(files, whole, tmp_path, place, name, number, kept):
    arguments, folder = [*five(files), "--prompt", "a red ball"], tmp_path / "out"
    kill([*arguments, "--output", str(folder)], place, name, number)
    assert not folder.exists()
    assert len(unfinished_blocks(folder)) == kept
    rest = made(folder, [*arguments, "--resume"])
    assert rest[:2] == whole[1][:2]
    assert decisions(rest[2]) == decisions(whole[1][2])
    assert [f"Blocks 1 to {kept}" in note for note in rest[2]["notes"]] == ([True] if kept else [])
    assert names(folder) == OUTPUTS
    assert names(tmp_path) == ["out"]


# Of the calls to a function, the one that is not made; whether the old video or the new one is seen then.
REPLACING = {
    "before the old folder goes": (*RENAME, 1, "old"),
    "before the new one comes": (*RENAME, 2, ""),
    "before the old video is deleted": ("shutil", "rmtree", 4, "new"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("place, name, number, seen", REPLACING.values(), ids=REPLACING)
def test_a_run_killed_while_it_replaces_another_leaves_one_of_them_whole(
    files, whole, tmp_path, place, name, number, seen
):
    arguments, folder = [*five(files), "--prompt", "a red ball"], tmp_path / "out"
    made(folder, [*arguments, "--seed", "7"])
    (folder / ".mine").mkdir()
    (folder / ".mine" / "note.txt").write_text("mine")
    old = contents(folder)
    kill([*arguments, "--output", str(folder), "--overwrite"], place, name, number)
    left = contents(folder)
    latents = left.get("latents.safetensors")
    assert latents == {"old": old["latents.safetensors"], "new": whole[1][0], "": None}[seen]
    assert set(left) == (set(old) if seen else set())
    with counted_passes() as passes:
        assert made(folder, [*arguments, *([] if seen == "new" else ["--overwrite"])])[0] == whole[1][0]
    assert passes == []
    assert names(folder) == sorted([*OUTPUTS, ".mine"])
    assert (folder / ".mine" / "note.txt").read_text() == "mine"
    assert names(tmp_path) == ["out"]
