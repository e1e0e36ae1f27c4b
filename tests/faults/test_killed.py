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
PASS, MOVE = ("sdvg_core.causal_wan.generator", "denoise_pass"), ("pathlib:Path", "replace")
POINTS = {
    "in a pass of block 4": (*PASS, 5, 3),
    "all moved but the report": (*MOVE, 10, 0),
    "before any block": (*PASS, 1, 0),
    "half a block written": ("sdvg_core.videos.blocks", "write_block", 3, 2),
    "half the latents written": ("sdvg_core.videos.rendering", "save_latents", 1, 5),
    "the first file moved": (*MOVE, 7, 5),
}
MARKS = [pytest.mark.heavy] + [pytest.mark.exhaustive] * 5


@pytest.mark.parametrize(
    "place, name, number, kept",
    [pytest.param(*POINTS[name], id=name, marks=mark) for name, mark in zip(POINTS, MARKS, strict=True)],
)
def test_a_run_that_was_killed_goes_on_to_the_same_video(files, whole, tmp_path, place, name, number, kept):
    arguments, folder = [*five(files), "--prompt", "a red ball"], tmp_path / "out"
    kill([*arguments, "--output", str(folder)], place, name, number)
    there = [name for name in names(folder) if name in OUTPUTS]
    moved = ["latents.safetensors", "video.mp4", "route.png", "blocks", "report.json"][: number - 6]
    assert there == (sorted(moved) if name == "replace" else [])
    assert len(unfinished_blocks(folder)) == kept
    rest = made(folder, [*arguments, "--resume"])
    assert rest[:2] == whole[1][:2]
    assert decisions(rest[2]) == decisions(whole[1][2])
    before = len(rest[2]["blocks"]) if "blocks" in there else kept
    assert [f"Blocks 1 to {before}" in note for note in rest[2]["notes"]] == ([True] if before else [])
    assert names(folder) == OUTPUTS


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "number, left, word",
    [
        pytest.param(7, 4, "--resume", id="as the old files go"),
        pytest.param(15, 4, "--overwrite", id="before the report"),
    ],
)
def test_a_run_killed_while_it_replaces_another_leaves_no_files_of_two(files, whole, tmp_path, number, left, word):
    """Five moves of blocks, five of old files out of the way, five of new ones into their places."""
    arguments, folder = [*five(files), "--prompt", "a red ball"], tmp_path / "out"
    made(folder, [*arguments, "--seed", "7"])
    old = {name: contents(folder / name) for name in OUTPUTS}
    kill([*arguments, "--output", str(folder), "--overwrite"], *MOVE, number)
    there = [name for name in names(folder) if name in OUTPUTS]
    assert len(there) == left
    assert {contents(folder / name) == old[name] for name in there} == {number == 7}
    with counted_passes() as passes:
        assert made(folder, [*arguments, word])[:2] == whole[1][:2]
    assert (passes, names(folder)) == ([], OUTPUTS)
