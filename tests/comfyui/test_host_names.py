"""ComfyUI has the names that the nodes use; what it lacks is named. And the benchmark of the nodes runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import comfy.model_management as mm
import host_names
import pytest
from conftest import find_comfyui

pytestmark = pytest.mark.comfyui


def test_this_comfyui_has_all_that_is_used_and_what_is_missing_is_named(monkeypatch):
    names = host_names.used_names()
    wanted = {
        "comfy.ldm.wan.model.WanModel",
        "comfy.model_management.load_models_gpu",
        "comfy_api.latest.io.Schema",
        "folder_paths.get_filename_list",
        "server.PromptServer",
    }
    assert wanted <= names
    assert host_names.missing(names) == []
    monkeypatch.delattr(mm, "loaded_models")
    [fault] = host_names.missing(names)
    assert fault.startswith("comfy.model_management.loaded_models is not there (")


# --- the benchmark of the nodes, tiny and on a CPU, in a process of its own as `benchmarks.run_gpu` starts it


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
