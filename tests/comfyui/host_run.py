"""A run over tiny MODELs that ComfyUI loaded, and what such a run must leave as it was."""

import gc
import hashlib
import os
import threading
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

import comfy.model_management
import comfy.sd
import torch
from comfy.model_patcher import ModelPatcher
from host_tiny import generator_of, load_model, load_vae, random_weights
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.model import attach_origin
from sdvg_pack.nodes.host.sockets import HostScorer, PromptEntry, RouterValue, StartValue, load_host_scorer
from sdvg_pack.nodes.page.kept import find_locks
from sdvg_pack.nodes.run import run_job
from sdvg_pack.nodes.sampler import OF_REQUEST
from sdvg_pack.nodes.start import EXTEND
from sdvg_pack.sdvg_core.report.run_report import RunReport
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.execution import Execution
from sdvg_pack.sdvg_core.settings.request import VideoRequest
from sdvg_pack.sdvg_core.settings.route import Custom, Route
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tests.support.random_set import write_random_set
from tests.support.routers import PlannedRouter

TEXT = "a small red ball moves from left to right"
ROUTE = "raaraarar"
Video = tuple[Tensor, Tensor, RunReport]  # frames, latents, report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What is wired into the sampler."""

    drafter: ModelPatcher
    target: ModelPatcher
    vae: comfy.sd.VAE
    scorer: HostScorer

    @property
    def patchers(self):
        """Return everything that ComfyUI keeps, by what it is."""
        return {
            "drafter": self.drafter,
            "target": self.target,
            "vae": self.vae.patcher,
            "scorer": self.scorer.patcher,
        }


def load_parts(folder, *, seed=0):
    """Load random models of random weights, each from a file of its own."""
    for role in ("drafter", "target"):
        (folder / role).mkdir(parents=True, exist_ok=True)
    drafter = load_model(folder / "drafter", random_weights(2 * seed + 1))
    target = load_model(folder / "target", random_weights(2 * seed + 2))
    reward = write_random_set(folder / "set", seed).reward
    return Parts(
        drafter=attach_origin(drafter, preset=get_preset("self-forcing-1.3b")),
        target=attach_origin(target, preset=get_preset("krea-14b")),
        vae=load_vae(seed, shallow=True),
        scorer=load_host_scorer(reward, device="default", dtype="float32"),
    )


def scripted(letters):
    """Return a route and directions by letters: a plan, with scores or without, or directions if it is mixed."""
    mixed = set(letters) & set("ar") and set(letters) & set("dt")
    return (Route(), letters) if mixed else (Route(Custom(PlannedRouter(letters))), "")


def make_job(parts, *, script=ROUTE, prompt=0, size=(32, 32), kv_dtype="auto", **changes):
    """Return a nine-block job whose every part is used: drafts, scores, remakes, context, encodes."""
    embedding = torch.randn(1, 512, 32, generator=generator_of(prompt))
    route, directions = scripted(script)
    if "router" in changes:
        directions = ""
    elif directions and "blocks" in changes:
        directions = directions[: changes["blocks"]].ljust(changes["blocks"], ".")
    settings = {
        "router": RouterValue(route, parts.scorer),
        "directions": directions,
        "prompts": (PromptEntry(0, [[embedding, {}]], f"{TEXT} {prompt}"),),
        "width": size[0],
        "height": size[1],
        "blocks": len(script),
        "seed": 1,
        "execution": Execution(kv_dtype=kv_dtype),
        **changes,
    }
    asked = VideoRequest(**{name: settings.pop(name) for name in OF_REQUEST if name in settings})
    return Job(drafter=parts.drafter, target=parts.target, vae=parts.vae, request=asked, **settings)


def with_inputs(job, **changes):
    """Return a job with other inputs of the node."""
    asked = {name: changes.pop(name) for name in OF_REQUEST if name in changes}
    return replace(job, request=replace(job.request, **asked), **changes)


def video_of(job):
    """Run a job."""
    frames, latent, report, *_ = run_job(job)
    return frames, latent["samples"], report


class SamplerRun:
    """A run of the sampler. `locks`: blocks that are locked, as text."""

    def __init__(self, job, locks=""):
        self.frames, self.latent, self.report, self.live, self.sound = run_job(job, locks)
        self.latents = self.latent["samples"]

    def lock(self, blocks):
        """Return the lock of its first blocks, as text."""
        return f"{blocks}:{self.live.done['digests'][blocks - 1]}"


KEEP = 4
"""Blocks that the fixture `kept` locks."""


def find_lock(text):
    """Return the blocks that a lock of the first shot names."""
    (blocks,) = find_locks(text).values()
    return blocks


def starts(latents):
    """What a run may begin with, by the sampler's inputs."""
    return {
        "start_image": torch.rand(1, 32, 32, 3),
        "start": StartValue(torch.rand(9, 32, 32, 3), EXTEND, "", "IMAGE"),
        "continue_from": {"samples": latents[:, :, :4]},
    }


def same_video(one, other):
    """Whether frames and latents are equal bit for bit, and every block was decided alike."""
    routes = [[block.decision for block in video[2].blocks] for video in (one, other)]
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]) and routes[0] == routes[1]


# --- what must be as before ---------------------------------------------------------------------------------------


def state_of(parts):
    """Return all that a run could leave behind on the models: weights, hooks, attributes, options, patches."""
    state = {}
    for role, patcher in parts.patchers.items():
        state[f"{role}: patcher"] = _frozen(vars(patcher))
        for name, module in patcher.model.named_modules():
            state[f"{role}: {name}"] = (type(module), _frozen(vars(module)))
    return state


def changed(before, after):
    """Return the names of what is not as it was."""
    return sorted(name for name in {**before, **after} if before.get(name) != after.get(name))


def _frozen(value):
    """Return a value to compare later: containers by content, tensors by place and bits, others by identity."""
    if isinstance(value, Tensor):
        return id(value), value.data_ptr(), _bits(value)
    if isinstance(value, Mapping):
        return {key: _frozen(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, Set):
        return frozenset(map(_frozen, value))
    return value if isinstance(value, str | int | float | torch.dtype | torch.device) else id(value)


def _bits(tensor):
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(flat.cpu().numpy().tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a process holds on to. `objects`: instances of the pack's own classes."""

    tensors: int
    tensor_bytes: int
    objects: int
    loaded_models: int
    threads: int
    files: int


def held(*, collect=True):
    """Count, after what nobody refers to has been collected."""
    if collect:
        gc.collect()
    everything = gc.get_objects()
    # `isinstance` would ask objects that load themselves when they are asked.
    tensors = [thing for thing in everything if issubclass(type(thing), Tensor) and type(thing) is not FakeTensor]
    return Held(
        tensors=len(tensors),
        tensor_bytes=_storage_bytes(tensors),
        objects=sum(str(type(thing).__module__).startswith("sdvg_pack.") for thing in everything),
        loaded_models=len(comfy.model_management.current_loaded_models),
        threads=threading.active_count(),
        files=_open_files(),
    )


def _storage_bytes(tensors):
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.device.type != "meta"
    }
    return sum(storages.values())


def _open_files():
    """Return how many files and sockets are open; 0 where that cannot be seen."""
    here = Path("/proc/self/fd")
    return len(os.listdir(here)) if here.is_dir() else 0  # noqa: PTH208
