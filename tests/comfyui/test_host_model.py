"""Our causal forward over a MODEL of ComfyUI, against ComfyUI's own causal forward, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.sd
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_tiny import CONFIG, SIZE, generator_of, load_model, random_weights
from sdvg_pack.nodes.host import model
from sdvg_pack.nodes.host.checks import check_model, check_pair
from sdvg_pack.nodes.host.conditioning import read_embedding
from sdvg_pack.nodes.host.model import ComfyOps, comfy_generator, compute_dtype
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.context import Incremental
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.causal_wan.modules import WanTree
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.history import History
from sdvg_pack.sdvg_core.noise import KeyedNoise
from sdvg_pack.sdvg_core.schedule import get_schedule, predict_clean, renoise
from sdvg_pack.sdvg_core.spans import plan_spans
from sdvg_pack.sdvg_core.types import Block, BlockGenerator, Condition
from torch import Tensor

pytestmark = pytest.mark.comfyui

FRAMES, BLOCKS = 3, 4
SCHEDULE = get_schedule("four-step")
NOISE = KeyedNoise(seed=7, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
SPANS = plan_spans(BLOCKS, FRAMES, 0)


def text(rows: int = 512, used: int = 12) -> Tensor:
    embedding = torch.zeros(1, rows, CONFIG.text_dim)
    embedding[:, :used] = torch.randn(1, used, CONFIG.text_dim, generator=generator_of(3))
    return embedding


def onto_device(patcher: ModelPatcher) -> ModelPatcher:
    comfy.model_management.load_models_gpu([patcher])
    return patcher


def over(patcher: ModelPatcher, **options: Any) -> BlockGenerator:
    chosen = {"context": Incremental(window=FRAMES * BLOCKS), "schedule": SCHEDULE, "block_frames": FRAMES}
    return comfy_generator(patcher, name="model", before_pass=lambda _: None, **chosen, **options)


def clip(generator: BlockGenerator, embedding: Tensor | None = None) -> Tensor:
    """The latents that a generator makes, block after block."""
    condition = Condition(text() if embedding is None else embedding, "a", "a")
    history = History()
    for span in SPANS:
        made = generator.generate(history, span, NOISE, condition)
        history = history.commit(Block(span, made.latents, condition))
    return history.latents(0, history.frames)


@torch.inference_mode()
def native_clip(patcher: ModelPatcher, embedding: Tensor | None = None) -> Tensor:
    """The same by ComfyUI's causal forward: its caches, its time embedding, its rotary positions."""
    with torch.inference_mode(mode=False):
        onto_device(patcher)
    model, dtype = patcher.model.diffusion_model, compute_dtype(patcher)
    device = patcher.load_device
    tokens = SIZE[0] * SIZE[1] // 4
    kv = model.init_kv_caches(1, tokens * FRAMES * BLOCKS, device, dtype)
    text_kv = model.init_crossattn_caches(1, device, dtype)
    embedding = (text() if embedding is None else embedding).to(dtype)

    def forward(x: Tensor, timestep: float, first: int) -> Tensor:
        for cache in kv:
            cache["end"] = first * tokens
        times = torch.full((1, FRAMES), timestep, dtype=torch.float32)
        return model.forward_block(x.to(dtype), times, embedding, first, kv, text_kv)

    done: list[Tensor] = []
    for span in SPANS:
        x = NOISE.draw(span, 0)
        for i, step in enumerate(SCHEDULE):
            x = renoise(done[-1], NOISE.draw(span, i), step.sigma) if i else x
            clean = predict_clean(x, forward(x, step.timestep, span.start), step.sigma)
            done[span.index :] = [clean]
        forward(done[-1], 0.0, span.start)
    return torch.cat(done, dim=2)


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


def in_bf16(patcher: ModelPatcher) -> ModelPatcher:
    patcher = patcher.clone()
    patcher.set_model_compute_dtype(torch.bfloat16)
    return patcher


def round_latents(module: torch.nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0].bfloat16().float(),)


def test_in_bf16_the_only_difference_is_that_our_latents_are_not_rounded(tmp_path: Path) -> None:
    native = native_clip(in_bf16(load_model(tmp_path, causal=True)))
    patcher = onto_device(in_bf16(load_model(tmp_path)))
    assert not torch.equal(clip(over(patcher)), native)
    patcher.model.diffusion_model.patch_embedding.register_forward_pre_hook(round_latents)
    assert torch.equal(clip(over(patcher)), native)


def test_rotary_positions_stay_apart_late_in_a_clip_in_bf16(tmp_path: Path) -> None:
    """ComfyUI counts positions in the model's dtype, where 513 is 512."""
    tree, grid, device = load_model(tmp_path).model.diffusion_model, (2, 1, 1), torch.device("cpu")
    table = ComfyOps(torch.bfloat16, {}).rope(tree, 512, grid, device)
    x = torch.randn(1, 2, 2, 32, generator=generator_of(1))
    torch.testing.assert_close(
        ComfyOps(torch.float32, {}).rotate(x, table),
        TorchOps(torch.float32).rotate(x, TorchOps(torch.float32).rope(tree, 512, grid, device)),
    )


LORA_LAYERS = ("blocks.0.self_attn.q", "blocks.1.ffn.0", "blocks.2.cross_attn.v", "time_embedding.0", "head.head")


def lora_weights() -> dict[str, Tensor]:
    g, weights, lora = generator_of(5), random_weights(), {}
    for layer in LORA_LAYERS:
        rows, columns = weights[f"{layer}.weight"].shape
        lora[f"diffusion_model.{layer}.lora_A.weight"] = torch.randn(4, columns, generator=g) * 0.1
        lora[f"diffusion_model.{layer}.lora_B.weight"] = torch.randn(rows, 4, generator=g) * 0.1
    return lora


def with_lora(patcher: ModelPatcher) -> ModelPatcher:
    return comfy.sd.load_lora_for_models(patcher, None, lora_weights(), 1.0, 0)[0]


def test_a_lora_between_loader_and_sampler_works_as_in_comfyuis_forward(tmp_path: Path) -> None:
    ours = clip(over(onto_device(with_lora(load_model(tmp_path)))))
    assert torch.equal(ours, native_clip(with_lora(load_model(tmp_path, causal=True))))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


def test_a_lora_works_like_one_baked_into_the_file(tmp_path: Path) -> None:
    baked, lora = random_weights(), lora_weights()
    for layer in LORA_LAYERS:
        a, b = (lora[f"diffusion_model.{layer}.lora_{part}.weight"] for part in "AB")
        baked[f"{layer}.weight"] = baked[f"{layer}.weight"] + b @ a
    patched = clip(over(onto_device(with_lora(load_model(tmp_path)))))
    assert torch.equal(patched, clip(over(onto_device(load_model(tmp_path, baked)))))


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


def standalone(tree: torch.nn.Module, **options: Any) -> CausalWanGenerator:
    """A generator as the command line has it."""
    chosen = {"context": Incremental(window=FRAMES * BLOCKS), "schedule": SCHEDULE, **options}
    return CausalWanGenerator(tree, name="model", ops=TorchOps(torch.float32), **chosen)


def our_tree(weights: dict[str, Tensor]) -> WanTree:
    tree = WanTree(CONFIG)
    tree.load_state_dict(weights)
    return tree.requires_grad_(False).eval()


def test_under_the_same_operations_comfyuis_modules_make_what_ours_make(tmp_path: Path) -> None:
    weights = random_weights()
    theirs = onto_device(load_model(tmp_path, weights)).model.diffusion_model
    assert torch.equal(clip(standalone(theirs)), clip(standalone(our_tree(weights))))


def test_under_the_same_operations_keys_and_values_in_fp8_are_the_cores_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = random_weights()
    patcher = onto_device(load_model(tmp_path, weights))
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    whole, near = clip(over(patcher)), clip(over(patcher, kv_fp8=True))
    assert torch.equal(near, clip(standalone(our_tree(weights), kv_fp8=True)))
    assert 1e-4 < (near - whole).norm() / whole.norm() < 0.3


@pytest.mark.parametrize("change", [in_bf16, with_lora], ids=["bf16", "lora"])
def test_keys_and_values_in_fp8_are_read_back_for_comfyuis_attention(
    change: Callable[[ModelPatcher], ModelPatcher], tmp_path: Path
) -> None:
    """Its kernel gets them in the dtype of its queries, or it would refuse them."""
    patcher = onto_device(change(load_model(tmp_path)))
    whole, near = clip(over(patcher)), clip(over(patcher, kv_fp8=True))
    assert 1e-4 < (near - whole).norm() / whole.norm() < 0.3


def test_the_pack_and_the_command_line_make_the_same_latents_up_to_rounding(tmp_path: Path) -> None:
    """ComfyUI embeds timesteps in float32 and attends by another kernel; 3e-5 was measured after four blocks."""
    weights = random_weights()
    pack, command_line = clip(over(onto_device(load_model(tmp_path, weights)))), clip(standalone(our_tree(weights)))
    torch.testing.assert_close(pack, command_line, atol=3e-4, rtol=0)


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


def test_an_embedding_is_read_as_it_is() -> None:
    assert torch.equal(read_embedding([[text(), {}]], CONFIG.text_dim), text())


@pytest.mark.parametrize(
    ("conditioning", "sentence"),
    [
        ([[text(), {}], [text(), {}]], "got 2 entries"),
        ([], "got 0 entries"),
        ([[text().expand(2, -1, -1), {}]], "got 2 x 512 x 32"),
        ([[text()[0], {}]], "got 512 x 32"),
        ([[text()[..., :16], {}]], "channels, but got 16"),
        ([[text(), {"concat_latent_image": torch.zeros(1)}]], "an image to begin with"),
        ([[text(), {"end_percent": 0.5}]], "for some of them"),
    ],
)
def test_a_conditioning_that_is_not_one_prompt_is_refused(conditioning: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_embedding(conditioning, CONFIG.text_dim)


def test_a_text_to_video_model_passes_plain_causal_or_with_lora(tmp_path: Path) -> None:
    plain, causal = load_model(tmp_path), load_model(tmp_path, causal=True)
    assert (
        check_model(plain, "drafter") == check_model(causal, "target") == check_model(with_lora(plain), "x") == ()
    )
    check_pair(plain, causal)


def image_to_video() -> dict[str, Tensor]:
    g, weights = generator_of(0), random_weights()
    weights["patch_embedding.weight"] = torch.randn(64, 36, 1, 2, 2, generator=g)
    sizes = {"img_emb.proj.0": (1280,), "img_emb.proj.1": (1280, 1280), "img_emb.proj.3": (64, 1280)}
    for name, shape in {**sizes, "img_emb.proj.4": (64,)}.items():
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.zeros(shape), torch.zeros(shape[0])
    for block in (f"blocks.{i}.cross_attn" for i in range(CONFIG.num_layers)):
        weights |= {f"{block}.k_img.weight": torch.zeros(64, 64), f"{block}.k_img.bias": torch.zeros(64)}
        weights |= {f"{block}.v_img.weight": torch.zeros(64, 64), f"{block}.v_img.bias": torch.zeros(64)}
        weights[f"{block}.norm_k_img.weight"] = torch.zeros(64)
    return weights


def with_channels(inputs: int, outputs: int) -> dict[str, Tensor]:
    weights = random_weights()
    weights["patch_embedding.weight"] = torch.zeros(64, inputs, 1, 2, 2)
    weights |= {"head.head.weight": torch.zeros(4 * outputs, 64), "head.head.bias": torch.zeros(4 * outputs)}
    return weights


def with_reference() -> dict[str, Tensor]:
    return {**random_weights(), "ref_conv.weight": torch.zeros(64, 16, 2, 2), "ref_conv.bias": torch.zeros(64)}


FOREIGN = {
    "image-to-video": (image_to_video, "an image-to-video model"),
    "2.2 5B": (lambda: with_channels(48, 48), "Wan 2.2 5B"),
    "fun control": (lambda: with_channels(32, 16), "a Wan model with 32 input channels"),
    "reference": (with_reference, "a reference-image"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_wan_model_is_refused_by_what_it_is(kind: str, tmp_path: Path) -> None:
    make, sentence = FOREIGN[kind]
    with pytest.raises(BadInput, match=f"as the drafter, but got {sentence}"):
        check_model(load_model(tmp_path, make()), "drafter")


def test_a_model_of_another_family_is_refused() -> None:
    base = torch.nn.Module()
    base.diffusion_model = torch.nn.Linear(1, 1)
    device = torch.device("cpu")
    with pytest.raises(BadInput, match="as the target, but got a model of another family"):
        check_model(ModelPatcher(base, device, device), "target")


def test_two_clones_of_one_model_are_refused(tmp_path: Path) -> None:
    model = load_model(tmp_path)
    with pytest.raises(BadInput, match="one loaded model"):
        check_pair(model, with_lora(model))


def test_patches_without_effect_are_named(tmp_path: Path) -> None:
    patcher = load_model(tmp_path)
    patcher.set_model_patch_replace(lambda args, extra: args, "dit", "double_block", 0)
    patcher.set_model_sampler_cfg_function(lambda args: args)
    patcher.add_wrapper("apply_model", lambda executor, *args, **kwargs: executor(*args, **kwargs))
    patcher.add_object_patch("model_sampling", object())
    notes = check_model(patcher, "target")
    assert len(notes) == 4
    assert all(note.startswith("the target carries ") for note in notes)
    for what in ("a replacement of its blocks", "a guidance function", "a wrapper around", "a sampling shift"):
        assert any(what in note for note in notes)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What the compiler remembers holds on to tensors without memory, which other tests come across."""
    yield
    torch._dynamo.reset()


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


@pytest.mark.usefixtures("forgotten")
def test_a_layer_that_was_compiled_in_place_is_called_compiled(tmp_path: Path) -> None:
    plain = clip(over(onto_device(load_model(tmp_path))))
    patcher, graphs = onto_device(load_model(tmp_path)), []
    patcher.model.diffusion_model.blocks[1].ffn.compile(backend=lambda graph, _: graphs.append(1) or graph)
    torch.testing.assert_close(clip(over(patcher)), plain)
    assert graphs
