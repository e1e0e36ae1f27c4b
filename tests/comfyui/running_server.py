"""A ComfyUI server for tests: folders and a port of its own, the pack linked in, gone when the test is over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.sd
import safetensors.torch
from random_set import write_controls, write_random_set
from sdvg_pack.sdvg_core.checkpoints.model_files import ModelFiles
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = Path(comfy.sd.__file__).resolve().parents[1]
CNR = "sdvg"
FRONTEND = os.environ.get("COMFYUI_FRONTEND")
"""The folder `static` of another frontend than the environment's."""
REPORT, KEPT = "6", "latents"  # nodes of the pocket workflow
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

    def __init__(self, answer: dict[str, Any]) -> None:
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
    def status(self) -> str:
        """`success` or `error`; an interrupted run is an error."""
        return str(self.entry["status"]["status_str"])

    @property
    def outputs(self) -> dict[str, Any]:
        """Return what each output node left for people to see."""
        return dict(self.entry["outputs"])

    def record(self, report: str = REPORT) -> dict[str, Any]:
        """Return the record that a Route Report left."""
        return dict(json.loads(self.outputs[report]["sdvg_report"][0]))

    def message(self, kind: str) -> dict[str, Any] | None:
        """Return the details of the first message of a kind, such as `execution_error`."""
        return next((details for name, details in self.entry["status"]["messages"] if name == kind), None)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `folder` holds models, input and output."""

    port: int
    folder: Path

    def ask(self, path: str, body: Any = None) -> Any:
        """GET a path, or POST a body to it; returns the JSON of the answer, or None for an empty one."""
        try:
            content = self.raw(path, body)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(json.loads(error.read())) from None
        return json.loads(content) if content else None

    def raw(self, path: str, body: Any = None) -> bytes:
        """Return an answer as it comes."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return bytes(answer.read())

    def queue(
        self, prompt: dict[str, Any], client: str = "test", *, extra_data: dict[str, Any] | None = None
    ) -> str:
        """Queue a prompt in API form and return its id. `extra_data`: as a browser sends it. Raises `Refused`."""
        body = {"prompt": prompt, "client_id": client, "extra_data": extra_data or {}}
        return str(self.ask("/prompt", body)["prompt_id"])

    def wait(self, prompt_id: str, seconds: float = 600) -> Finished:
        """Return a prompt's entry once it is done, however it ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            history = self.ask(f"/history/{prompt_id}")
            if prompt_id in history:
                return Finished(history[prompt_id])
            time.sleep(0.01)
        raise TimeoutError(f"prompt {prompt_id} was not done after {seconds} s")

    def run(self, prompt: dict[str, Any]) -> Finished:
        """Queue a prompt and wait for it."""
        return self.wait(self.queue(prompt))

    def make(self, prompt: dict[str, Any]) -> Finished:
        """Run a prompt that must succeed."""
        done = self.run(prompt)
        assert done.status == "success", done.message("execution_error")
        return done

    def latents(self, done: Finished) -> Tensor:
        """Return the latents that the node `KEPT` of a prompt saved."""
        [file] = done.outputs[KEPT]["latents"]
        return safetensors.torch.load(self.view(file))["latent_tensor"]

    def forget(self) -> None:
        """Have the server drop its models and every cached output."""
        self.ask("/free", {"unload_models": True, "free_memory": True})
        # It does so between two prompts, perhaps only after the next one: so let there be one.
        text = {"class_type": "PrimitiveString", "inputs": {"value": ""}}
        self.run({"1": text, "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}})

    def view(self, file: dict[str, str]) -> bytes:
        """Return an output file as the history names it."""
        return self.raw("/view?" + urllib.parse.urlencode(file))


@contextmanager
def running_server(
    folder: Path, *, pack: Path = ROOT, options: Sequence[str] = (), seconds: float = 600
) -> Iterator[Server]:
    """Start a server on the CPU with its base in `folder` and the pack that lies in `pack`, and end it."""
    _furnish(folder, pack)
    server = Server(_free_port(), folder)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*_command(server), *options], cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log
        )
    try:
        _await_start(server, process, seconds)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_models(models: Path) -> ModelFiles:
    """Write the tiny set into ComfyUI's model folders, all but the text encoder; return where the files are."""
    made = write_random_set(models / "sdvg_tiny")
    places = {
        "drafter": ("diffusion_models", made.drafter),
        "target": ("diffusion_models", made.target),
        "vae": ("vae", made.vae),
        "reward": ("image_reward", made.reward),
    }
    moved = {}
    for role, (place, path) in places.items():
        (models / place).mkdir(parents=True, exist_ok=True)
        moved[role] = path.rename(models / place / path.name)
    write_controls(models / "diffusion_models")
    (made.reward.parent / "vocab.txt").rename(models / "image_reward" / "vocab.txt")
    return ModelFiles(**moved, text_encoder=made.text_encoder)


def _furnish(folder: Path, pack: Path) -> None:
    nodes = folder / "custom_nodes"
    before = nodes / "before_tests"
    if before.is_dir():
        return  # the server is started again
    before.mkdir(parents=True)
    started = "import gc\n\ngc.freeze()\ngc.enable()\nNODE_CLASS_MAPPINGS = {}\n"
    (before / "__init__.py").write_text(started, encoding="ascii")
    (before / "prestartup_script.py").write_text(PRESTARTUP, encoding="ascii")
    (nodes / CNR).symlink_to(pack, target_is_directory=True)


def _command(server: Server) -> Sequence[str]:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_start(server: Server, process: subprocess.Popen[bytes], seconds: float) -> None:
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
