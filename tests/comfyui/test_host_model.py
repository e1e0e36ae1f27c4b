"""Our causal forward over a MODEL of ComfyUI, against ComfyUI's own causal forward, bit for bit."""

import json
from dataclasses import replace

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
from sdvg_pack.nodes.host.model import check_loras, check_model
from sdvg_pack.nodes.host.sockets import PICTURE, RESTYLE, RouterValue, StartValue
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
from sdvg_pack.sdvg_core.settings.fields import as_json
from sdvg_pack.sdvg_core.settings.request import Strength, VideoRequest
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
    """Bit for bit. Catches: a cast, position, timestep or mask that differs."""
    weights = fine_weights() if stored == FINE else STORED[stored](random_weights())
    sizes = FINE_SIZES if stored == FINE else {}
    tokens = 6 * 8 if stored == FINE else 3 * 4
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
    assert tuple(tree.patch_size) == (1, 1, 1)
    assert tree.out_dim == 16
    assert not tree.head.head.weight.isnan().any()
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(torch.float32))
    ours = standalone(load_wan(path, dtype=torch.float32).tree)
    torch.testing.assert_close(clip(over(onto_device(loaded))), clip(ours), rtol=0, atol=2e-3)


def test_first_run_of_a_process_equals_later_ones(tmp_path, monkeypatch):
    """Also on a GPU, where torch states its order of kernels in its first attention, over what ComfyUI asks for.

    The kernels differ by a rounding.
    """
    attend = torch.nn.functional.scaled_dot_product_attention
    by_host = []
    earlier_calls = []

    def of_torch(q, k, v, **options):
        overridden = by_host and not earlier_calls
        earlier_calls.append(True)
        return attend(q, k, v, **options) * (1 + 2**-10 if overridden else 1)

    def of_host(q, k, v, heads, **options):
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        by_host.append(True)
        out = of_torch(q, k, v)
        by_host.clear()
        return out.transpose(1, 2).flatten(2)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", of_torch)
    monkeypatch.setattr(model, "optimized_attention", of_host)
    job = make_job(load_parts(tmp_path), script="raar")
    first = video_of(job)
    later = video_of(job)
    assert same_video(first, later), (first[1] - later[1]).norm() / later[1].norm()


def test_lora_works_as_in_comfyuis_causal_forward(tmp_path):
    """Catches: weights that are read past ComfyUI's patches."""
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
    cpu = torch.device("cpu")
    wan = Wan(tree=tree, ops=TorchOps(torch.float32), preset=get_preset("custom"), device=cpu, **options)
    return CausalWanGenerator(wan, name="model", context=RollingContext(window=FRAMES * BLOCKS))


def our_tree(weights):
    tree = WanTree(CONFIG)
    tree.load_state_dict(weights)
    return tree.requires_grad_(False).eval()


@pytest.mark.parametrize("kv_fp8", [False, True])
def test_comfyuis_modules_make_what_ours_make(kv_fp8, tmp_path, monkeypatch):
    """Under the same operations. Catches: weights or keys that one of them reads otherwise."""
    weights = random_weights()
    patcher = onto_device(load_model(tmp_path, weights))
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    theirs = clip(over(patcher, kv_fp8=kv_fp8))
    assert torch.equal(theirs, clip(standalone(our_tree(weights), kv_fp8=kv_fp8)))


def test_attention_override_of_the_model_is_used(tmp_path):
    """And the self-check takes it. Catches: attention past what other packs set."""
    patcher = onto_device(load_model(tmp_path))
    calls = []

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
    patcher = onto_device(load_model(tmp_path))
    stated = []
    plain = model.optimized_attention

    def attention(*args, preferred_attention=None, **more):
        stated.append(preferred_attention)
        return plain(*args, **more)

    monkeypatch.setattr(model, "optimized_attention", attention)
    clip(over(patcher))
    assert set(stated) == {None}
    stated.clear()
    for number, block in enumerate(patcher.model.diffusion_model.blocks):
        block.self_attn.comfy_attention = f"self {number}"
        block.cross_attn.comfy_attention = f"cross {number}"
    clip(over(patcher))
    layers = [f"{kind} {number}" for number in range(CONFIG.num_layers) for kind in ("self", "cross")]
    assert stated[: len(layers)] == layers


def test_short_prompt_is_not_padded(tmp_path):
    """Catches padding it: rows of zeros are not nothing, for the text embedding has a bias."""
    short = read_embedding([[text(rows=12), {"pooled_output": None}]], CONFIG.text_dim)
    ours = clip(over(onto_device(load_model(tmp_path))), short)
    assert torch.equal(ours, native_clip(load_model(tmp_path, causal=True), text(rows=12)))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))


# --- what is refused, and which patches are said to have no effect


@pytest.mark.parametrize(
    ("conditioning", "sentence"),
    [
        ([[text(), {}], [text(), {}]], "has 2 entries"),
        ([], "has 0 entries"),
        ([[text().expand(2, -1, -1), {}]], "is 2 x 512 x 32, not"),
        ([[text()[0], {}]], "is 512 x 32, not"),
        ([[text()[..., :16], {}]], "16 channels, not 32"),
        ([[text(), {"start_percent": 0.5}]], "only some denoising steps"),
        ([[text(), {"end_percent": 0.5}]], "only some denoising steps"),
    ],
)
def test_conditioning_that_is_not_one_prompt_is_refused(conditioning, sentence):
    """Catches: the first of several entries, taken for all."""
    with pytest.raises(BadInput, match=sentence):
        read_embedding(conditioning, CONFIG.text_dim)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("concat_latent_image", "an image to start from"),
        ("reference_latents", "reference images"),
        ("clip_vision_output", "a CLIP vision image"),
        ("control", "a ControlNet"),
        ("area", "an area"),
        ("mask", "a mask"),
        ("hooks", "hooks"),
        ("camera_conditions", "a camera path"),
        ("audio_embed", "audio"),
        ("context_latents", "reference videos"),
        ("time_dim_concat", "frames to append"),
    ],
)
def test_option_of_a_conditioning_is_refused(option, words):
    """Catches: a mask, an area, a reference that a node put there, and that no block obeys."""
    with pytest.raises(BadInput, match=f"carries {words}"):
        read_embedding([[text(), {option: torch.zeros(1)}]], CONFIG.text_dim)


def test_text_to_video_model_is_taken(tmp_path):
    """Without a note. Catches: a causal or patched MODEL called foreign, two loaded files taken for one model."""
    plain = load_model(tmp_path)
    causal = load_model(tmp_path, causal=True)
    for patcher in (plain, causal, with_lora(plain)):
        assert check_model(patcher, "target") == ()
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
    """Catches: a run that ends in an error about shapes."""
    make, sentence = FOREIGN[kind]
    with pytest.raises(BadInput, match=sentence):
        check_model(load_model(tmp_path, make()), "drafter")


def test_model_of_another_family_is_refused():
    base = torch.nn.Module()
    base.diffusion_model = torch.nn.Linear(1, 1)
    device = torch.device("cpu")
    with pytest.raises(BadInput, match="found: a model of another family"):
        check_model(ModelPatcher(base, device, device), "target")


def test_two_clones_of_one_model_are_refused(tmp_path):
    """Their LoRAs patch the same weights in turn. Catches: blocks of both made with one of them."""
    model = load_model(tmp_path)
    with pytest.raises(BadInput, match="one loaded model with different LoRAs"):
        check_loras({"drafter": model, "target": with_lora(model)})


def test_patches_without_effect_are_named(tmp_path):
    """Catches: a node of another pack that does nothing, unsaid."""
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


@pytest.mark.parametrize("idle, policy", [("drafter", TargetOnly()), ("target", First(0))])
def test_model_alone_makes_the_same_video(idle, policy, parts):
    """Catches: a model that changes a video in which it makes no block, or is needed for it."""
    both = make_job(parts, script="aaa", router=RouterValue(Route(policy), None))
    alone = video_of(replace(both, **{idle: None}))
    assert same_video(video_of(both), alone)
    assert alone[2].settings[idle] is None


@pytest.fixture
def draft_in_two_steps(parts):
    """A job whose pair is one model with two schedules."""
    job = make_job(parts, script="tdr")
    return replace(job, drafter=job.target, schedules={"drafter": "1000,625"})


def test_one_model_with_two_schedules_is_a_pair(draft_in_two_steps):
    """Catches: blocks that both make by one schedule."""
    report = video_of(draft_in_two_steps)[2]
    assert [block.author for block in report.blocks] == ["target", "drafter", "target"]
    assert [report.settings[role]["schedule"] for role in ("drafter", "target")] == [
        [1000.0, 625.0],
        pytest.approx([1000.0, 937.5, 833.33, 625.0], abs=0.01),
    ]
    assert [block.draft.denoising_passes for block in report.blocks[1:]] == [2, 2]


def test_one_model_with_one_schedule_is_refused(draft_in_two_steps):
    with pytest.raises(BadInput, match="one model with one schedule"):
        run_job(replace(draft_in_two_steps, schedules={}))


# --- what the report says of it

PICTURES = torch.rand(9, 32, 32, 3, generator=torch.Generator().manual_seed(1))
LATENTS = {"samples": torch.randn(1, 16, 3, 4, 4, generator=torch.Generator().manual_seed(2))}
WIRED = {
    "nothing": ({}, {}, 0),
    "first frame": ({"start_image": PICTURES}, {"start_image": "IMAGE"}, 3),
    "first frame by SDVG Start": ({"start": StartValue(PICTURES, PICTURE, "", "")}, {"start_image": "IMAGE"}, 3),
    "frames to extend": ({"start": StartValue(PICTURES, "extend", "", "")}, {"continue_from": "IMAGE"}, 3),
    "latents to extend": ({"continue_from": LATENTS}, {"continue_from": "LATENT"}, 3),
    "frames to restyle": (
        {"start": StartValue(PICTURES, RESTYLE, "strong", "")},
        {"restyle": "IMAGE", "strength": "strong"},
        0,
    ),
}
"""What is wired in, the fields of the request that say so, and the latent frames before the first block."""


@pytest.mark.parametrize("wired", WIRED)
def test_report_states_what_is_wired_in(wired, parts):
    """Catches: a field that says what was not wired in, or what another run was asked for."""
    inputs, stated, given = WIRED[wired]
    route = Route(First(0))
    job = make_job(parts, script="d", router=RouterValue(route, None), seed=5, takes="1:2", **inputs)
    report = video_of(job)[2]
    usual = as_json(VideoRequest())
    asked = {"blocks": 1, "seed": 5, "takes": "1:2", "width": 32, "height": 32, "route": as_json(route)}
    assert {name: value for name, value in report.request.items() if value != usual[name]} == {**asked, **stated}
    settings = report.settings
    assert (settings["seed"], settings["blocks"], settings["takes"]) == (5, 1, {"1": 2})
    assert (settings["width"], settings["height"], settings["latent_frames_given"]) == (32, 32, given)
    assert (settings["device"], settings["side_device"], settings["vae"]["dtype"]) == ("cpu", "cpu", "float32")
