"""The attention kernels: what each is handed, which one is taken, and how one that cannot be had is refused."""

from __future__ import annotations

import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import sdvg_core.loading.headers as checking
from sdvg_core.causal_wan.attention import NEEDS, SDPA, AttentionBackend, TorchOps, choose_attention, why_not
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import History, plan_spans
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_models
from sdvg_core.settings.execution import AttentionChoice, Execution
from sdvg_core.settings.load import LoadOptions, ModelOptions
from tests.support.tiny import PROMPT, EchoCodec, make_generator, make_noise, random_tree

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
TURING = (7, 5)
AMPERE = (8, 0)
HOPPER = (9, 0)
HEADS = 3
WIDTH = 16


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that the CUDA device is one of this compute capability; None for the CPU."""

    def pretend(capability: tuple[int, int] | None) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        return CUDA if capability else CPU

    return pretend


@pytest.fixture
def install(monkeypatch):
    """Put a stand-in for a package where it would be imported from."""

    def put(name: str, **functions) -> None:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)

    return put


def tensors(dtype=torch.bfloat16):
    """Queries of 6 tokens, keys and values of 10."""
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, tokens, HEADS, WIDTH, generator=g).to(dtype) for tokens in (6, 10, 10))


def reference(q, k, v, scale=None):
    """Attention of `b n l d` as it is defined, in double precision."""
    q, k, v = (x.double() for x in (q, k, v))
    return F.softmax(q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1])), dim=-1) @ v


def expected(q, k, v):
    return reference(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


class StandIn:
    """A package's kernel: `b l n d` unless a layout is stated, half precision alone, scale and mask as stated."""

    def __init__(self) -> None:
        self.calls = []

    def attend(self, q, k, v, scale, causal):
        self.calls.append((tuple(q.shape), tuple(k.shape)))
        assert {x.dtype for x in (q, k, v)} <= {torch.float16, torch.bfloat16}
        assert q.shape[2:] == k.shape[2:] == v.shape[2:], "tokens before heads"
        assert not causal
        swapped = (x.transpose(1, 2) for x in (q, k, v))
        return reference(*swapped, scale).transpose(1, 2).to(q.dtype)

    def flash_attn_func(self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
        assert (dropout_p, window_size) == (0.0, (-1, -1))
        return self.attend(q, k, v, softmax_scale, causal)

    def sageattn(self, q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False):
        if tensor_layout == "HND":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return self.attend(q, k, v, sm_scale, is_causal)


def test_sdpa_equals_torchs_own_attention():
    q, k, v = tensors(torch.float32)
    swapped = (x.transpose(1, 2) for x in (q, k, v))
    assert torch.equal(SDPA.kernel(q, k, v), F.scaled_dot_product_attention(*swapped).transpose(1, 2))
    torch.testing.assert_close(SDPA.kernel(q, k, v).double(), expected(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, module, function", [("flash", "flash_attn", "flash_attn_func"), ("sage", "sageattention", "sageattn")]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_packages_get_tokens_before_heads(name, module, function, dtype, gpu, install):
    """Catches: heads before tokens, SageAttention's default layout, another scale, a mask."""
    package = StandIn()
    install(module, **{function: getattr(package, function)})
    backend = choose_attention(name, device=gpu(AMPERE), dtype=dtype, head_dim=WIDTH)
    q, k, v = tensors(dtype)
    out = backend.kernel(q, k, v)
    assert (backend.name, out.dtype, out.shape) == (name, dtype, q.shape)
    assert package.calls == [((1, 6, HEADS, WIDTH), (1, 10, HEADS, WIDTH))]
    torch.testing.assert_close(out.double(), expected(q, k, v), rtol=0.02, atol=0.01)


class CudnnStandIn(TorchDispatchMode):
    """Answers for cuDNN's kernel, which takes heads before tokens; all other operations are as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten._scaled_dot_product_cudnn_attention.default:
            return func(*args, **(kwargs or {}))
        q, k, v, bias, statistics, *rest = args
        assert (bias, statistics, rest, kwargs or {}) == (None, False, [], {})
        self.calls.append((tuple(q.shape), switches()))
        empty = torch.empty(0)
        return reference(q, k, v).to(q.dtype), empty, empty, empty, 0, 0, empty, empty, empty


def switches():
    cuda = torch.backends.cuda
    return [getattr(cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math", "cudnn")]


def test_cudnn_kernel_flips_no_global_switch(gpu):
    """Catches: torch's context manager, under which the VAE, in another thread, finds no kernel that it can use."""
    backend = choose_attention("cudnn", device=gpu(AMPERE), dtype=torch.bfloat16, head_dim=WIDTH)
    q, k, v = tensors()
    before = switches()
    with CudnnStandIn() as cudnn:
        out = backend.kernel(q, k, v)
    assert cudnn.calls == [((1, HEADS, 6, WIDTH), before)]
    torch.testing.assert_close(out.double(), expected(q, k, v), rtol=0.02, atol=0.01)


def test_torch_still_has_the_cudnn_kernel():
    """With the arguments that it is called with. Catches: a private operation of torch that changed."""
    q, k, v = (torch.empty(x.shape, dtype=x.dtype, device="meta") for x in tensors())
    assert NEEDS["cudnn"].kernel(None)(q, k, v).shape == q.shape


# --- which one


@pytest.mark.parametrize(
    "capability, dtype, head_dim, name",
    [
        (HOPPER, torch.bfloat16, 128, "cudnn"),
        ((12, 0), torch.float16, 128, "cudnn"),
        (None, torch.float32, 128, "sdpa"),
        (HOPPER, torch.float32, 128, "sdpa"),
        (HOPPER, torch.bfloat16, 12, "sdpa"),
        (AMPERE, torch.bfloat16, 128, "sdpa"),
        (TURING, torch.float16, 128, "sdpa"),
    ],
)
def test_auto_is_exact_whatever_is_installed(capability, dtype, head_dim, name, gpu, install):
    """Catches: SageAttention, which rounds, chosen by anyone but by name."""
    for module in ("flash_attn", "sageattention"):
        install(module)
    backend = choose_attention("auto", device=gpu(capability), dtype=dtype, head_dim=head_dim)
    assert (backend.name, backend.note) == (name, "")


def test_amd_gpus_are_not_taken_for_nvidias(gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    model = {"device": gpu(HOPPER), "dtype": torch.bfloat16, "head_dim": 128}
    assert choose_attention("auto", **model).name == "sdpa"
    with pytest.raises(BadInput, match="NVIDIA"):
        choose_attention("cudnn", **model)


def test_only_sageattention_is_noted_as_inexact(gpu, install):
    install("sageattention", sageattn=print)
    install("flash_attn", flash_attn_func=None)
    model = {"device": gpu(HOPPER), "dtype": torch.bfloat16, "head_dim": 128}
    noted = [name for name in get_args(AttentionChoice) if choose_attention(name, **model).note]
    assert noted == ["sage"]


# --- refusals


@pytest.mark.parametrize("name", ["cudnn", "flash", "sage"])
@pytest.mark.parametrize(
    "capability, dtype, head_dim, parts",
    [
        (TURING, torch.float16, 128, ["Ampere", "cuda is none"]),
        (AMPERE, torch.float32, 128, ["cannot run in float32", "--dtype bfloat16"]),
        (AMPERE, torch.bfloat16, 320, ["not 320"]),
        (None, torch.bfloat16, 128, ["Ampere", "cpu is none"]),
    ],
)
def test_kernel_that_cannot_work_is_refused(name, capability, dtype, head_dim, parts, gpu, install):
    install("flash_attn")
    install("sageattention")
    with pytest.raises(BadInput) as refusal:
        choose_attention(name, device=gpu(capability), dtype=dtype, head_dim=head_dim)
    for part in (*parts, name, "--attention auto"):
        assert part in str(refusal.value)


@pytest.mark.parametrize("name, package", [("flash", "flash-attn"), ("sage", "sageattention")])
def test_missing_package_is_named(name, package, gpu, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(BadInput, match=f"needs {package}; pip install {package}, or use"):
        choose_attention(name, device=gpu(AMPERE), dtype=torch.bfloat16, head_dim=128)


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """Put a package where it would be imported from, which fails when it is."""
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: of another torch')\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_package_is_imported_only_when_chosen(gpu, broken_package):
    model = {"device": gpu(AMPERE), "dtype": torch.bfloat16, "head_dim": 128}
    assert why_not("flash", **model) == ""
    assert choose_attention("auto", **model).name == "sdpa"


def test_broken_package_is_named(gpu, broken_package):
    with pytest.raises(BadInput, match=r"flash_attn cannot be imported \(undefined symbol: of another"):
        choose_attention("flash", device=gpu(AMPERE), dtype=torch.bfloat16, head_dim=128)


# --- in a run


def test_every_attention_uses_the_chosen_kernel():
    """Catches: a choice that is reported and not used."""
    calls = []

    def kernel(q, k, v):
        calls.append(q.shape)
        return SDPA.kernel(q, k, v)

    tree = random_tree(1)
    ops = TorchOps(torch.float32, AttentionBackend("counted", kernel))
    chosen = make_generator(1, EchoCodec(), "incremental", tree=tree, ops=ops)
    plain = make_generator(1, EchoCodec(), "incremental", tree=tree)
    call = BlockCall(History(horizon=3), plan_spans(1, 3)[0], make_noise(), PROMPT)
    assert torch.equal(chosen.generate(call).latents, plain.generate(call).latents)
    assert len(calls) == 2 * 2 * 2, "two steps, two layers, to the block and to the prompt"


PRESETS = {"drafter": ModelOptions(preset="self-forcing-1.3b"), "target": ModelOptions(preset="krea-14b")}


def test_exact_kernel_is_named_without_note(files):
    options = LoadOptions(**PRESETS)
    models = load_models(files, options, check_models(files, options))
    assert [models.settings[role]["attention"] for role in PRESETS] == ["sdpa", "sdpa"]
    assert models.notes == ()


def test_rounding_kernel_of_both_models_is_noted_once(files, monkeypatch):
    sage = AttentionBackend("sage", SDPA.kernel, "It rounds.")
    monkeypatch.setattr(checking, "choose_attention", lambda *_, **__: sage)
    options = LoadOptions(**PRESETS, execution=Execution(attention="sage"))
    models = load_models(files, options, check_models(files, options))
    assert [models.settings[role]["attention"] for role in PRESETS] == ["sage", "sage"]
    assert models.notes == ("It rounds.",)
    assert models.build().target._model.wan.ops.backend is sage
