"""The self-check: ComfyUI's own layer, control block and VAE against ours, and a host's changes that it catches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfyui_version
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor
from host_clip import with_lora
from host_run import Parts, changed, load_parts, make_job, state_of, video_of
from host_tiny import CONFIG, load_model, load_vae, random_weights
from sdvg_pack.nodes.host import self_check
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.model import CONTROL, attach_origin
from sdvg_pack.nodes.host.self_check import check_host
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.errors import BadInput
from test_host_control import job_of, load_vace, positive
from test_host_model import STORED
from thinned import in_turn
from torch import Tensor

pytestmark = pytest.mark.comfyui


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_CHECKED", type(self_check._CHECKED)())


def job_over(parts: Parts, patcher: ModelPatcher) -> Job:
    """A job of one block by a target."""
    target = attach_origin(patcher, preset=get_preset("krea-14b"))
    return make_job(replace(parts, target=target), script="r")


def refusal(job: Any) -> str:
    with pytest.raises(BadInput) as error:
        video_of(job)
    return str(error.value)


# --- what agrees


@in_turn("stored, share", [*STORED, "float32 with a LoRA"], [None, 0, 0.5])
def test_a_host_that_agrees_is_taken_whatever_the_weights_are_stored_in(
    stored: str, share: float | None, parts: Parts, tmp_path: Path
) -> None:
    """Also partly loaded; and nothing is left on the MODEL."""
    stored, _, lora = stored.partition(" with ")
    patcher = load_model(tmp_path, STORED[stored](random_weights()))
    job = job_over(parts, with_lora(patcher) if lora else patcher)
    if share is not None:
        job.target.load(torch.device("cpu"), lowvram_model_memory=1 + int(share * patcher.model_size()))
    wired = replace(parts, target=job.target)
    before = state_of(wired)
    note = check_host(job)
    assert changed(before, state_of(wired)) == []
    assert comfyui_version.__version__ in note
    assert "in float32" in note


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_that_computes_in_sixteen_bits_is_also_tried_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    """Catches: layers that ComfyUI loaded in the dtype they run in, which take no other without a cast."""
    patcher = load_model(tmp_path, {name: w.to(dtype) for name, w in random_weights().items()})
    patcher.model.diffusion_model.to(dtype).patch_embedding.float()
    for module in patcher.model.diffusion_model.modules():
        module.comfy_cast_weights = False
    patcher.set_model_compute_dtype(dtype)
    patcher.model.manual_cast_dtype = dtype
    with torch.inference_mode():
        tried = self_check._compared(
            patcher, "it", (dtype, torch.float32), lambda dtype: self_check._layer(patcher, dtype)
        )
    assert list(tried) == [str(dtype).removeprefix("torch."), "float32"]
    assert tried["float32"] < 1e-5


def quantised(form: str) -> dict[str, Tensor]:
    """The weights of a layer that is wide enough for every form, as ComfyUI writes them in that form."""
    weights: dict[str, Tensor] = {}
    for name, weight in random_weights(0, replace(CONFIG, dim=256, ffn_dim=512, num_layers=1)).items():
        if weight.ndim != 2 or not name.startswith("blocks."):
            weights[name] = weight.bfloat16()
            continue
        tensor = QuantizedTensor.from_float(weight.bfloat16(), QUANT_ALGOS[form]["comfy_tensor_layout"])
        parts = {key: part.contiguous() for key, part in tensor.state_dict(name).items() if torch.is_tensor(part)}
        stated = json.dumps({"format": form}).encode()
        mark = torch.tensor(list(stated), dtype=torch.uint8)
        weights |= {**parts, f"{name.removesuffix('.weight')}.comfy_quant": mark}
    return weights


@pytest.mark.parametrize("form", QUANT_ALGOS)
def test_every_quantised_form_of_the_host_is_taken(form: str, parts: Parts, tmp_path: Path) -> None:
    """Computed as ComfyUI computes it: equal in the MODEL's dtype. Catches: 8-bit inputs, which step, refused."""
    try:
        weights = quantised(form)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"this ComfyUI does not write {form} on a CPU: {error}")
    patcher = load_model(tmp_path, weights)
    layer = patcher.model.diffusion_model.blocks[0].ffn[0]
    assert isinstance(layer.weight, QuantizedTensor), type(layer.weight)
    assert "computes the same" in check_host(job_over(parts, patcher))
    with torch.inference_mode():
        theirs, ours = self_check._layer(patcher, torch.bfloat16)
    assert torch.equal(theirs, ours)


def test_layers_that_take_no_float32_are_compared_in_their_own_dtype(tmp_path: Path) -> None:
    """As those of 4 bits on a GPU."""
    patcher = load_model(tmp_path)

    def refuse(module: Any, inputs: tuple[Tensor]) -> None:
        if inputs[0].dtype == torch.float32:
            raise NotImplementedError("no kernel")

    patcher.model.diffusion_model.blocks[0].self_attn.q.register_forward_pre_hook(refuse)
    with torch.inference_mode():
        tried = self_check._compared(
            patcher, "it", (torch.bfloat16, torch.float32), lambda dtype: self_check._layer(patcher, dtype)
        )
    assert list(tried) == ["bfloat16"]


def test_tokens_of_one_latent_pixel_are_checked_too(parts: Parts, tmp_path: Path) -> None:
    fine = random_weights(4, replace(CONFIG, patch_size=(1, 1, 1)))
    job = job_over(parts, load_model(tmp_path, fine, patch_size=[1, 1, 1], out_dim=16))
    assert "computes the same" in check_host(job)


def test_the_report_says_what_was_compared(parts: Parts) -> None:
    notes = video_of(make_job(parts, script="ra"))[2].notes
    assert any(note.startswith(f"Checked against ComfyUI {comfyui_version.__version__}") for note in notes)


def test_a_check_is_made_once_and_again_when_patches_or_the_host_changed(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one layer: of the others, and so of an offloaded model, nothing is touched."""
    job = job_over(parts, load_model(tmp_path))
    calls: list[Any] = []
    for number, block in enumerate(job.target.model.diffusion_model.blocks):
        block.ffn.register_forward_hook(lambda *_, number=number: calls.append(number))
    check_host(job)
    first, calls[:] = calls[:], []
    assert set(first) == {0}
    check_host(job)
    assert calls == []
    check_host(replace(job, target=with_lora(job.target)))
    assert calls == first
    monkeypatch.setattr(comfyui_version, "__version__", "9.9.9")
    assert "ComfyUI 9.9.9" in check_host(replace(job, target=with_lora(job.target)))
    assert calls == 2 * first


def test_every_linear_layer_gets_three_axes_at_most(tmp_path: Path) -> None:
    """Catches: fp8_e4m3fn_fast without an effect, as ComfyUI's fp8 arithmetic takes no fourth axis."""
    parts = load_parts(tmp_path)
    parts.target.set_attachments(CONTROL, load_vace(tmp_path, 3, CONFIG, 1))
    parts.drafter.set_attachments(CONTROL, load_vace(tmp_path, 4, CONFIG, 1))
    job = job_of(parts, positive(parts), script="raarar")
    axes: dict[str, int] = {}
    for patcher in (*job.models.values(), job.target.get_attachment(CONTROL)):
        for name, module in patcher.model.diffusion_model.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda m, args, name=name: axes.update({name: args[0].ndim}))
    video_of(job)
    assert len(axes) > 3 * 10
    assert {name for name, count in axes.items() if count > 3} == set()


# --- changes of a host, planted


class Container(torch.nn.Module):
    """An attention inside another module."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *args: Any, **more: Any) -> Tensor:
        return self.attention(*args, **more)


def container(block: Any) -> None:
    block.self_attn = Container(block.self_attn)


def fused_prologue(block: Any) -> None:
    """Attention takes what is not normalised yet."""
    norm, block.norm1 = block.norm1, torch.nn.Identity()
    attend = block.self_attn.forward
    block.self_attn.forward = lambda x, *args, **more: attend(norm(x), *args, **more)


def fused_epilogue(block: Any) -> None:
    """The output's activation is no part of its layer."""
    attend = block.cross_attn.forward
    block.cross_attn.forward = lambda *args, **more: torch.nn.functional.silu(attend(*args, **more))


def swapped_modulation(block: Any) -> None:
    """Scale comes before shift."""
    forward = block.forward
    block.forward = lambda *args, e, **more: forward(*args, e=e.flip(-2), **more)


def other_norm(block: Any) -> None:
    """The block normalises without the mean, and no longer by its module."""
    norm, forward = block.norm2, block.forward

    def changed(*args: Any, **more: Any) -> Any:
        block.norm2 = torch.nn.RMSNorm(CONFIG.dim, eps=norm.eps, elementwise_affine=False)
        try:
            return forward(*args, **more)
        finally:
            block.norm2 = norm

    block.forward = changed


def other_signature(block: Any) -> None:
    forward = block.forward
    block.forward = lambda hidden, conditioning: forward(hidden, **conditioning)


PLANTED = [container, fused_prologue, fused_epilogue, swapped_modulation, other_norm, other_signature]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_changed_layer_is_refused_with_the_version_the_layer_and_the_difference(
    plant: Callable[[Any], None], parts: Parts, tmp_path: Path
) -> None:
    job = job_over(parts, load_model(tmp_path))
    plant(job.target.model.diffusion_model.blocks[0])
    message = refusal(job)
    assert message.startswith(f"ComfyUI {comfyui_version.__version__} ")
    assert "layer 1 of the target" in message
    assert message.endswith("; use the command line, or another ComfyUI")
    compared = plant not in (container, other_signature)
    assert ("apart in float32" in message) == compared, message


def head_without_modulation(tree: Any) -> None:
    tree.head.forward = lambda x, e: tree.head.head(tree.head.norm(x))


def text_without_its_last_word(tree: Any) -> None:
    attend = tree.blocks[0].cross_attn.forward
    tree.blocks[0].cross_attn.forward = lambda x, context, **more: attend(x, context[:, :-1], **more)


@pytest.mark.parametrize("plant", [head_without_modulation, text_without_its_last_word])
def test_what_lies_around_the_layers_is_compared_too(
    plant: Callable[[Any], None], parts: Parts, tmp_path: Path
) -> None:
    job = job_over(parts, load_model(tmp_path))
    plant(job.target.model.diffusion_model)
    assert "layer 1 of the target otherwise" in refusal(job)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_changed_control_block_is_refused(plant: Callable[[Any], None], parts: Parts, tmp_path: Path) -> None:
    control = load_vace(tmp_path, 7, CONFIG, 1)
    wired = replace(parts, drafter=parts.drafter.clone())
    wired.drafter.set_attachments(CONTROL, control)
    job = replace(job_of(wired, positive(wired)), controlled=True)
    assert "computes the same" in check_host(job)
    self_check._CHECKED.clear()
    plant(control.model.diffusion_model.vace_blocks[0])
    with pytest.raises(BadInput, match=f"ComfyUI {comfyui_version.__version__} .*control block 1 of the drafter"):
        check_host(job)


def cache_of_its_own(vae: Any) -> None:
    """The decoder keeps its features itself, and no longer in what it is given."""
    forward, decode = vae.decoder.forward, vae.decode
    caches: list[Any] = []

    def whole(z: Tensor) -> Tensor:
        caches.append([None] * 64)
        try:
            return decode(z)
        finally:
            caches.clear()

    def one(x: Tensor, feat_cache: list[Any], feat_idx: list[int]) -> Any:
        return forward(x, feat_cache=caches[0] if caches else [None] * len(feat_cache), feat_idx=feat_idx)

    vae.decoder.forward, vae.decode = one, whole


def scaled_latents(vae: Any) -> None:
    decode = vae.decode
    vae.decode = lambda z: decode(z * 0.9)


@pytest.mark.parametrize("plant", [cache_of_its_own, scaled_latents])
def test_a_vae_that_streams_otherwise_is_refused(plant: Callable[[Any], None], parts: Parts) -> None:
    job = make_job(replace(parts, vae=load_vae()), script="r")
    plant(job.vae.first_stage_model)
    message = refusal(job)
    assert "the VAE" in message
    assert ("apart in float32" in message) == (plant is scaled_latents)


def test_numbers_that_run_over_in_the_host_too_are_left_to_the_run(parts: Parts, tmp_path: Path) -> None:
    patcher = load_model(tmp_path)
    with torch.no_grad():
        patcher.model.diffusion_model.head.head.weight.fill_(float("inf"))
    with torch.inference_mode():
        tried = self_check._compared(
            patcher, "it", (torch.float32,), lambda dtype: self_check._layer(patcher, dtype)
        )
    assert tried == {}


def test_being_out_of_memory_is_told_as_such(parts: Parts, tmp_path: Path) -> None:
    job = job_over(parts, load_model(tmp_path))

    def full(*args: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    job.target.model.diffusion_model.blocks[0].forward = full
    assert "out of memory on cpu" in refusal(job)
