"""Our causal forward over a MODEL of ComfyUI, against ComfyUI's own causal forward, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.sample
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_clip import (
    BLOCKS,
    FRAMES,
    LORA_LAYERS,
    NOISE,
    SCHEDULE,
    SPANS,
    clip,
    lora_weights,
    native_clip,
    onto_device,
    over,
    text,
    with_lora,
)
from host_tiny import CONFIG, load_model, random_weights
from safetensors.torch import save_file
from sdvg_pack.nodes.host import model
from sdvg_pack.nodes.host.checks import check_model
from sdvg_pack.nodes.host.conditioning import read_embedding
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.checkpoint import find_lora, load_wan, open_wan
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.causal_wan.incremental import Incremental
from sdvg_pack.sdvg_core.causal_wan.modules import WanTree
from sdvg_pack.sdvg_core.engine.restyle import Restyle
from sdvg_pack.sdvg_core.engine.types import Span
from torch import Tensor

SEED = 11
pytestmark = pytest.mark.comfyui


def fp8(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: w.to(torch.float8_e4m3fn) if w.ndim == 2 else w for n, w in weights.items()}


def bf16(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: w.bfloat16() for n, w in weights.items()}


def same(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights


def scaled_fp8(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """fp8 with a scale for each weight, in the form that ComfyUI repackages models in."""
    out = dict(weights)
    for name, w in weights.items():
        if w.ndim == 2 and name.startswith("blocks."):
            scale = w.abs().max() / 448
            out[name] = (w / scale).to(torch.float8_e4m3fn)
            layer = name.removesuffix(".weight")
            out[f"{layer}.weight_scale"] = scale
            stated = b'{"format": "float8_e4m3fn"}'
            out[f"{layer}.comfy_quant"] = torch.tensor(list(stated), dtype=torch.uint8)
    return out


STORED = {"float32": same, "fp8": fp8, "scaled fp8": scaled_fp8, "bf16": bf16}


@pytest.mark.parametrize("stored", STORED)
def test_our_forward_over_a_plain_model_equals_comfyuis_causal_forward(stored: str, tmp_path: Path) -> None:
    weights = STORED[stored](random_weights())
    ours = clip(over(onto_device(load_model(tmp_path, weights))))
    native = native_clip(load_model(tmp_path, weights, causal=True))
    assert ours.std() > 0.1
    assert torch.equal(ours, native), (ours - native).abs().max()


def test_a_lora_between_loader_and_sampler_works_as_in_comfyuis_forward(tmp_path: Path) -> None:
    ours = clip(over(onto_device(with_lora(load_model(tmp_path)))))
    assert torch.equal(ours, native_clip(with_lora(load_model(tmp_path, causal=True))))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


@pytest.mark.parametrize("change", [lambda p: p, with_lora], ids=["plain", "lora"])
@pytest.mark.parametrize("stored", ["float32", "fp8"])
def test_a_partly_loaded_model_makes_what_a_loaded_one_makes(
    change: Callable[[ModelPatcher], ModelPatcher], stored: str, tmp_path: Path
) -> None:
    weights = STORED[stored](random_weights())
    whole = clip(over(onto_device(change(load_model(tmp_path, weights)))))
    patcher = change(load_model(tmp_path, weights))
    patcher.load(torch.device("cpu"), lowvram_model_memory=1)
    assert patcher.model.model_lowvram
    assert torch.equal(whole, clip(over(patcher)))


class HostNoise:
    """The noise of ComfyUI's sampler for causal models, and a clip that `skip` of our steps are left out for."""

    def __init__(self, source: Tensor, skip: int) -> None:
        self.source, self.skip = source, skip

    def draw(self, span: Span, slot: int) -> Tensor:
        if slot == self.skip:  # what the video begins with; later steps are seeded by block and step
            return NOISE.draw(span, slot)
        torch.manual_seed(SEED + 1000 * span.index + slot - self.skip - 1)
        return torch.randn(NOISE.draw(span, slot).shape)

    def restyle(self, span: Span) -> Restyle:
        return Restyle(self.source[:, :, span.start : span.stop], self.skip)

    def control(self, span: Span) -> tuple[()]:
        return ()


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_a_restyled_clip_is_what_comfyuis_sampler_makes_of_the_noised_latent(skip: int, tmp_path: Path) -> None:
    """Catches: another mix of clip and noise, another first step, latents that are not normalised."""
    from comfy_extras.nodes_ar_video import SamplerARVideo

    source = torch.randn(NOISE.draw(SPANS[0], 0).shape).repeat(1, 1, BLOCKS, 1, 1)
    ours = clip(over(onto_device(load_model(tmp_path))), noise=HostNoise(source, skip))
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
    chosen = {"context": Incremental(window=FRAMES * BLOCKS), "schedule": SCHEDULE, **options}
    return CausalWanGenerator(tree, name="model", ops=TorchOps(torch.float32), **chosen)


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


def test_a_prompt_shorter_than_512_rows_is_used_as_comfyui_uses_it(tmp_path: Path) -> None:
    """Catches padding it: rows of zeros are not nothing, for the text embedding has a bias."""
    short = read_embedding([[text(rows=12), {"pooled_output": None}]], CONFIG.text_dim)
    ours = clip(over(onto_device(load_model(tmp_path))), short)
    assert torch.equal(ours, native_clip(load_model(tmp_path, causal=True), text(rows=12)))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


def test_comfyuis_compile_node_has_no_effect_and_that_is_noted(tmp_path: Path) -> None:
    """It stands before the model's own forward, which is not called here."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    plain = clip(over(onto_device(load_model(tmp_path))))
    patcher, graphs = load_model(tmp_path).clone(), []
    set_torch_compile_wrapper(model=patcher, backend=lambda graph, _: graphs.append(1) or graph)
    assert torch.equal(clip(over(onto_device(patcher))), plain)
    assert graphs == []
    [note] = check_model(patcher, "drafter")
    assert note.startswith("the drafter carries a wrapper around the sampler's calls (compilation,")


def test_a_lora_on_the_command_line_is_the_hosts_to_rounding(tmp_path: Path) -> None:
    """Catches: another scale by alpha and rank, or a weight that ours leaves as it is."""
    patched = onto_device(with_lora(load_model(tmp_path)))
    save_file(lora_weights(), tmp_path / "lora.safetensors")
    path = tmp_path / "model.safetensors"
    lora = find_lora(str(tmp_path / "lora.safetensors"), open_wan(path))
    assert lora is not None
    merged = load_wan(path, dtype=torch.float32, loras=[lora]).tree.state_dict()
    theirs = patched.model.diffusion_model.state_dict()
    for name in lora.changes:
        torch.testing.assert_close(merged[name], theirs[name].float(), rtol=1e-5, atol=1e-6)
    assert len(lora.changes) == len(LORA_LAYERS)
