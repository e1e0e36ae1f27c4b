"""A ComfyUI server for tests: folders and a port of its own, the pack linked in, gone when the test is over."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import wave
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.sd
import safetensors.torch
import torch
from comfy_extras.frame_interpolation_models.ifnet import IFNet
from PIL import Image
from safetensors.torch import save_file
from sdvg_pack.sdvg_core.causal_wan.config import WanConfig, wan_shapes
from sdvg_pack.sdvg_core.files.video import write_mp4

from tests.support.random_set import write_controls, write_random_set

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = Path(comfy.sd.__file__).resolve().parents[1]
CNR = "sdvg"
FRONTEND = os.environ.get("COMFYUI_FRONTEND")
"""The folder `static` of another frontend than the environment's."""
# Nodes of the pocket workflow.
REPORT = "6"
KEPT = "latents"
# What our development environment holds and ComfyUI does not ask for: a server goes without, as a user's does.
NOT_COMFYUI = ("diffusers", "ftfy", "jsonschema", "matplotlib")

# Many tiny tensors: a second thread costs more than it brings, and much more on a busy machine.
# By default Python is silent about what is deprecated.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}

# Runs before ComfyUI imports anything: see README.md on torchvision. Collecting garbage is a third of its start.
PRESTARTUP = f"""
import gc
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

gc.disable()


class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in {NOT_COMFYUI!r}
        return None if hidden else super().find_spec(name, path, target)


sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]

import torch

for compiled in Path(find_spec("torchvision").origin).parent.glob("_C*"):
    try:
        torch.ops.load_library(str(compiled))
    except OSError:
        for name in ("torchvision::nms", "torchvision::qnms"):
            torch.library.define(name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


class Refused(Exception):
    """What the server answered instead of taking a prompt; `errors`: node id -> its messages."""

    def __init__(self, answer):
        super().__init__(json.dumps(answer)[:2000])
        self.errors = {
            node: [f"{error['message']}: {error['details']}" for error in refused["errors"]]
            for node, refused in (answer.get("node_errors") or {}).items()
        }


@dataclass(frozen=True, slots=True)
class Finished:
    """One entry of the history."""

    entry: dict[str, Any]

    @property
    def status(self):
        """`success` or `error`; an interrupted run is an error."""
        return str(self.entry["status"]["status_str"])

    @property
    def outputs(self):
        """Return what each output node left for people to see."""
        return dict(self.entry["outputs"])

    def record(self, report=REPORT):
        """Return the record that a Route Report left."""
        return dict(json.loads(self.outputs[report]["sdvg_report"][0]))

    def message(self, kind):
        """Return the details of the first message of a kind, such as `execution_error`."""
        return next((details for name, details in self.entry["status"]["messages"] if name == kind), None)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `folder` holds models, input and output."""

    port: int
    folder: Path

    def ask(self, path, body=None):
        """GET a path, or POST a body to it; returns the JSON of the answer, or None for an empty one."""
        try:
            content = self.raw(path, body)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(json.loads(error.read())) from None
        return json.loads(content) if content else None

    def raw(self, path, body=None):
        """Return an answer as it comes."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return bytes(answer.read())

    def queue(self, prompt, client="test", *, extra_data=None):
        """Queue a prompt in API form and return its id. `extra_data`: as a browser sends it. Raises `Refused`."""
        body = {"prompt": prompt, "client_id": client, "extra_data": extra_data or {}}
        return str(self.ask("/prompt", body)["prompt_id"])

    def wait(self, prompt_id, seconds=600):
        """Return a prompt's entry once it is done, however it ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            history = self.ask(f"/history/{prompt_id}")
            if prompt_id in history:
                return Finished(history[prompt_id])
            time.sleep(0.01)
        raise TimeoutError(f"prompt {prompt_id} was not done after {seconds} s")

    def run(self, prompt):
        """Queue a prompt and wait for it."""
        return self.wait(self.queue(prompt))

    def steer(self, run, act, **more):
        """Ask something of a live session. Raises `Refused`."""
        return self.ask("/sdvg/steer", {"run": run, "act": act, **more})

    def make(self, prompt):
        """Run a prompt that must succeed."""
        done = self.run(prompt)
        assert done.status == "success", done.message("execution_error")
        return done

    def latents(self, done):
        """Return the latents that the node `KEPT` of a prompt saved."""
        [file] = done.outputs[KEPT]["latents"]
        return safetensors.torch.load(self.view(file))["latent_tensor"]

    def forget(self):
        """Have the server drop its models and every cached output."""
        self.ask("/free", {"unload_models": True, "free_memory": True})
        # It does so between two prompts, perhaps only after the next one: so let there be one.
        text = {"class_type": "PrimitiveString", "inputs": {"value": ""}}
        self.run({"1": text, "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}})

    def view(self, file):
        """Return an output file as the history names it."""
        return self.raw("/view?" + urllib.parse.urlencode(file))


@contextmanager
def running_server(folder, *, pack=ROOT):
    """Start a server on the CPU with its base in `folder` and the pack that lies in `pack`, and end it."""
    _furnish(folder, pack)
    server = Server(_free_port(), folder)
    with _process_of(server):
        yield server


@contextmanager
def returning_server(folder):
    """Start a server that comes back on its port whenever it is killed; `folder/pid` names its process."""
    _furnish(folder, ROOT)
    server = Server(_free_port(), folder)
    over = threading.Event()
    ready = threading.Event()

    def go_on():
        while not over.is_set():
            with _process_of(server) as process:
                (folder / "pid").write_text(str(process.pid), encoding="ascii")
                ready.set()
                process.wait()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        assert ready.wait(600), "it did not start"
        yield server
    finally:
        over.set()
        os.kill(int((folder / "pid").read_text(encoding="ascii")), signal.SIGKILL)
        thread.join()


@contextmanager
def _process_of(server):
    folder = server.folder
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(_command(server), cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        _await_start(server, process)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_models(models):
    """Write the tiny set into ComfyUI's model folders."""
    made = write_random_set(models / "sdvg_tiny")
    vocabulary = made.reward.parent / "vocab.txt"
    places = {"diffusion_models": (made.drafter, made.target), "vae": (made.vae,)}
    places |= {"image_reward": (made.reward, vocabulary)}
    for place, paths in places.items():
        (models / place).mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.rename(models / place / path.name)
    write_controls(models / "diffusion_models")


def _furnish(folder, pack):
    nodes = folder / "custom_nodes"
    before = nodes / "before_tests"
    before.mkdir(parents=True)
    started = "import gc\n\ngc.freeze()\ngc.enable()\nNODE_CLASS_MAPPINGS = {}\n"
    (before / "__init__.py").write_text(started, encoding="ascii")
    (before / "prestartup_script.py").write_text(PRESTARTUP, encoding="ascii")
    (nodes / CNR).symlink_to(pack, target_is_directory=True)


def _command(server):
    settings = {
        "--listen": "127.0.0.1",
        "--port": str(server.port),
        "--base-directory": str(server.folder),
        "--database-url": "sqlite:///:memory:",
        "--preview-method": "latent2rgb",
    }
    if FRONTEND:
        settings["--front-end-root"] = FRONTEND
    options = [word for setting in settings.items() for word in setting]
    return [sys.executable, str(CHECKOUT / "main.py"), "--cpu", "--disable-api-nodes", *options]


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_start(server, process, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            server.ask("/system_stats")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    log = (server.folder / "log").read_text(encoding="utf-8", errors="replace")
    raise RuntimeError(f"ComfyUI did not start within {seconds} s; the end of its log:\n{log[-3000:]}")


# --- prompts of the pocket workflow, changed as a test wants them


POCKET = "1"
ROUTER = "2"
SAMPLER = "3"
EXTRA = "extra"
GONE = object()
# Real text width, tiny otherwise: its conditioning must be 4096 wide.
WIDE = WanConfig(dim=128, ffn_dim=64, num_layers=1, num_heads=1)


# A node whose output fits every socket, and a router that follows a plan, so that the route of a page is known.
ANYTHING = """
import json


class Anything:
    RETURN_TYPES = ("*",)
    FUNCTION = "make"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("STRING", {"multiline": True})}}

    def make(self, value):
        return (object() if value == "object" else json.loads(value),)


class Plan:
    needs_scorer = True

    def __init__(self, plan, scorer):
        self.plan, self.key, self.scorer = plan, plan, scorer

    def keep(self, index, score):
        return self.plan[index] == "a"


class PlannedRouter:
    RETURN_TYPES = ("SDVG_ROUTER",)
    RETURN_NAMES = ("router",)
    FUNCTION = "make"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"plan": ("STRING", {}), "scorer": ("SDVG_SCORER",)}}

    def make(self, plan, scorer):
        return (Plan(plan, scorer),)


NODE_CLASS_MAPPINGS = {"Anything": Anything, "PlannedRouter": PlannedRouter}
"""


def furnish(folder):
    """Put these nodes into the custom nodes of a server that is not started yet."""
    place = folder / "custom_nodes" / "anything"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(ANYTHING, encoding="ascii")


@contextmanager
def tiny_server(folder):
    """Start a server with the tiny set in its model folders, two models of the real text width, a picture, a clip.

    It has the nodes of `ANYTHING`.
    """
    furnish(folder)
    write_models(folder / "models")
    for name in ("wide_a", "wide_b"):
        weights = {key: torch.zeros(shape) for key, shape in wan_shapes(WIDE).items()}
        save_file(weights, folder / "models" / "diffusion_models" / f"{name}.safetensors")
    (folder / "input").mkdir()
    Image.linear_gradient("L").convert("RGB").save(folder / "input" / "example.png")
    for name, frames in (("clip", 21), ("odd_clip", 26), ("long_clip", 93)):  # 2 blocks, 2 and a rest, 8
        write_mp4(folder / "input" / f"{name}.mp4", torch.rand(frames, 3, 64, 64), fps=16)
    with wave.open(str(folder / "input" / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 8000))
    # Of ComfyUI's own kinds: a RIFE, and an upscaler by four in each direction.
    rife = IFNet(head_ch=4, channels=[16] * 5).state_dict()
    scaler = {
        "body.0": (4, 3, 3, 3),
        "body.1": (4,),
        "body.2": (4, 4, 3, 3),
        "body.3": (4,),
        "body.4": (48, 4, 3, 3),
    }
    weights = {f"{name}.weight": torch.zeros(shape) for name, shape in scaler.items()}
    weights |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in scaler.items() if len(shape) > 1}
    for place, tensors in (("frame_interpolation", rife), ("upscale_models", weights)):
        (folder / "models" / place).mkdir()
        empty = {name: torch.zeros(tensor.shape) for name, tensor in tensors.items()}
        save_file(empty, folder / "models" / place / "tiny.safetensors")
    with running_server(folder) as running:
        yield running


def pocket(blocks=3, **changes):
    """Return the pocket workflow in API form, its latents saved in the place of its video."""
    prompt = json.loads((ROOT / "workflows" / "api" / "sdvg_pocket_demo.json").read_text(encoding="utf-8"))
    prompt = {key: prompt[key] for key in (POCKET, ROUTER, SAMPLER, REPORT)}
    assert prompt[SAMPLER]["class_type"] == "SDVGSpeculativeSampler"
    prompt[SAMPLER]["inputs"]["blocks"] = blocks
    prompt[KEPT] = node("SaveLatent", samples=[SAMPLER, 1], filename_prefix="sdvg/latents")
    return change(prompt, **changes)


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


def change(prompt, **changes):
    """Return a prompt with inputs set, as node__input=value, or taken out, and perhaps a node added."""
    prompt = copy.deepcopy(prompt)
    for name, value in changes.items():
        if name == EXTRA:
            prompt[EXTRA] = value
        else:
            role, _, key = name.partition("__")
            inputs = prompt[{"pocket": POCKET, "router": ROUTER, "sampler": SAMPLER}[role]]["inputs"]
            key = key.replace("__", ".")
            inputs[key] = value
            if value is GONE:
                del inputs[key]
    return prompt
