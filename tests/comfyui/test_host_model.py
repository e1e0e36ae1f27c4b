"""Our causal forward over a MODEL of ComfyUI, against ComfyUI's own causal forward, bit for bit."""

import json
import os
import sys
from dataclasses import replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import comfy.sample
import comfy.sd
import folder_paths
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_run import load_parts, make_job, same_video, video_of
from host_tiny import (
    BLOCKS,
    CONFIG,
    FRAMES,
    LORA_LAYERS,
    NOISE,
    SCHEDULE,
    SPANS,
    STATED,
    clip,
    load_model,
    native_clip,
    onto_device,
    over,
    random_weights,
    text,
    with_lora,
)
from safetensors.torch import save_file
from sdvg_pack.nodes.host import model
from sdvg_pack.nodes.host.conditioning import read_embedding
from sdvg_pack.nodes.host.model import attach_origin, check_loras, check_model
from sdvg_pack.nodes.host.sockets import RouterValue
from sdvg_pack.nodes.loaders import TargetLoader
from sdvg_pack.nodes.run import run_job
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_pack.sdvg_core.causal_wan.context import RollingContext, Wan
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.causal_wan.modules import WanTree
from sdvg_pack.sdvg_core.engine.inputs import InputClip
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.settings.request import Strength
from sdvg_pack.sdvg_core.settings.route import First, Route, TargetOnly
from stored_weights import STORED

from tests.support.thinned import in_turn

SEED = 11
pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]


FINE = "tokens of one latent pixel"
FINE_SIZES = {"patch_size": [1, 1, 1], "out_dim": 16}


def fine_weights():
    return random_weights(4, replace(CONFIG, patch_size=(1, 1, 1)))


@pytest.mark.parametrize("stored", [*STORED, FINE])
def test_our_forward_equals_comfyuis_causal_forward(stored, tmp_path):
    weights = fine_weights() if stored == FINE else STORED[stored](random_weights())
    sizes, tokens = (FINE_SIZES, 6 * 8) if stored == FINE else ({}, 3 * 4)
    ours = clip(over(onto_device(load_model(tmp_path, weights, **sizes))))
    native = native_clip(load_model(tmp_path, weights, causal=True, **sizes), tokens=tokens)
    assert ours.std() > 0.1
    assert torch.equal(ours, native), (ours - native).abs().max()


@pytest.mark.parametrize("stated", [FINE_SIZES, {}], ids=["all sizes stated", "no patch stated"])
def test_loader_node_loads_tokens_of_one_latent_pixel(stated, tmp_path, monkeypatch):
    """ComfyUI's own detection takes every Wan for one of 2 x 2. Over its modules we make what ours make."""
    path = tmp_path / "fine.safetensors"
    weights = {f"model.{name}": w.half() for name, w in fine_weights().items()}  # as the embedded set holds its own
    save_file(weights, path, {"config": json.dumps({"transformer": {**STATED, **stated}})})
    folder_paths.add_model_folder_path("diffusion_models", str(tmp_path))
    chosen = {"file": path.name, "weight_dtype": "default", "preset": {"preset": "krea-14b"}}
    [loaded] = TargetLoader.execute(**chosen).args
    tree = loaded.model.diffusion_model
    assert (tuple(tree.patch_size), tree.out_dim) == ((1, 1, 1), 16)
    assert not tree.head.head.weight.isnan().any()
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(torch.float32))
    ours = standalone(load_wan(path, dtype=torch.float32).tree)
    torch.testing.assert_close(clip(over(onto_device(loaded))), clip(ours), rtol=0, atol=2e-3)


def test_first_run_of_a_process_equals_later_ones(tmp_path, monkeypatch):
    """Also on a GPU, where torch states its order of kernels in its first attention, over what ComfyUI asks for.

    The kernels differ by a rounding.
    """
    attend, asked, stated = torch.nn.functional.scaled_dot_product_attention, [], []

    def of_torch(q, k, v, **options):
        overridden = asked and not stated
        stated.append(True)
        return attend(q, k, v, **options) * (1 + 2**-10 if overridden else 1)

    def of_host(q, k, v, heads, **options):
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        asked.append(True)
        out = of_torch(q, k, v)
        asked.clear()
        return out.transpose(1, 2).flatten(2)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", of_torch)
    monkeypatch.setattr(model, "optimized_attention", of_host)
    job = make_job(load_parts(tmp_path), script="raar")
    first, later = (video_of(job) for _ in range(2))
    assert same_video(first, later), (first[1] - later[1]).norm() / later[1].norm()


def test_lora_works_as_in_comfyuis_causal_forward(tmp_path):
    ours = clip(over(onto_device(with_lora(load_model(tmp_path)))))
    assert torch.equal(ours, native_clip(with_lora(load_model(tmp_path, causal=True))))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


@in_turn("stored, share", [*STORED, "float32 with a LoRA", "fp8 with a LoRA"], [0, 0.5, 0.9])
def test_partly_loaded_model_makes_the_same_latents(stored, share, tmp_path):
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

    def __init__(self, skip):
        self.skip = skip

    def draw(self, span, slot):
        if slot == self.skip:  # what the video begins with; later steps are seeded by block and step
            return NOISE.draw(span, slot)
        torch.manual_seed(SEED + 1000 * span.index + slot - self.skip - 1)
        return torch.randn(NOISE.draw(span, slot).shape)


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_restyled_clip_is_what_comfyuis_sampler_makes(skip, tmp_path):
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


def standalone(tree, **options):
    """A generator as the command line has it."""
    cpu, preset = torch.device("cpu"), get_preset("custom")
    wan = Wan(tree=tree, ops=TorchOps(torch.float32), preset=preset, device=cpu, **options)
    return CausalWanGenerator(wan, name="model", context=RollingContext(window=FRAMES * BLOCKS))


def our_tree(weights):
    tree = WanTree(CONFIG)
    tree.load_state_dict(weights)
    return tree.requires_grad_(False).eval()


def test_under_the_same_operations_comfyuis_modules_make_what_ours_make_also_with_keys_in_fp8(
    tmp_path, monkeypatch
):
    weights = random_weights()
    patcher = onto_device(load_model(tmp_path, weights))
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    whole, near = clip(over(patcher)), clip(over(patcher, kv_fp8=True))
    assert torch.equal(whole, clip(standalone(our_tree(weights))))
    assert torch.equal(near, clip(standalone(our_tree(weights), kv_fp8=True)))
    assert 1e-4 < (near - whole).norm() / whole.norm() < 0.3


def test_an_attention_override_of_the_model_is_used(tmp_path):
    patcher, calls = onto_device(load_model(tmp_path)), []

    def override(attention, *args, **kwargs):
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


def test_kernel_that_a_module_states_is_used(tmp_path, monkeypatch):
    """As in newer versions of ComfyUI, whose attention modules carry it."""
    patcher, stated, plain = onto_device(load_model(tmp_path)), [], model.optimized_attention

    def attention(*args, preferred_attention=None, **more):
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


def test_short_prompt_is_not_padded(tmp_path):
    """Catches padding it: rows of zeros are not nothing, for the text embedding has a bias."""
    short = read_embedding([[text(rows=12), {"pooled_output": None}]], CONFIG.text_dim)
    ours = clip(over(onto_device(load_model(tmp_path))), short)
    assert torch.equal(ours, native_clip(load_model(tmp_path, causal=True), text(rows=12)))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


SUPERBLOCK = 256
K_QUANTS = {
    "Q4_K": (144, (0, 2), (5e-4, 3.75e-3)),
    "Q5_K": (176, (0, 2), (2.5e-4, 3.9e-3)),
    "Q6_K": (210, (208,), (6.4e-5,)),
}
"""Kind -> bytes of a superblock, where its scales in float16 are, and scales that give weights a usual size."""
WIDE = replace(CONFIG, dim=SUPERBLOCK, ffn_dim=2 * SUPERBLOCK)


def superblocks(kind, shape, number):
    """Valid bytes of a kind that gguf's Python only reads: any, but for the scales."""
    size, places, scales = K_QUANTS[kind]
    g = torch.Generator().manual_seed(number)
    blocks = torch.randint(256, (shape[0], shape[1] // SUPERBLOCK, size), generator=g, dtype=torch.uint8)
    for place, scale in zip(places, scales, strict=True):
        blocks[..., place : place + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    return blocks.flatten(1).numpy()


def write_gguf(gguf, path, kind):
    """Write a file whose blocks' matrices are of a kind; return what its weights mean."""
    writer = gguf.GGUFWriter(path, "wan")
    kinds = gguf.GGMLQuantizationType
    meant = {}
    weights = random_weights(config=WIDE if kind in K_QUANTS else CONFIG)
    for number, (name, weight) in enumerate(weights.items()):
        stored = kinds[kind if name.startswith("blocks.") and weight.ndim == 2 else "F32"]
        if stored.name in K_QUANTS:
            content = superblocks(kind, weight.shape, number)
        else:
            content = gguf.quants.quantize(weight.numpy(), stored)
        meant[name] = torch.tensor(gguf.quants.dequantize(content, stored)).reshape(weight.shape)
        writer.add_tensor(name, content, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


@cache
def gguf_nodes():
    root = Path(os.environ["COMFYUI_GGUF"])
    spec = spec_from_file_location("gguf_pack", root / "__init__.py", submodule_search_locations=[str(root)])
    sys.modules["gguf_pack"] = pack = module_from_spec(spec)
    spec.loader.exec_module(pack)
    return pack.nodes


@pytest.mark.exhaustive
@pytest.mark.skipif("COMFYUI_GGUF" not in os.environ, reason="COMFYUI_GGUF names no checkout of ComfyUI-GGUF")
@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q4_0", "BF16", *K_QUANTS])
def test_gguf_file_works_as_in_comfyuis_causal_forward(kind, tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    meant = write_gguf(gguf, path, kind)
    theirs = gguf_nodes()

    def load(**stated):
        """Load the file as Unet Loader (GGUF) does, and tell what a tiny model's shapes do not."""
        model = comfy.sd.load_diffusion_model_state_dict(
            theirs.gguf_sd_loader(str(path)),
            model_options={"custom_operations": theirs.GGMLOps()},
            metadata={"config": json.dumps({"transformer": {**STATED, **stated}})},
        )
        return theirs.GGUFModelPatcher.clone(model)

    def changed(patcher):
        return with_lora(patcher, LORA_LAYERS, meant)

    for change in (lambda patcher: patcher, changed):
        patcher = change(load())
        assert check_model(patcher, "target") == ()
        ours = clip(over(onto_device(patcher)))
        assert torch.equal(ours, native_clip(change(load(causal_ar=True))))
        partly = change(load())
        partly.load(torch.device("cpu"), lowvram_model_memory=partly.model_size() // 2)
        assert partly.model.model_lowvram
        assert torch.equal(ours, clip(over(partly)))
    plain = clip(over(onto_device(changed(load_model(tmp_path, meant)))))
    assert (ours - plain).norm() / ours.norm() < 1e-3
    target = attach_origin(load(), preset=get_preset("krea-14b"))
    assert len(video_of(make_job(replace(load_parts(tmp_path), target=target), script="rar"))[0]) == 33
    # ComfyUI-GGUF adds the room of the largest weight in float16, cast up.
    room = 2 * max(meant[name].numel() for name in meant if name.startswith("blocks."))
    assert target.model_size() == pytest.approx(path.stat().st_size + room, rel=0.05), "what the plan counts"


# --- what is refused, and which patches are said to have no effect


@pytest.mark.parametrize(
    ("conditioning", "sentence"),
    [
        ([[text(), {}], [text(), {}]], "has 2 entries"),
        ([], "has 0 entries"),
        ([[text().expand(2, -1, -1), {}]], "is 2 x 512 x 32, not"),
        ([[text()[0], {}]], "is 512 x 32, not"),
        ([[text()[..., :16], {}]], "16 channels, not 32"),
        ([[text(), {"concat_latent_image": torch.zeros(1)}]], "an image to start from"),
        ([[text(), {"end_percent": 0.5}]], "only some denoising steps"),
    ],
)
def test_conditioning_that_is_not_one_prompt_is_refused(conditioning, sentence):
    with pytest.raises(BadInput, match=sentence):
        read_embedding(conditioning, CONFIG.text_dim)


def test_text_to_video_model_is_taken(tmp_path):
    plain, causal = load_model(tmp_path), load_model(tmp_path, causal=True)
    assert [check_model(one, "target") for one in (plain, causal, with_lora(plain))] == [()] * 3
    check_loras({"drafter": plain, "target": causal})


def image_to_video():
    shapes = {
        "patch_embedding.weight": (64, 36, 1, 2, 2),
        "img_emb.proj.0": (1280,),
        "img_emb.proj.1": (1280, 1280),
    }
    shapes |= {"img_emb.proj.3": (64, 1280), "img_emb.proj.4": (64,)}
    for block in (f"blocks.{i}.cross_attn" for i in range(CONFIG.num_layers)):
        shapes |= {f"{block}.k_img": (64, 64), f"{block}.v_img": (64, 64), f"{block}.norm_k_img.weight": (64,)}
    return {**random_weights(), **zeros(shapes)}


def zeros(shapes):
    """Weights under their full names, or of layers that have a bias too."""
    weights = {name if name.endswith(".weight") else f"{name}.weight": torch.zeros(s) for name, s in shapes.items()}
    return weights | {
        f"{name}.bias": torch.zeros(s[0]) for name, s in shapes.items() if not name.endswith(".weight")
    }


def with_channels(inputs, outputs):
    shapes = {"patch_embedding.weight": (64, inputs, 1, 2, 2), "head.head": (4 * outputs, 64)}
    return {**random_weights(), **zeros(shapes)}


FOREIGN = {
    "image-to-video": (image_to_video, "image-to-video model"),
    "2.2 5B": (lambda: with_channels(48, 48), "48 input and 48 output channels"),
    "fun control": (lambda: with_channels(32, 16), "32 input and 16 output channels"),
    "reference": (lambda: {**random_weights(), **zeros({"ref_conv": (64, 16, 2, 2)})}, "Fun control model"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_wan_model_is_refused_by_its_kind(kind, tmp_path):
    make, sentence = FOREIGN[kind]
    with pytest.raises(BadInput, match=f"the drafter is no Wan 2.1 transformer .found: {sentence}"):
        check_model(load_model(tmp_path, make()), "drafter")


def test_a_model_of_another_family_is_refused():
    base = torch.nn.Module()
    base.diffusion_model = torch.nn.Linear(1, 1)
    device = torch.device("cpu")
    with pytest.raises(BadInput, match="found: a model of another family"):
        check_model(ModelPatcher(base, device, device), "target")


def test_two_clones_of_one_model_are_refused(tmp_path):
    model = load_model(tmp_path)
    with pytest.raises(BadInput, match="one loaded model with different LoRAs"):
        check_loras({"drafter": model, "target": with_lora(model)})


def test_patches_without_effect_are_named(tmp_path):
    patcher = load_model(tmp_path)
    patcher.set_model_patch_replace(lambda args, extra: args, "dit", "double_block", 0)
    patcher.set_model_sampler_cfg_function(lambda args: args)
    patcher.add_wrapper("apply_model", lambda executor, *args, **kwargs: executor(*args, **kwargs))
    patcher.add_object_patch("model_sampling", object())
    notes = check_model(patcher, "target")
    assert len(notes) == 4
    assert all(note.startswith("The target carries ") for note in notes)
    for what in ("a replacement of its blocks", "a guidance function", "a wrapper around", "a sampling shift"):
        assert any(what in note for note in notes)


# --- one model alone


def test_one_model_alone_makes_what_it_makes_beside_another(parts):
    both = make_job(parts, script="aaa", router=RouterValue(Route(TargetOnly()), None))
    assert same_video(video_of(both), video_of(replace(both, drafter=None)))
    drafts = RouterValue(Route(First(0)), None)
    both = make_job(parts, script="aaa", router=drafts)
    only = video_of(replace(both, target=None))
    assert same_video(video_of(both), only)
    assert only[2].settings["target"] is None


def test_one_model_with_two_schedules_is_a_pair(parts):
    job = make_job(parts, script="tdr")
    one = replace(job, drafter=job.target, schedules={"drafter": "1000,625"})
    report = video_of(one)[2]
    assert [block.author for block in report.blocks] == ["target", "drafter", "target"]
    assert [report.settings[role]["schedule"] for role in ("drafter", "target")] == [
        [1000.0, 625.0],
        pytest.approx([1000.0, 937.5, 833.33, 625.0], abs=0.01),
    ]
    assert [block.draft.denoising_passes for block in report.blocks[1:]] == [2, 2]
    with pytest.raises(BadInput, match="one model with one schedule"):
        run_job(replace(one, schedules={}))
