"""The sampler node in ComfyUI with random models of the published sizes: seconds and memory, by the card's size.

    python -m lab.benchmarks.nodes CHECKOUT [cuda | cpu] [--dynamic | --compiled]

ComfyUI loads and places the models; the target is in fp8. A smaller card is pretended: the driver's answer on
memory, and the allocator's limit. `--dynamic`: under ComfyUI's dynamic VRAM, its default on NVIDIA, in a process of
its own; there the rest of the card is really taken away, as the host asks the driver itself. `--compiled`: by
compiled layers, on the whole card. On a CPU: tiny models, nothing pretended. Prints a line of JSON a video: seconds
by block, peaks, what the run says of memory, and whether the bits are those of the first video.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import logging
import math
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = 3
SEED = 5
CARDS = (24, 16, 12)
"""GB (1e9 bytes) of the cards that are pretended. The last is too small, and must be refused before loading."""


def main() -> int:
    """Make the videos of one kind of memory management."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="of ComfyUI")
    parser.add_argument("device", nargs="?", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dynamic", action="store_true", help="under dynamic VRAM")
    parser.add_argument("--compiled", action="store_true", help="by compiled layers")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    start_host(options.checkout, gpu=gpu, dynamic=options.dynamic and gpu)
    trial = Trial(gpu=gpu)
    trial.video("whole card")
    trial.video("whole card, again")
    if options.compiled:
        trial.compile()
        trial.video("compiled")
        trial.video("compiled, again")
        return 0
    if options.dynamic:
        with taken_away(CARDS[0] * 10**9) if gpu else nullcontext():
            trial.video(f"{CARDS[0]} GB")
            trial.video(f"{CARDS[0]} GB, again")
        return 0
    for gb in CARDS:
        with pretended(gb * 10**9) if gpu else nullcontext():
            trial.video(f"{gb} GB")
    return 0


# --- ComfyUI ------------------------------------------------------------------------------------------------------


def start_host(checkout: Path, *, gpu: bool, dynamic: bool) -> None:
    """Import ComfyUI in the order of its own `main.py`, and the pack as ComfyUI loads it."""
    sys.path[:] = [str(checkout.resolve()), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    sys.argv = ["comfy", *([] if gpu else ["--cpu"])]
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    import comfy.options

    comfy.options.enable_args_parsing()
    if dynamic:
        import comfy_aimdo.control  # before torch, whose allocator it takes over
        import cuda_malloc  # noqa: F401  chooses it

        comfy_aimdo.control.init()
    tests = load_module("host_start", ROOT / "tests" / "comfyui" / "conftest.py")
    tests.define_missing_ops()
    import comfy.memory_management
    import comfy.model_management
    import comfy.model_patcher
    import comfy.sd
    import utils.install_util  # noqa: F401  before ComfyUI's nodes.py puts another `utils` first in the path

    if dynamic:
        devices = [device.index for device in comfy.model_management.get_all_torch_devices()]
        if not comfy_aimdo.control.init_devices(devices):
            raise SystemExit("dynamic VRAM does not start on this machine")
        comfy.model_patcher.CoreModelPatcher = comfy.model_patcher.ModelPatcherDynamic
        comfy.memory_management.aimdo_enabled = True
    tests.load_pack()


def after_node() -> None:
    """What ComfyUI does after each node under dynamic VRAM."""
    import comfy.memory_management
    import comfy.model_management

    if comfy.memory_management.aimdo_enabled:
        import comfy_aimdo.model_vbar

        comfy.model_management.reset_cast_buffers()
        comfy_aimdo.model_vbar.vbars_reset_watermark_limits()


def load_module(name: str, path: Path) -> ModuleType:
    """Import a file under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def pretended(size: int) -> Iterator[None]:
    """A card of so many bytes: everything in use counts, the context too."""
    import comfy.model_management as mm
    import torch

    mm.unload_all_models()
    mm.soft_empty_cache()
    real = torch.cuda.mem_get_info
    free, total = real()
    beside = total - free - torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((size - beside) / total)

    def answer(*which: Any) -> tuple[int, int]:
        free, total = real(*which)
        return max(0, size - (total - free)), size

    torch.cuda.mem_get_info = answer  # type: ignore[assignment]  # of a narrower signature
    try:
        yield
    finally:
        torch.cuda.mem_get_info = real
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def taken_away(size: int) -> Iterator[None]:
    """Take all but so many bytes of the card from everybody."""
    import comfy.model_management as mm
    import torch

    mm.unload_all_models()
    mm.soft_empty_cache()
    torch.cuda.synchronize()
    total = torch.cuda.mem_get_info()[1]
    driver = ctypes.CDLL("libcuda.so.1")
    where = ctypes.c_uint64()
    if driver.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(total - size)):
        raise SystemExit("the rest of the card could not be taken")
    yield
    driver.cuMemFree_v2(where)


class Peak(threading.Thread):
    """The most bytes in use by the driver's answer, 50 times a second: the allocator does not see dynamic VRAM."""

    def __init__(self) -> None:
        import torch

        super().__init__(daemon=True)
        self._ask = torch.cuda.mem_get_info  # the real one, before a card is pretended
        self.bytes = 0

    def run(self) -> None:
        while True:
            free, total = self._ask()
            self.bytes = max(self.bytes, total - free)
            time.sleep(0.02)


# --- the videos ---------------------------------------------------------------------------------------------------


class Numbers:
    """Random weights: views of one block of numbers, each from another place, so that 28 GB take no time."""

    PLACES = 1 << 20

    def __init__(self, largest: int) -> None:
        import torch

        once = torch.randn((1 << 24) + 3, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
        self._block = once.repeat((largest + self.PLACES) // len(once) + 1)
        self._places = random.Random(0)

    def weight(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return the weight of that name: a gain of one, a bias of zero, or a matrix."""
        import torch

        if "gamma" in name or (len(shape) == 1 and "norm" in name and name.endswith("weight")):
            return torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) < 2:
            return torch.zeros(shape, dtype=torch.bfloat16)
        count = math.prod(shape)
        first = self._places.randrange(self.PLACES)
        values = self._block[first : first + count].view(shape)
        # A convolution's must keep lengths, or the picture is infinite.
        return values if len(shape) == 2 or shape[-1] > 2**10 else values * (50 / math.sqrt(count / shape[0]))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is made, and by how large models."""

    drafter: Any
    target: Any
    vae_base: int
    width: int
    height: int


def sizes_of(*, gpu: bool) -> Sizes:
    """Return the published sizes, or tiny ones for a CPU."""
    from sdvg_pack.sdvg_core.causal_wan.checkpoint import PUBLISHED_DRAFTER, PUBLISHED_TARGET
    from sdvg_pack.sdvg_core.causal_wan.config import WanConfig

    if gpu:
        return Sizes(PUBLISHED_DRAFTER.config, PUBLISHED_TARGET.config, 96, 832, 480)
    small = WanConfig(dim=256, ffn_dim=512, num_layers=3, num_heads=2)
    return Sizes(small, small, 8, 64, 48)


class Trial:
    """The models, and the videos they make."""

    def __init__(self, *, gpu: bool) -> None:
        import comfy.sd
        import torch
        from sdvg_pack.nodes.host.files import WEIGHT_DTYPES
        from sdvg_pack.nodes.host.model import attach_origin
        from sdvg_pack.sdvg_core.causal_wan.config import wan_shapes
        from sdvg_pack.sdvg_core.settings.context import get_preset

        self._sizes = sizes_of(gpu=gpu)
        self._first: Any = None
        self._peak = Peak() if gpu else None
        if self._peak:
            self._peak.start()
        shapes = {role: wan_shapes(getattr(self._sizes, role)) for role in ("drafter", "target")}
        numbers = Numbers(max(math.prod(shape) for of in shapes.values() for shape in of.values()))
        self._models = {}
        for role, dtype, preset in (
            ("drafter", "default", "self-forcing-1.3b"),
            ("target", "fp8_e4m3fn", "krea-14b"),
        ):
            began = time.monotonic()
            weights = {name: numbers.weight(name, tuple(shape)) for name, shape in shapes[role].items()}
            model = comfy.sd.load_diffusion_model_state_dict(weights, dict(WEIGHT_DTYPES[dtype]))
            self._models[role] = attach_origin(model, preset=get_preset(preset))
            say(f"{role} made", seconds=time.monotonic() - began)
        self._vae = comfy.sd.VAE(sd=self._vae_weights(numbers))
        text = torch.randn(1, 512, 4096, generator=torch.Generator().manual_seed(7))
        text[:, 40:] = 0
        self._conditioning = [[text, {}]]

    def _vae_weights(self, numbers: Numbers) -> dict[str, Any]:
        import torch
        from comfy.ldm.wan.vae import WanVAE

        with torch.device("meta"):
            empty = WanVAE(
                dim=self._sizes.vae_base,
                z_dim=16,
                dim_mult=[1, 2, 4, 4],
                num_res_blocks=2,
                attn_scales=[],
                temperal_downsample=[False, True, True],
            )
        return {name: numbers.weight(name, tuple(t.shape)) for name, t in empty.state_dict().items()}

    def compile(self) -> None:
        """Ask for compiled layers, as the loaders' input does."""
        from sdvg_pack.nodes.host.model import attach_origin

        for model in self._models.values():
            attach_origin(model, compile="default")

    def video(self, layout: str) -> None:
        """Make a video of the route *balanced*, and print what it took; an error counts as a result."""
        import torch

        began = time.monotonic()
        if self._peak:
            torch.cuda.reset_peak_memory_stats()
            self._peak.bytes = 0
        try:
            found = self._made()
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        if self._peak:
            found |= {
                "peak_allocated": torch.cuda.max_memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
                "peak_of_the_card": self._peak.bytes,
            }
        after_node()
        loaded = {role: [model.loaded_size(), model.model_size()] for role, model in self._models.items()}
        say(layout, seconds=time.monotonic() - began, **found, loaded_of=loaded)

    def _made(self) -> dict[str, Any]:
        import torch
        from sdvg_pack.nodes.host.job import Job
        from sdvg_pack.nodes.host.sockets import PromptEntry, RouterValue
        from sdvg_pack.nodes.run import run_job
        from sdvg_pack.sdvg_core.report.run_report import seconds_to_dict
        from sdvg_pack.sdvg_core.settings.request import VideoRequest
        from sdvg_pack.sdvg_core.settings.route import route_preset

        job = Job(
            **self._models,
            vae=self._vae,
            router=RouterValue(route_preset("balanced"), None),
            prompts=(PromptEntry(0, self._conditioning, "a red fox"),),
            request=VideoRequest(width=self._sizes.width, height=self._sizes.height, blocks=BLOCKS, seed=SEED),
        )
        with torch.inference_mode():
            frames, latent, report, *_ = run_job(job)
        video = (frames, latent["samples"])
        self._first = self._first or video
        return {
            "finite": all(bool(part.isfinite().all()) for part in video),
            "same_bits": all(map(torch.equal, video, self._first)),
            "off": float((video[1] - self._first[1]).norm() / self._first[1].norm()),
            "blocks": [{"by": block.author, "seconds": seconds_to_dict(block.seconds)} for block in report.blocks],
            "said": [note for note in report.notes if " GB" in note or "compiled" in note],
        }


def say(layout: str, **found: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps({"benchmark": "sdvg nodes", "layout": layout, **found}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
