"""A disk that is full, or a command line that is killed outright."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import OUTPUTS, names
from faulty import Trap, make_loaded, make_video, quick, result
from reuse_folders import decisions, five, made

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import unfinished_blocks

WRITES = ("write video", "write block", "write latents", "write report", "move", "rename")


@pytest.mark.heavy
def test_a_disk_or_quota_that_fills_up_at_any_write_is_one_sentence_and_nothing_half(tmp_path):
    """And the next run, when there is room, goes on from the last block."""
    with quick():
        loaded, whole = make_loaded(), Trap()
        with whole.set():
            fresh = result(tmp_path / "whole", make_video(loaded, tmp_path / "whole"))
        writes = [n for n, stage in enumerate(whole.stages, 1) if stage in WRITES]
        for number, code in zip([*writes[:6], *writes[-10:]], (errno.ENOSPC, errno.EDQUOT) * 8, strict=True):
            folder = tmp_path / str(number)
            full = Trap(number, OSError(code, os.strerror(code)))
            with full.set(), pytest.raises(BadInput, match="is full; free some space"):
                make_video(loaded, folder)
            assert not (folder / "video.mp4").exists()
            assert result(folder, make_video(loaded, folder)) == fresh


# Runs the command line in a process of its own, which kills itself in its fifth pass.
DRIVER = """
import os, signal, sys, torch
torch.set_num_threads(1)
from sdvg_core.causal_wan import generator
from sdvg_core.cli import main
honest, calls = generator.denoise_pass, 0
def denoise_pass(*given, **options):
    global calls
    calls += 1
    if calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(*given, **options)
generator.denoise_pass = denoise_pass
main(sys.argv[1:])
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.heavy
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_run_that_was_killed_in_a_block_goes_on_to_the_same_video(files, tmp_path):
    """A kill at any change to the disk is in `files/test_outputs.py`."""
    arguments, folder = [*five(files), "--prompt", "a red ball"], tmp_path / "out"
    whole = made(tmp_path / "whole", arguments)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments, "--output", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not folder.exists()
    assert len(unfinished_blocks(folder)) == 3
    rest = made(folder, [*arguments, "--resume"])
    assert rest[:2] == whole[:2]
    assert decisions(rest[2]) == decisions(whole[2])
    assert [note for note in rest[2]["notes"] if "Blocks 1 to 3" in note]
    assert names(folder) == OUTPUTS
    assert names(tmp_path) == ["out", "whole"]
