"""The nodes' models on a device that is no CUDA and has no float64, as Apple's and Intel's: shapes without numbers.

torch's `lazy` stands for it. An operation that meets float64 there fails, as does one on tensors of two devices.
"""

from types import SimpleNamespace

import comfy.model_management as mm
import pytest
import torch
from host_run import make_job, same_video, video_of
from host_tiny import BLOCKS, CONFIG, FRAMES, SIZE, clip, load_model, load_vae, over
from sdvg_pack.nodes.host import compiled
from sdvg_pack.nodes.host.model import attach_origin
from sdvg_pack.nodes.host.reuse import host_part_keys
from sdvg_pack.nodes.host.vae import ComfyCodec
from sdvg_pack.sdvg_core.devices import compiling
from sdvg_pack.sdvg_core.errors import BadInput
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.comfyui

DEVICE = torch.device("lazy", 0)
FREE = 1 << 40


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and leaf.device.type == DEVICE.type and leaf.dtype == torch.float64:
                raise TypeError(f"{func} has float64 on a device without it")
        return result


def move_to_device(module):
    """Give a module parameters and buffers of the same shapes on the device."""
    for inner in module.modules():
        for tensors in (inner._parameters, inner._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    empty = torch.empty(tensor.shape, device=DEVICE)
                    tensors[name] = torch.nn.Parameter(empty, requires_grad=False)


@pytest.fixture
def without_float64(monkeypatch):
    known = mm.supports_fp64
    monkeypatch.setattr(mm, "supports_fp64", lambda device=None: device.type != DEVICE.type and known(device))
    monkeypatch.setattr(mm, "get_free_memory", lambda device=None, both=False: (FREE, FREE) if both else FREE)
    monkeypatch.setattr(compiling, "WITHOUT_FLOAT64", (DEVICE.type,))
    return FakeTensorMode()


def test_double_on_the_device_is_seen(without_float64):
    """Catches: a watch that sees no float64."""
    with without_float64, NoFloat64(), pytest.raises(TypeError, match="float64"):
        torch.empty(2, device=DEVICE).double()


def test_model_makes_its_blocks_without_float64(tmp_path, without_float64):
    """Catches: an angle, a time embedding or a clean estimate in float64 on a Mac's GPU."""
    patcher = load_model(tmp_path)
    patcher.load_device = DEVICE
    with without_float64, NoFloat64():
        move_to_device(patcher.model.diffusion_model)
        latents = clip(over(patcher))
    assert latents.shape == (1, CONFIG.out_dim, FRAMES * BLOCKS, *SIZE)
    assert latents.device == DEVICE


def test_vae_decodes_and_encodes_without_float64(without_float64):
    """Catches: a mean or a tensor of the codec's that is made on the CPU."""
    vae = load_vae()
    inside = {"first_stage_model": vae.first_stage_model, "vae_dtype": vae.vae_dtype, "device": DEVICE}
    ways = {"process_input": vae.process_input, "process_output": vae.process_output}
    with without_float64, NoFloat64():
        move_to_device(vae.first_stage_model)
        codec = ComfyCodec(SimpleNamespace(**inside, **ways))
        first, state = codec.decode(torch.empty(1, 16, 3, 4, 4, device=DEVICE))
        second, _ = codec.decode(torch.empty(1, 16, 3, 4, 4, device=DEVICE), state)
        latents = codec.encode(first)
    assert first.shape[1] == 9
    assert second.shape[1] == 12
    assert latents.shape == (1, 16, 3, 4, 4)
    assert first.device == second.device == latents.device == DEVICE


# --- `compile` on the loaders


SENTENCE = "The target runs compiled, so it rounds differently from an uncompiled one."


@pytest.fixture
def compiled_parts(parts):
    """Parts whose target's loader was asked to compile."""
    attach_origin(parts.target, compile="default")
    yield parts
    attach_origin(parts.target, compile="off")


@pytest.fixture
def compilations(monkeypatch):
    """Run what the compiler reads without making code of it; return what was compiled."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "INDUCTOR", backend)
    monkeypatch.setattr(compiled, "check_compile", lambda *_: None)
    monkeypatch.setattr(compiled, "_KEPT", type(compiled._KEPT)())
    return graphs


def notes_on_compiling(video):
    return [note for note in video[2].notes if "compiled" in note]


def test_compiled_layers_make_the_same_video(compiled_parts, compilations, empty_store):
    """To the bit, as nothing is rounded anew. Catches stages that are compiled for each run, or not used at all."""
    attach_origin(compiled_parts.target, compile="off")
    plain = video_of(make_job(compiled_parts))
    assert compilations == []
    assert notes_on_compiling(plain) == []
    attach_origin(compiled_parts.target, compile="default")
    video = video_of(make_job(compiled_parts))
    assert same_video(video, plain)
    assert notes_on_compiling(video) == [SENTENCE]
    count = len(compilations)
    assert count >= 3
    assert same_video(video_of(make_job(compiled_parts)), plain)
    assert len(compilations) == count, "the second run uses what the first compiled"


def test_compiled_layers_have_other_keys(compiled_parts):
    """Catches: blocks of an uncompiled run, used by a compiled one."""
    job = make_job(compiled_parts)
    plain = host_part_keys(job)
    compiled = host_part_keys(job, {"target"})
    assert plain.target != compiled.target
    assert plain.drafter == compiled.drafter


def test_partly_loaded_target_runs_uncompiled(compiled_parts, compilations, monkeypatch):
    """Catches: a graph that is compiled again for every weight that is copied over."""
    target = compiled_parts.target
    monkeypatch.setattr(target, "loaded_size", lambda: target.model_size() - 1)
    [note] = notes_on_compiling(video_of(make_job(compiled_parts)))
    assert "uncompiled: part of its weights is copied" in note
    assert compilations == []


def test_target_under_dynamic_vram_runs_uncompiled(compiled_parts, compilations, monkeypatch):
    """Which fetches weights inside the layers."""
    monkeypatch.setattr(compiled_parts.target, "is_dynamic", lambda: True)
    monkeypatch.setattr(
        compiled_parts.target, "_vbar_get", lambda: None, raising=False
    )  # ComfyUI's, without a card
    [note] = notes_on_compiling(video_of(make_job(compiled_parts)))
    assert "--disable-dynamic-vram" in note
    assert compilations == []


def test_layers_that_fail_to_compile_run_uncompiled(compiled_parts, compilations, monkeypatch):
    """As a host's layer that calls a library outside torch."""
    layer = compiled_parts.target.model.diffusion_model.blocks[1].ffn[0]
    inner = layer.forward

    @torch.compiler.disable
    def outside(x):
        return inner(x)

    monkeypatch.setattr(layer, "forward", outside)
    [note] = notes_on_compiling(video_of(make_job(compiled_parts)))
    assert "uncompiled: the compiler cannot follow" in note
    assert compilations == []


def test_without_a_compiler_the_run_is_refused(compiled_parts, monkeypatch):
    """Catches: a trace of the compiler's, without the loader that asked for it."""

    def missing(*_, **__):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiling, "compiled", missing)
    with pytest.raises(BadInput, match=r"compiling failed .*no compiler here.*set compile to off on the loader"):
        video_of(make_job(compiled_parts))
