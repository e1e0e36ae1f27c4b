"""The nodes' models on a device that is no CUDA and has no float64, as Apple's and Intel's: shapes without numbers.

torch's `lazy` stands for it. An operation that meets float64 there fails, as does one on tensors of two devices.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.model_management as mm
import pytest
import torch
from host_clip import BLOCKS, FRAMES, clip, over
from host_tiny import CONFIG, SIZE, load_model, load_vae
from sdvg_pack.nodes.host.vae import ComfyCodec
from sdvg_pack.sdvg_core.devices import execution
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.comfyui

DEVICE, FREE = torch.device("lazy", 0), 1 << 40


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, kwargs, found)):
            if isinstance(one, Tensor) and one.device.type == DEVICE.type and one.dtype == torch.float64:
                raise TypeError(f"{func} has float64 on a device without it")
        return found


def put_there(module: torch.nn.Module) -> None:
    """Give a module parameters and buffers of the same shapes on the device."""
    for one in module.modules():
        for kept in (one._parameters, one._buffers):
            for name, tensor in kept.items():
                if tensor is not None:
                    kept[name] = torch.nn.Parameter(torch.empty(tensor.shape, device=DEVICE), requires_grad=False)


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> FakeTensorMode:
    known = mm.supports_fp64
    monkeypatch.setattr(mm, "supports_fp64", lambda device=None: device.type != DEVICE.type and known(device))
    monkeypatch.setattr(mm, "get_free_memory", lambda device=None, both=False: (FREE, FREE) if both else FREE)
    monkeypatch.setattr(execution, "WITHOUT_FLOAT64", (DEVICE.type,))
    return FakeTensorMode()


def test_a_model_makes_its_blocks_there(tmp_path: Path, without_float64: FakeTensorMode) -> None:
    """Catches: an angle, a time embedding or a clean estimate in float64 on a Mac's GPU."""
    patcher = load_model(tmp_path)
    patcher.load_device = DEVICE
    with without_float64, NoFloat64():
        put_there(patcher.model.diffusion_model)
        made = clip(over(patcher))
        assert (made.shape, made.device) == ((1, CONFIG.out_dim, FRAMES * BLOCKS, *SIZE), DEVICE)
        with pytest.raises(TypeError, match="float64"):
            torch.empty(2, device=DEVICE).double()


def test_a_vae_decodes_and_encodes_there(without_float64: FakeTensorMode) -> None:
    vae = load_vae()
    inside = {"first_stage_model": vae.first_stage_model, "vae_dtype": vae.vae_dtype, "device": DEVICE}
    ways = {"process_input": vae.process_input, "process_output": vae.process_output}
    with without_float64, NoFloat64():
        put_there(vae.first_stage_model)
        codec = ComfyCodec(SimpleNamespace(**inside, **ways))
        frames, state = codec.decode(torch.empty(1, 16, 3, 4, 4, device=DEVICE))
        more, _ = codec.decode(torch.empty(1, 16, 3, 4, 4, device=DEVICE), state)
        latents = codec.encode(frames)
    assert (frames.shape[1], more.shape[1], latents.shape) == (9, 12, (1, 16, 3, 4, 4))
    assert frames.device == more.device == latents.device == DEVICE
