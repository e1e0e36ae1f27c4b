"""ComfyUI has the names that the nodes use; what it lacks is named. And the benchmark of the nodes runs.

The names are read from the code. The package comfy-import-guard (1.3.0) does that for `comfy.*`; it was not taken:
it fetches ComfyUI by itself, and looks at neither `comfy_api` nor `folder_paths`.
"""

import ast
import importlib
import json
import os
import subprocess
import sys
from operator import attrgetter

import comfy.model_management as mm
import pytest
from conftest import ROOT, find_comfyui

pytestmark = pytest.mark.comfyui
HOST = {"comfy", "comfy_api", "comfy_execution", "comfyui_version", "folder_paths", "server"}


def used_names():
    """Return every name of a module of ComfyUI's that the nodes use."""
    names = set()
    for file in (ROOT / "nodes").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        aliases = dict(_aliases(tree))
        names |= {*filter(None, aliases.values()), *(_dotted(node, aliases) for node in ast.walk(tree))}
    # The server's instance is there while it runs.
    return {name for name in names if name and ".instance" not in name}


def _aliases(tree):
    """Yield the names under which a file knows ComfyUI's modules and what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in HOST:
                    yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else ""
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in HOST:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _dotted(node, aliases):
    """Return the full name that an expression states; empty if it is none of ComfyUI's."""
    if isinstance(node, ast.Name) and node.id in aliases:
        return aliases[node.id] or node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return ""


def missing(names):
    """Return what the ComfyUI in the path lacks, one sentence each."""
    faults = []
    for name in sorted(names):
        try:
            resolve(name)
        except (ImportError, AttributeError) as error:
            faults.append(f"{name} is not there ({error})")
    return faults


def resolve(name):
    """Return what a name stands for."""
    module, _, member = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if not module:
            raise
    return attrgetter(member)(resolve(module))


def test_comfyui_has_every_name_the_nodes_use():
    """Catches: a host whose names have changed, found by the first run; names that are not read from the code."""
    names = used_names()
    some = {
        "comfy.ldm.wan.model.WanModel",
        "comfy.model_management.load_models_gpu",
        "comfy_api.latest.io.Schema",
        "folder_paths.get_filename_list",
        "server.PromptServer",
    }
    assert some <= names
    assert missing(names) == []


def test_missing_name_is_reported(monkeypatch):
    monkeypatch.delattr(mm, "loaded_models")
    [fault] = missing(used_names())
    assert fault.startswith("comfy.model_management.loaded_models is not there")


# --- the benchmark of the nodes, tiny and on a CPU, in a process of its own as `lab.benchmarks.run_gpu` starts it


@pytest.mark.parametrize("more, layouts", [((), 5), pytest.param(("--dynamic",), 4, marks=pytest.mark.exhaustive)])
def test_every_layout_makes_the_same_video(more, layouts):
    """Catches a name of the host or of the nodes that has changed, and a layout that fails."""
    program = "import gc, runpy; gc.disable(); runpy.run_module('lab.benchmarks.nodes', run_name='__main__')"
    words = [sys.executable, "-c", program, str(find_comfyui()), "cpu", *more]  # its imports take longer with it
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    videos = [value for line in done.stdout.splitlines() if "finite" in (value := json.loads(line))]
    assert [video["finite"] and video["same_bits"] for video in videos] == [True] * layouts
    assert [block["by"] for block in videos[0]["blocks"]] == ["target", "target", "drafter"]
