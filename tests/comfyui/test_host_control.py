"""The control branch over ComfyUI's VACE modules, against ComfyUI's own VACE model."""

from dataclasses import replace

import folder_paths
import pytest
import torch
from host_run import load_parts, same_video, state_of, video_of, with_inputs
from host_tiny import (
    CONFIG,
    NOISE,
    SCHEDULE,
    SIZE,
    SPANS,
    generator_of,
    load_model,
    onto_device,
    random_weights,
    text,
    with_lora,
)
from host_vace import BLOCKS, CLIP, FRAMES, SIZES, control_weights, job_of, load_vace, positive
from safetensors.torch import save_file
from sdvg_pack.nodes.host.conditioning import VACE_KEYS, read_controls
from sdvg_pack.nodes.host.files import load_control_file
from sdvg_pack.nodes.host.memory import memory_of
from sdvg_pack.nodes.host.model import CONTROL, attach_origin, check_control, comfy_wan, patcher_dtype
from sdvg_pack.nodes.host.sockets import PromptEntry, StartValue
from sdvg_pack.nodes.run import run_job
from sdvg_pack.nodes.start import EXTEND
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.checkpoint import load_control, open_control
from sdvg_pack.sdvg_core.causal_wan.context import RollingContext, Wan
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.engine.inputs import CONTROL_CHANNELS, BlockCall, ControlClip
from sdvg_pack.sdvg_core.engine.types import Condition, History
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.memory.plan import PART_NAMES
from sdvg_pack.sdvg_core.settings.context import Preset, get_preset
from sdvg_pack.sdvg_core.weights.weight_file import open_weights
from stored_weights import fp8

from tests.support.thinned import in_turn

pytestmark = pytest.mark.comfyui

LAYERS = {"1.3B": SIZES, "14B": replace(CONFIG, num_layers=10)}
DEPTH, SCRIBBLE = (torch.randn(1, CONTROL_CHANNELS, 3, *SIZE, generator=generator_of(seed)) for seed in (77, 78))
CONTROLS = {"none": (0.0,), "half": (0.5,), "whole": (1.0,), "two": (0.7, 0.4)}
"""The strength of each control."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A drafter and a target, each with a VACE MODEL of its size in its loader's `control`."""
    folder = tmp_path_factory.mktemp("parts")
    parts = load_parts(folder)
    for seed, role in enumerate(("drafter", "target")):
        getattr(parts, role).set_attachments(CONTROL, load_vace(folder, seed, CONFIG, 1))
    return parts


def clips_of(strengths):
    return tuple(ControlClip(clip, s) for clip, s in zip((DEPTH, SCRIBBLE), strengths, strict=False))


def controlled(tree, ops, module, clips):
    """The first block, by our forward pass."""
    preset = Preset(name="one", schedule="one-step")
    wan = Wan(tree=tree, ops=ops, preset=preset, device=torch.device("cpu"), control=module)
    generator = CausalWanGenerator(wan, name="model", context=RollingContext(window=3))
    controls = tuple(control.at(SPANS[0]) for control in clips)
    call = BlockCall(History(), SPANS[0], NOISE, Condition(text(), "a"), controls=controls)
    return generator.generate(call).latents


@torch.inference_mode()
def native(patcher, clips):
    """The same by ComfyUI's VACE model."""
    with torch.inference_mode(mode=False):
        onto_device(patcher)
    model = patcher.model.diffusion_model
    dtype = patcher_dtype(patcher)
    x = NOISE.draw(SPANS[0], 0)
    step = SCHEDULE[0]
    velocity = model.forward_orig(
        x.to(dtype),
        torch.tensor([step.timestep], dtype=torch.float32),
        text().to(dtype),
        vace_context=torch.stack([clip.context for clip in clips], dim=1).to(dtype),
        vace_strength=[clip.strength for clip in clips],
        freqs=model.rope_encode(*x.shape[2:], device=patcher.load_device, dtype=torch.float32),
    )
    return x - step.sigma * velocity


@in_turn("strength, size", list(CONTROLS), list(LAYERS))
def test_control_branch_makes_what_comfyuis_vace_model_makes(strength, size, tmp_path):
    """Catches: hints after other layers, in another order, or of another strength."""
    clips = clips_of(CONTROLS[strength])
    sizes = LAYERS[size]
    wan = comfy_wan(onto_device(load_model(tmp_path, random_weights(0, sizes))), get_preset("custom"))
    module = onto_device(load_vace(tmp_path, 5, sizes)).model.diffusion_model
    ours = controlled(wan.tree, wan.ops, module, clips)
    theirs = native(load_vace(tmp_path, 0, sizes), clips)
    assert torch.allclose(ours, theirs, atol=2e-5), (ours - theirs).abs().max()
    plain = controlled(wan.tree, wan.ops, None, ())
    assert ((ours - plain).norm() > 0.05 * plain.norm()) == (strength != "none")


@pytest.mark.parametrize("whole", [True, False], ids=["whole checkpoint", "module alone"])
@pytest.mark.parametrize("size", LAYERS)
def test_core_control_makes_what_comfyuis_vace_model_makes(size, whole, tmp_path):
    """Catches: a file whose control weights the command line reads otherwise."""
    clips = clips_of(CONTROLS["two"])
    sizes = LAYERS[size]
    theirs = native(load_vace(tmp_path, 0, sizes), clips)
    wan = comfy_wan(onto_device(load_model(tmp_path, random_weights(0, sizes))), get_preset("custom"))
    path = tmp_path / "vace0.safetensors"
    if not whole:
        path = tmp_path / "module.safetensors"
        save_file(control_weights(config=sizes), path)
    control = open_control(open_weights(path), sizes, "target")
    module = load_control(control, device=torch.device("cpu"), dtype=torch.float32)
    ours = controlled(wan.tree, TorchOps(torch.float32), module, clips)
    assert torch.allclose(ours, theirs, atol=1e-4), (ours - theirs).abs().max()


def lora_on_control(patcher):
    return with_lora(patcher, ("vace_blocks.0.self_attn.q", "vace_blocks.1.after_proj"), control_weights())


@pytest.mark.parametrize(("stored", "change"), [(fp8, lambda p: p), (dict, lora_on_control)], ids=["fp8", "lora"])
def test_casts_and_patches_reach_the_control_branch(stored, change, tmp_path):
    """Catches: weights that are read past the host's casts and patches."""
    clips = clips_of(CONTROLS["two"])
    wan = comfy_wan(onto_device(load_model(tmp_path, stored(random_weights(0, SIZES)))), get_preset("custom"))

    def latents_with(control):
        return controlled(wan.tree, wan.ops, onto_device(control).model.diffusion_model, clips)

    changed = latents_with(change(load_vace(tmp_path, 5, stored=stored)))
    plain = latents_with(load_vace(tmp_path, 5))
    theirs = native(change(load_vace(tmp_path, 0, stored=stored)), clips)
    assert torch.allclose(changed, theirs, atol=2e-5), (changed - theirs).abs().max()
    assert not torch.allclose(changed, plain, atol=1e-2)


# --- runs of the sampler, with what WanVaceToVideo writes


@pytest.fixture(scope="module")
def plain_video(parts):
    """A video without a control."""
    return video_of(job_of(parts, [[torch.randn(1, 512, 32, generator=generator_of(0)), {}]]))


def test_control_changes_every_block(parts, plain_video):
    """And nothing is left on the models. Catches: a control that only one of them sees."""
    before = state_of(parts)
    _, latents, report = video_of(job_of(parts, positive(parts)))
    assert state_of(parts) == before
    for ours, plain in zip(latents.split(3, dim=2), plain_video[1].split(3, dim=2), strict=True):
        assert not torch.equal(ours, plain)
    assert len(latents.split(3, dim=2)) == BLOCKS
    assert report.request["control_strengths"] == [1.0]


def test_control_of_strength_zero_changes_nothing(parts, plain_video):
    assert same_video(video_of(job_of(parts, positive(parts, strength=0.0))), plain_video)


def test_control_keeps_its_place_after_a_lock(parts, tmp_path, monkeypatch):
    """Catches: a control that begins with the held frames of a short clip once its blocks are locked."""
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    clip = StartValue(CLIP[:5], EXTEND, "", "")
    job = with_inputs(job_of(parts, positive(parts)), blocks=3, start=clip)
    frames, latent, _, live, _ = run_job(job)
    again = run_job(job, f"2:{live.done['digests'][1]}")
    assert torch.equal(again[1]["samples"], latent["samples"])
    assert torch.equal(again[0], frames)


def test_chained_controls_are_read_as_comfyui_does(parts):
    """Catches: latents that are not normalised, or normalised over both streams at once; a lost strength."""
    mask = torch.ones(FRAMES, 32, 32)
    mask[:, :16] = 0
    chained = positive(parts, 1 - CLIP, before=positive(parts, strength=0.5), control_masks=mask)
    extras = chained[0][1]
    vace = parts.target.get_attachment(CONTROL).model
    noise = torch.zeros(1, 16, 18, 4, 4)
    wanted = vace.extra_conds(noise=noise, cross_attn=chained[0][0], device="cpu", **extras)["vace_context"].cond
    clips = read_controls(chained, parts.target.model.process_latent_in, 4, 4)
    assert torch.equal(torch.stack([clip.context for clip in clips], dim=1), wanted)
    assert [clip.strength for clip in clips] == [0.5, 1.0]


def test_memory_of_control_models_is_requested(parts):
    """Catches: a control model that ComfyUI pushes out in the middle of a run."""
    plain = memory_of(job_of(parts, [[torch.randn(1, 512, 32), {}]]))
    both = memory_of(replace(job_of(parts, positive(parts)), controlled=True))
    assert [name for name in both.models if name not in plain.models] == ["target control", "drafter control"]
    [needed] = both.needs.values()
    [without] = plain.needs.values()
    assert needed.total > without.total
    assert not [part for part in needed.parts if part.endswith("control")], "weights are ComfyUI's to count"
    assert set(both.models) <= set(PART_NAMES), "the plan on a GPU names each"


def test_control_module_alone_makes_the_same_video(parts, tmp_path):
    """Also partly loaded. Catches: weights without a value, another dtype, a module that ComfyUI does not move."""
    controlled = positive(parts)
    wanted = video_of(job_of(parts, controlled))
    save_file(control_weights(config=CONFIG, blocks=1), tmp_path / "vace.safetensors")
    alone = replace(parts, drafter=parts.drafter.clone(), target=parts.target.clone())
    for role in ("drafter", "target"):
        model = getattr(alone, role)
        control = load_control_file(str(tmp_path / "vace.safetensors"), model, role)
        check_control(model, control, role)
        model.set_attachments(CONTROL, control)
        assert control.model_size() == sum(w.nbytes for w in control_weights(config=CONFIG, blocks=1).values())
    assert same_video(video_of(job_of(alone, controlled)), wanted)
    alone.target.get_attachment(CONTROL).load(torch.device("cpu"), lowvram_model_memory=1)
    assert same_video(video_of(job_of(alone, controlled)), wanted)


def refusal_of(job):
    with pytest.raises(BadInput) as refusal:
        video_of(job)
    return str(refusal.value)


PICTURE = torch.rand(1, 32, 32, 3)


@pytest.mark.parametrize(
    "inputs, words",
    [
        ({"length": 61, "reference_image": PICTURE}, "reference image"),
        ({"reference_image": PICTURE}, "the first frame"),
        ({"length": 57}, "set length 69"),
        ({"width": 64}, "the control is 64x32"),
    ],
)
def test_control_that_does_not_fit_is_refused(inputs, words, parts):
    """Catches: frames of another video, or a picture that no block sees."""
    assert words in refusal_of(job_of(parts, positive(parts, **inputs)))


def test_control_after_a_short_clip_may_be_as_short(parts):
    """A clip of five frames is held to fill a block. Catches: a length asked for that counts the frames held."""
    clip = StartValue(CLIP[:5], EXTEND, "", "")

    def controlled(length):
        return with_inputs(job_of(parts, positive(parts, length=length)), blocks=3, start=clip)

    assert "set length 41" in refusal_of(controlled(37))
    assert len(video_of(controlled(41))[0]) == 41


def test_control_of_a_later_prompt_is_refused(parts):
    """Catches: a control that is wired and never seen."""
    controlled = positive(parts)
    prompts = (PromptEntry(0, controlled, "a"), PromptEntry(2, controlled, "b"))
    assert "from block 3 on carries VACE frames" in refusal_of(job_of(parts, None, prompts=prompts))


def another_vace(folder, **changes):
    """Return a VACE MODEL with attributes of it or of its transformer replaced."""
    patcher = load_vace(folder, 3, CONFIG, 1)
    for name, value in changes.items():
        setattr(patcher if hasattr(patcher, name) else patcher.model.diffusion_model, name, value)
    return patcher


def float16_vace(folder):
    """Return a VACE MODEL that computes in float16, as nodes may choose it."""
    patcher = another_vace(folder)
    patcher.add_object_patch("manual_cast_dtype", torch.float16)
    return patcher


SMALL_TOKENS = torch.nn.Conv3d(CONTROL_CHANNELS, CONFIG.dim, 1)
MODULES = {
    "no control module": None,
    "no VACE blocks": load_model,
    "a width of 128": lambda folder: load_vace(folder, 3, replace(CONFIG, dim=128), 1),
    "tokens of (1, 1, 1)": lambda folder: another_vace(folder, vace_patch_embedding=SMALL_TOKENS),
    "its control on meta": lambda folder: another_vace(folder, load_device=torch.device("meta")),
    "its control in float16": float16_vace,
}


@pytest.mark.parametrize("words", MODULES)
def test_module_that_does_not_fit_is_refused(words, parts, tmp_path):
    """Catches: a control that one model obeys and the other does not."""
    target = attach_origin(load_model(tmp_path), preset=get_preset("krea-14b"))
    if MODULES[words]:
        target.set_attachments(CONTROL, MODULES[words](tmp_path))
    assert words in refusal_of(job_of(replace(parts, target=target), positive(parts)))


FRAME = torch.rand(1, 32, 18, 4, 4)
MASK = torch.rand(1, 64, 18, 4, 4)
VACE = "vace_frames, vace_mask, vace_strength do not fit together"
LATER = "sdvg_later is not SDVG Prompt's"
STRENGTHS = "sdvg_strengths is not SDVG Prompt's"
# What a conditioning carries, and what is said of it.
JUNK = [
    *(
        (dict(zip(VACE_KEYS, parts, strict=True)), VACE)
        for parts in (
            ("x", [MASK], [1.0]),
            (3, [MASK], [1.0]),
            (FRAME, MASK, torch.ones(1)),
            ([FRAME], None, None),
            (None, [MASK], [1.0]),
            ([FRAME, FRAME], [MASK], [1.0]),
            ([FRAME], ["x"], [1.0]),
            ([FRAME], [MASK], ["x"]),
        )
    ),
    *(
        (dict(zip(VACE_KEYS, ([FRAME], [MASK], [strength]), strict=True)), f"the control's strength is {strength}")
        for strength in (10.5, -0.5, float("nan"))
    ),
    *(({"sdvg_later": junk}, LATER) for junk in ("x", ("x",))),
    *(
        ({"sdvg_strengths": (junk,)}, STRENGTHS)
        for junk in (3, (), (1,), ("x", "light"), (1, 0.5), (-1, "light"), (True, "light"), (1, "light", 2))
    ),
    ({"start_percent": "x"}, "only some denoising steps"),
]


@pytest.mark.parametrize(("carried", "words"), JUNK, ids=range(len(JUNK)))
def test_conditioning_that_holds_nonsense_is_refused(parts, carried, words):
    """The kind: what another pack puts under a key that we read. Catches: a trace, or a control without effect."""
    assert words in refusal_of(job_of(parts, [[torch.randn(1, 512, 32), carried]]))


def test_embedding_with_nan_is_refused(parts):
    embedding = torch.full((1, 512, 32), torch.nan)
    assert "NaN or infinity" in refusal_of(job_of(parts, [[embedding, {}]]))


def test_conditioning_for_all_denoising_steps_is_taken(parts):
    """Catches: a range that leaves nothing out, refused."""
    extras = {"end_percent": None, "start_percent": 0}
    assert video_of(job_of(parts, [[torch.ones(1, 512, 32), extras]]))


def test_kept_first_frame_is_no_reference_image(parts):
    """Inpainting from the first frame. Catches: any mask of zeros taken for a reference."""
    mask = torch.ones(FRAMES, 32, 32)
    mask[:4] = 0
    frames, *_ = video_of(job_of(parts, positive(parts, control_masks=mask)))
    assert len(frames) == FRAMES
