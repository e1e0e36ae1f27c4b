"""The benchmark of the nodes, tiny and on a CPU, in a process of its own as `benchmarks.run_gpu` starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import find_comfyui

pytestmark = pytest.mark.comfyui
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("more, layouts", [((), 5), (("--dynamic",), 4)])
def test_every_layout_makes_the_same_video(more, layouts):
    """Catches a name of the host or of the nodes that has changed, and a layout that fails."""
    words = [sys.executable, "-m", "benchmarks.nodes", str(find_comfyui()), "cpu", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    videos = [value for line in done.stdout.splitlines() if "finite" in (value := json.loads(line))]
    assert [video["finite"] and video["same_bits"] for video in videos] == [True] * layouts
    assert [block["by"] for block in videos[0]["blocks"]] == ["target", "target", "drafter"]
