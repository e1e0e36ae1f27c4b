"""Runs ComfyUI inside the test process, on the CPU unless the mark `gpu` is asked for, and loads the pack.

It is loaded as ComfyUI does, under the name `sdvg_pack`.

Only `pytest -m comfyui tests/comfyui` does so; any other run leaves this folder alone. Two things must not meet in
one process: ComfyUI's `nodes.py` with our `nodes`, and its modules with the tests that prove we do without them.
"""

import importlib.util
import os
import re
import sys
import warnings
from collections import deque
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PACK = "sdvg_pack"


def find_comfyui():
    """Return the checkout: COMFYUI_PATH, where comfy-cli installs, or the one whose custom_nodes we lie in."""
    stated = os.environ.get("COMFYUI_PATH")
    places = [Path(stated)] if stated else [Path.home() / "comfy" / "ComfyUI", ROOT.parents[1]]
    return next((place for place in places if (place / "comfy" / "sd.py").is_file()), None)


def start_comfyui(*, gpu):
    """Import ComfyUI and the pack, on the CPU unless `gpu`. Returns why that cannot be, or None."""
    if PACK in sys.modules:  # in a fork of a process that has both, by another pytest
        leave_root_out_of_the_path()
        return None
    checkout = find_comfyui()
    if checkout is None:
        return "no checkout of ComfyUI (COMFYUI_PATH, ~/comfy/ComfyUI, or two folders up): see README.md here"
    sys.path.insert(0, str(ROOT))
    import sdvg_core  # noqa: F401 - which helpers use, as the next two: while the root is in the path
    import tests.planted
    import tests.support  # noqa: F401

    leave_root_out_of_the_path()
    sys.path.insert(0, str(checkout))
    arguments = sys.argv
    sys.argv = ["comfy", *([] if gpu and torch.cuda.is_available() else ["--cpu"])]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            define_missing_ops()
            import comfy.options

            comfy.options.enable_args_parsing()
            import comfy.sd
            import utils.install_util  # noqa: F401  before ComfyUI's nodes.py puts another `utils` first in the path
    except ImportError as error:
        return f"ComfyUI's requirements are not installed in this Python ({error}): see README.md here"
    finally:
        sys.argv = arguments
    load_pack()
    return None


def leave_root_out_of_the_path():
    """The repository's root would make `import nodes` find ours."""
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != ROOT]


def define_missing_ops():
    """Define the two ops that a torchvision built for CUDA lacks on a machine without it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for library in Path(spec.origin).parent.glob("_C.*"):
        try:
            torch.ops.load_library(library)
        except OSError:
            break
        return
    for name in ("nms", "qnms"):
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", signature)


def load_pack():
    """Execute the pack's `__init__.py` under a name that is not its folder's, as ComfyUI's loader does."""
    spec = importlib.util.spec_from_file_location(
        PACK, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACK] = module
    spec.loader.exec_module(module)


class Absent(pytest.Module):
    """A test file that is skipped as a whole, without being imported."""

    def collect(self):
        pytest.skip(self.config.stash[REASON] or "")


REASON = pytest.StashKey()


def pytest_configure(config):
    """Start ComfyUI if these tests are asked for by their mark, but not in a process that only deals them out."""
    if asked_for(config) and config.getoption("dist", "no") == "no":
        config.stash[REASON] = start_comfyui(gpu=asked_for(config, "gpu"))


def pytest_ignore_collect(collection_path, config):
    """Leave this folder alone otherwise."""
    return None if asked_for(config) or not collection_path.is_relative_to(HERE) else True


def pytest_pycollect_makemodule(module_path, parent):
    """Put an empty file in the place of one that could not be imported."""
    missing = module_path.is_relative_to(HERE) and parent.config.stash.get(REASON, None)
    return Absent.from_parent(parent, path=module_path) if missing else None


def asked_for(config, mark="comfyui"):
    """Whether the run's marker expression names a mark, and not to leave it out."""
    return re.search(rf"(?<!not )\b{mark}\b", config.option.markexpr) is not None


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The server of all tests of this process, but for those that end one or install the pack in another way."""
    from running_server import tiny_server  # imports ComfyUI, which has to be started before

    with tiny_server(tmp_path_factory.mktemp("comfyui")) as running:
        yield running


@pytest.fixture(scope="module")
def schemas(server):
    """What the server says of our nodes."""
    from comfy_page import NODES

    every = server.ask("/object_info")
    return {name: every[name] for name in NODES}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A tiny set of models on the disk, whose VAE has as many blocks as ComfyUI's."""
    from tests.support.random_set import write_random_set

    return write_random_set(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """Tiny models, for tests that leave them as they were."""
    from host_run import load_parts

    return load_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def empty_store(monkeypatch):
    """Nothing to re-use, but what the test itself makes."""
    from sdvg_pack.nodes.host import reuse
    from sdvg_pack.sdvg_core.engine.reuse import PixelStore, Store

    monkeypatch.setattr(reuse, "STORE", Store(0))
    monkeypatch.setattr(reuse, "PIXELS", PixelStore())


@pytest.fixture(scope="module")
def output_folder(tmp_path_factory):
    """A folder that ComfyUI takes for its output, where locks are written."""
    import folder_paths  # ComfyUI's, which has to be started before

    folder = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folder_paths, "get_output_directory", lambda: str(folder))
        yield folder


@pytest.fixture(scope="module")
def kept(parts):
    """The lock of the first blocks of a video, its frames and its latents."""
    from host_run import KEEP, SamplerRun, make_job
    from sdvg_pack.nodes.host import reuse
    from sdvg_pack.sdvg_core.engine.reuse import Store

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "STORE", Store(0))
        video = SamplerRun(make_job(parts))
    return video.lock(KEEP), video.frames, video.latents


@pytest.fixture
def restart(monkeypatch):
    """A function after which no page shows any run that was made before."""
    from sdvg_pack.nodes.page.live import RUNS

    return lambda: monkeypatch.setattr(RUNS, "now", list)


@pytest.fixture(scope="module")
def newest_runs():
    """Of each node only the newest run is remembered; how many before it, test_host_reuse.py says."""
    from sdvg_pack.nodes.page.live import RUNS

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RUNS, "_earlier", deque(maxlen=0))
        yield


@pytest.fixture
def loras(tmp_path, monkeypatch):
    """A folder that ComfyUI takes for the one of LoRAs."""
    import folder_paths  # ComfyUI's, which has to be started before

    folder = tmp_path / "loras"
    folder.mkdir()
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "loras", ([str(folder)], {".safetensors"}))
    return folder
