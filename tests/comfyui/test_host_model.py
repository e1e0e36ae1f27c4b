"""Our causal forward over a MODEL of ComfyUI, against ComfyUI's own causal forward, bit for bit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import comfy.sample
import comfy.sd
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_clip import (
    BLOCKS,
    FRAMES,
    NOISE,
    SCHEDULE,
    SPANS,
    clip,
    native_clip,
    onto_device,
    over,
    text,
    with_lora,
)
from host_run import load_parts, make_job, same_video, video_of
from host_tiny import CONFIG, STATED, load_model, random_weights
from sdvg_pack.nodes.host import model
from sdvg_pack.nodes.host.conditioning import read_embedding
from sdvg_pack.nodes.host.model import attach_origin, check_model
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.context import Incremental
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator, Wan
from sdvg_pack.sdvg_core.causal_wan.modules import WanTree
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.engine.inputs import InputClip, Strength
from sdvg_pack.sdvg_core.engine.types import Span
from thinned import in_turn
from torch import Tensor

SEED = 11
pytestmark = pytest.mark.comfyui


def fp8(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: w.to(torch.float8_e4m3fn) if w.ndim == 2 else w for n, w in weights.items()}


def bf16(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: w.bfloat16() for n, w in weights.items()}


def scaled(name: str, dtype: torch.dtype, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Quantised with a scale for each weight, in the form that ComfyUI repackages models in."""
    out, most = dict(weights), 127 if dtype == torch.int8 else 448
    for key, w in weights.items():
        if w.ndim == 2 and key.startswith("blocks."):
            scale = w.abs().max() / most
            out[key] = (w / scale).round().to(dtype) if dtype == torch.int8 else (w / scale).to(dtype)
            layer = key.removesuffix(".weight")
            out[f"{layer}.weight_scale"] = scale
            stated = f'{{"format": "{name}"}}'.encode()
            out[f"{layer}.comfy_quant"] = torch.tensor(list(stated), dtype=torch.uint8)
    return out


scaled_fp8 = partial(scaled, "float8_e4m3fn", torch.float8_e4m3fn)
int8 = partial(scaled, "int8_tensorwise", torch.int8)
STORED = {"float32": dict, "fp8": fp8, "scaled fp8": scaled_fp8, "int8": int8, "bf16": bf16}


@pytest.mark.parametrize("stored", STORED)
def test_our_forward_over_a_plain_model_equals_comfyuis_causal_forward(stored: str, tmp_path: Path) -> None:
    weights = STORED[stored](random_weights())
    ours = clip(over(onto_device(load_model(tmp_path, weights))))
    native = native_clip(load_model(tmp_path, weights, causal=True))
    assert ours.std() > 0.1
    assert torch.equal(ours, native), (ours - native).abs().max()


class KernelOrder:
    """Stands for torch on a GPU, and for ComfyUI, which asks around every attention for another kernel.

    torch states its own order in a process's first attention, over what is asked for around that call. The kernels
    differ by a rounding.
    """

    def __init__(self) -> None:
        self.stated, self.asked, self.attend = False, False, torch.nn.functional.scaled_dot_product_attention

    def of_torch(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        overridden, self.stated = self.asked and not self.stated, True
        out = self.attend(q, k, v, **options)
        return out * (1 + 2**-10) if overridden else out

    def of_host(self, q: Tensor, k: Tensor, v: Tensor, heads: int, **options: Any) -> Tensor:
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        self.asked = True
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        self.asked = False
        return out.transpose(1, 2).flatten(2)


def test_the_first_run_of_a_process_makes_what_every_later_one_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a GPU where torch and ComfyUI prefer different attention kernels."""
    order = KernelOrder()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", order.of_torch)
    monkeypatch.setattr(model, "optimized_attention", order.of_host)
    job = make_job(load_parts(tmp_path), script="raar")
    first, later = (video_of(job) for _ in range(2))
    assert same_video(first, later), (first[1] - later[1]).norm() / later[1].norm()


def test_a_lora_between_loader_and_sampler_works_as_in_comfyuis_forward(tmp_path: Path) -> None:
    ours = clip(over(onto_device(with_lora(load_model(tmp_path)))))
    assert torch.equal(ours, native_clip(with_lora(load_model(tmp_path, causal=True))))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


@in_turn("stored, share", [*STORED, "float32 with a LoRA", "fp8 with a LoRA"], [0, 0.5, 0.9])
def test_a_partly_loaded_model_makes_what_a_loaded_one_makes(stored: str, share: float, tmp_path: Path) -> None:
    """But for a LoRA on scaled weights: ComfyUI rounds what it changes only where the weights are loaded."""
    stored, _, lora = stored.partition(" with ")
    change = with_lora if lora else lambda patcher: patcher
    weights = STORED[stored](random_weights())
    whole = clip(over(onto_device(change(load_model(tmp_path, weights)))))
    patcher = change(load_model(tmp_path, weights))
    patcher.load(torch.device("cpu"), lowvram_model_memory=1 + int(share * patcher.model_size()))
    assert patcher.model.model_lowvram
    assert bool(patcher.loaded_size()) == bool(share)
    assert torch.equal(whole, clip(over(patcher)))


class HostNoise:
    """The noise of ComfyUI's sampler for causal models, which leaves out `skip` of our steps."""

    def __init__(self, skip: int) -> None:
        self.skip = skip

    def draw(self, span: Span, slot: int) -> Tensor:
        if slot == self.skip:  # what the video begins with; later steps are seeded by block and step
            return NOISE.draw(span, slot)
        torch.manual_seed(SEED + 1000 * span.index + slot - self.skip - 1)
        return torch.randn(NOISE.draw(span, slot).shape)


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_a_restyled_clip_is_what_comfyuis_sampler_makes_of_the_noised_latent(skip: int, tmp_path: Path) -> None:
    """Catches: another mix of clip and noise, another first step, latents that are not normalised."""
    from comfy_extras.nodes_ar_video import SamplerARVideo

    source = torch.randn(NOISE.draw(SPANS[0], 0).shape).repeat(1, 1, BLOCKS, 1, 1)
    restyled = InputClip(source, 0, (Strength(skip),) * BLOCKS)
    ours = clip(over(onto_device(load_model(tmp_path))), noise=HostNoise(skip), restyle=restyled)
    causal = load_model(tmp_path, causal=True)
    theirs = comfy.sample.sample_custom(
        causal,
        torch.cat([NOISE.draw(span, skip) for span in SPANS], dim=2),
        1.0,
        SamplerARVideo.execute(FRAMES).args[0],
        torch.tensor([*(step.sigma for step in SCHEDULE[skip:]), 0.0]),
        [[text(), {}]],
        [[text(), {}]],
        causal.model.process_latent_out(source),
        disable_pbar=True,
        seed=SEED,
    )
    torch.testing.assert_close(causal.model.process_latent_in(theirs), ours, rtol=0, atol=1e-5)


def standalone(tree: torch.nn.Module, **options: Any) -> CausalWanGenerator:
    """A generator as the command line has it."""
    cpu, preset = torch.device("cpu"), get_preset("custom")
    wan = Wan(tree=tree, ops=TorchOps(torch.float32), preset=preset, device=cpu, **options)
    return CausalWanGenerator(wan, name="model", context=Incremental(window=FRAMES * BLOCKS))


def our_tree(weights: dict[str, Tensor]) -> WanTree:
    tree = WanTree(CONFIG)
    tree.load_state_dict(weights)
    return tree.requires_grad_(False).eval()


def test_under_the_same_operations_comfyuis_modules_make_what_ours_make_also_with_keys_in_fp8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = random_weights()
    patcher = onto_device(load_model(tmp_path, weights))
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    whole, near = clip(over(patcher)), clip(over(patcher, kv_fp8=True))
    assert torch.equal(whole, clip(standalone(our_tree(weights))))
    assert torch.equal(near, clip(standalone(our_tree(weights), kv_fp8=True)))
    assert 1e-4 < (near - whole).norm() / whole.norm() < 0.3


def test_an_attention_override_of_the_model_is_used(tmp_path: Path) -> None:
    patcher, calls = onto_device(load_model(tmp_path)), []

    def override(attention: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        calls.append(kwargs["heads"])
        return attention(*args, **kwargs)

    plain = clip(over(patcher))
    patched = patcher.clone()
    patched.model_options["transformer_options"]["optimized_attention_override"] = override
    assert torch.equal(clip(over(patched)), plain)
    denoising = BLOCKS * len(SCHEDULE) * 2 * CONFIG.num_layers
    context = (BLOCKS - 1) * 2 * (CONFIG.num_layers - 1)
    assert calls == [CONFIG.num_heads] * (denoising + context)
    assert check_model(patched, "drafter") == ()


def test_a_kernel_that_the_file_states_for_a_module_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in newer versions of ComfyUI, whose attention modules carry it."""
    patcher, stated, plain = onto_device(load_model(tmp_path)), [], model.optimized_attention

    def attention(*args: Tensor, preferred_attention: Any = None, **more: Any) -> Tensor:
        stated.append(preferred_attention)
        return plain(*args, **more)

    monkeypatch.setattr(model, "optimized_attention", attention)
    clip(over(patcher))
    assert set(stated) == {None}
    stated.clear()
    for number, block in enumerate(patcher.model.diffusion_model.blocks):
        block.self_attn.comfy_attention, block.cross_attn.comfy_attention = f"self {number}", f"cross {number}"
    clip(over(patcher))
    layers = [f"{kind} {number}" for number in range(CONFIG.num_layers) for kind in ("self", "cross")]
    assert stated[: len(layers)] == layers


def test_a_prompt_shorter_than_512_rows_is_used_as_comfyui_uses_it(tmp_path: Path) -> None:
    """Catches padding it: rows of zeros are not nothing, for the text embedding has a bias."""
    short = read_embedding([[text(rows=12), {"pooled_output": None}]], CONFIG.text_dim)
    ours = clip(over(onto_device(load_model(tmp_path))), short)
    assert torch.equal(ours, native_clip(load_model(tmp_path, causal=True), text(rows=12)))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


@cache
def gguf_pack() -> Any:
    """Load ComfyUI-GGUF, of a checkout that lies anywhere, as ComfyUI does."""
    root = Path(os.environ["COMFYUI_GGUF"])
    spec = spec_from_file_location("gguf_pack", root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["gguf_pack"] = found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.exhaustive
@pytest.mark.skipif("COMFYUI_GGUF" not in os.environ, reason="COMFYUI_GGUF names no checkout of ComfyUI-GGUF")
@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q4_0", "BF16"])
def test_a_gguf_file_works_as_in_comfyuis_forward_also_partly_loaded_and_with_a_lora(
    kind: str, tmp_path: Path
) -> None:
    gguf, path = pytest.importorskip("gguf"), tmp_path / "model.gguf"
    writer, kinds = gguf.GGUFWriter(path, "wan"), gguf.GGMLQuantizationType
    for name, weight in random_weights().items():
        stored = kinds[kind if name.startswith("blocks.") and weight.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = gguf_pack().nodes

    def load(**stated: bool) -> ModelPatcher:
        """Load the file as Unet Loader (GGUF) does, and tell what a tiny model's shapes do not."""
        model = comfy.sd.load_diffusion_model_state_dict(
            theirs.gguf_sd_loader(str(path)),
            model_options={"custom_operations": theirs.GGMLOps()},
            metadata={"config": json.dumps({"transformer": {**STATED, **stated}})},
        )
        return theirs.GGUFModelPatcher.clone(model)

    for change in (lambda patcher: patcher, with_lora):
        patcher = change(load())
        assert check_model(patcher, "target") == ()
        ours = clip(over(onto_device(patcher)))
        assert torch.equal(ours, native_clip(change(load(causal_ar=True))))
        partly = change(load())
        partly.load(torch.device("cpu"), lowvram_model_memory=partly.model_size() // 2)
        assert partly.model.model_lowvram
        assert torch.equal(ours, clip(over(partly)))
    assert 0 < (ours - clip(over(onto_device(with_lora(load_model(tmp_path)))))).norm() / ours.norm() < 1
    target = attach_origin(load(), preset=get_preset("krea-14b"))
    assert len(video_of(make_job(replace(load_parts(tmp_path), target=target), script="rar"))[0]) == 33
    assert target.model_size() == pytest.approx(path.stat().st_size, rel=0.05), "what the plan counts"
