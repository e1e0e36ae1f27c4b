"""The control branch over ComfyUI's VACE modules, against ComfyUI's own VACE model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.sd
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from comfy_extras.nodes_wan import WanVaceToVideo
from host_clip import NOISE, SCHEDULE, SPANS, onto_device, text, with_lora
from host_run import Parts, load_parts, make_job, same_video, state_of, video_of
from host_tiny import CONFIG, SIZE, STATED, generator_of, load_model, random_weights
from safetensors.torch import save_file
from sdvg_pack.nodes.host.conditioning import VACE_KEYS, VACE_NODE, read_controls
from sdvg_pack.nodes.host.files import load_control_file
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.memory import memory_of
from sdvg_pack.nodes.host.model import CONTROL, attach_origin, check_control, comfy_wan, compute_dtype
from sdvg_pack.nodes.sockets import PromptEntry
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.checkpoint import load_control, open_control
from sdvg_pack.sdvg_core.causal_wan.config import WanConfig, control_shapes
from sdvg_pack.sdvg_core.causal_wan.context import Incremental
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator, Wan
from sdvg_pack.sdvg_core.causal_wan.presets import Preset, get_preset
from sdvg_pack.sdvg_core.checkpoints.weights import open_weights
from sdvg_pack.sdvg_core.engine.inputs import CONTROL_CHANNELS, BlockCall, ControlClip
from sdvg_pack.sdvg_core.engine.types import Condition, History
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.memory.plan import NAMES
from test_host_model import fp8
from thinned import in_turn
from torch import Tensor

pytestmark = pytest.mark.comfyui

HINTS = 2
SIZES = replace(CONFIG, num_layers=4)
"""With hints after every second layer, as at 1.3B; and of ten layers after every fifth, as at 14B."""
LAYERS = {"1.3B": SIZES, "14B": replace(CONFIG, num_layers=10)}
DEPTH, SCRIBBLE = (torch.randn(1, CONTROL_CHANNELS, 3, *SIZE, generator=generator_of(seed)) for seed in (77, 78))
STRENGTHS = {"none": (0.0,), "half": (0.5,), "whole": (1.0,), "two": (0.7, 0.4)}


def control_weights(config: WanConfig = SIZES, blocks: int = HINTS) -> dict[str, Tensor]:
    return random_weights(9, shapes=control_shapes(config, blocks))


def load_vace(
    folder: Path, seed: int, config: WanConfig = SIZES, blocks: int = HINTS, stored: Any = dict
) -> ModelPatcher:
    """A whole VACE checkpoint, as ComfyUI loads it; `seed`: of the transformer, which a control does not use."""
    path = folder / f"vace{seed}.safetensors"
    weights = stored({**random_weights(seed, config), **control_weights(config=config, blocks=blocks)})
    save_file(weights, path, metadata={"config": json.dumps({"transformer": STATED})})
    return comfy.sd.load_diffusion_model(str(path))


def clips_of(strengths: tuple[float, ...]) -> tuple[ControlClip, ...]:
    return tuple(ControlClip(clip, s) for clip, s in zip((DEPTH, SCRIBBLE), strengths, strict=False))


def controlled(tree: Any, ops: Any, module: Any, clips: tuple[ControlClip, ...]) -> Tensor:
    """The first block, by our forward pass."""
    preset = Preset(name="one", schedule="one-step")
    wan = Wan(tree=tree, ops=ops, preset=preset, device=torch.device("cpu"), control=module)
    generator = CausalWanGenerator(wan, name="model", context=Incremental(window=3))
    controls = tuple(control.at(SPANS[0]) for control in clips)
    call = BlockCall(History(), SPANS[0], NOISE, Condition(text(), "a"), controls=controls)
    return generator.generate(call).latents


@torch.inference_mode()
def native(patcher: ModelPatcher, clips: tuple[ControlClip, ...]) -> Tensor:
    """The same by ComfyUI's VACE model."""
    with torch.inference_mode(mode=False):
        onto_device(patcher)
    model, dtype, x = patcher.model.diffusion_model, compute_dtype(patcher), NOISE.draw(SPANS[0], 0)
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


@in_turn("strength, size", list(STRENGTHS), list(LAYERS))
def test_the_branch_over_comfyuis_modules_makes_what_comfyuis_vace_model_makes(
    strength: str, size: str, tmp_path: Path
) -> None:
    """Catches: hints after other layers, in another order, or of another strength."""
    clips, sizes = clips_of(STRENGTHS[strength]), LAYERS[size]
    wan = comfy_wan(onto_device(load_model(tmp_path, random_weights(0, sizes))), get_preset("custom"))
    module = onto_device(load_vace(tmp_path, 5, sizes)).model.diffusion_model
    ours, theirs = controlled(wan.tree, wan.ops, module, clips), native(load_vace(tmp_path, 0, sizes), clips)
    assert torch.allclose(ours, theirs, atol=2e-5), (ours - theirs).abs().max()
    plain = controlled(wan.tree, wan.ops, None, ())
    assert ((ours - plain).norm() > 0.05 * plain.norm()) == (strength != "none")
    save_file(control_weights(config=sizes), tmp_path / "module.safetensors")
    for file in ("module.safetensors", "vace5.safetensors"):
        found = open_control(open_weights(tmp_path / file), sizes, "target")
        own = load_control(found, device=torch.device("cpu"), dtype=torch.float32)
        by_own = controlled(wan.tree, TorchOps(torch.float32), own, clips)
        assert torch.allclose(by_own, theirs, atol=1e-4), (by_own - theirs).abs().max()


def lora_on_control(patcher: ModelPatcher) -> ModelPatcher:
    return with_lora(patcher, ("vace_blocks.0.self_attn.q", "vace_blocks.1.after_proj"), control_weights())


@pytest.mark.parametrize(("stored", "change"), [(fp8, lambda p: p), (dict, lora_on_control)], ids=["fp8", "lora"])
def test_what_the_host_does_to_a_control_model_shows_as_in_comfyuis_vace_model(
    stored: Any, change: Any, tmp_path: Path
) -> None:
    """Catches: weights that are read past the host's casts and patches."""
    clips = clips_of(STRENGTHS["two"])
    wan = comfy_wan(onto_device(load_model(tmp_path, stored(random_weights(0, SIZES)))), get_preset("custom"))
    changed, plain = (
        controlled(wan.tree, wan.ops, onto_device(control).model.diffusion_model, clips)
        for control in (change(load_vace(tmp_path, 5, stored=stored)), load_vace(tmp_path, 5))
    )
    theirs = native(change(load_vace(tmp_path, 0, stored=stored)), clips)
    assert torch.allclose(changed, theirs, atol=2e-5), (changed - theirs).abs().max()
    assert not torch.allclose(changed, plain, atol=1e-2)


# --- runs of the sampler, with what WanVaceToVideo writes

BLOCKS, FRAMES = 6, 69
CLIP = torch.rand(FRAMES, 32, 32, 3, generator=generator_of(4))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A drafter and a target, each with a VACE MODEL of its size in its loader's `control`."""
    folder = tmp_path_factory.mktemp("parts")
    found = load_parts(folder)
    for seed, role in enumerate(("drafter", "target")):
        getattr(found, role).set_attachments(CONTROL, load_vace(folder, seed, CONFIG, 1))
    return found


def positive(parts: Parts, clip: Tensor = CLIP, *, before: Any = None, **inputs: Any) -> Any:
    """A conditioning after WanVaceToVideo; `before`: one that it is chained to."""
    plain = [[torch.randn(1, 512, 32, generator=generator_of(0)), {}]] if before is None else before
    options = {"width": 32, "height": 32, "length": FRAMES, "batch_size": 1, "strength": 1.0, **inputs}
    return WanVaceToVideo.execute(plain, plain, parts.vae, control_video=clip, **options).args[0]


def job_of(parts: Parts, conditioning: Any, *, script: str = "raarar", **changes: Any) -> Job:
    return make_job(parts, script=script, **{"prompts": (PromptEntry(0, conditioning, "a ball"),), **changes})


def test_a_run_obeys_what_the_conditioning_carries_and_strength_zero_is_the_plain_video(parts: Parts) -> None:
    """Bit for bit, and nothing is left on the models. Catches: a control that only one of them sees."""
    plain = video_of(job_of(parts, [[torch.randn(1, 512, 32, generator=generator_of(0)), {}]]))
    before = state_of(parts)
    whole = video_of(job_of(parts, positive(parts)))
    assert state_of(parts) == before
    assert same_video(video_of(job_of(parts, positive(parts, strength=0.0))), plain)
    for block in range(BLOCKS):
        here = slice(3 * block, 3 * block + 3)
        assert not torch.equal(whole[1][:, :, here], plain[1][:, :, here])
    assert whole[2].settings["control_strengths"] == [1.0]


def test_chained_controls_are_read_as_comfyuis_own_model_reads_them(parts: Parts) -> None:
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


def test_the_memory_of_the_control_models_is_requested_and_their_passes_are_counted(parts: Parts) -> None:
    plain = job_of(parts, [[torch.randn(1, 512, 32), {}]])
    job = replace(job_of(parts, positive(parts)), controlled=True)
    with_it, without = memory_of(job), memory_of(plain)
    names = list(with_it.models)
    assert [name for name in names if name not in without.models] == ["target control", "drafter control"]
    (needed,), (less,) = with_it.needs.values(), without.needs.values()
    assert needed.total > less.total
    assert not [part for part in needed.parts if part.endswith("control")], "weights are ComfyUI's to count"
    assert set(names) <= set(NAMES), "the plan on a GPU names each"


def test_a_file_of_the_module_alone_makes_what_the_whole_vace_model_makes(parts: Parts, tmp_path: Path) -> None:
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


def refused(job: Job) -> str:
    with pytest.raises(BadInput) as error:
        video_of(job)
    return str(error.value)


def test_what_cannot_be_obeyed_is_refused_before_a_model_is_loaded(parts: Parts, tmp_path: Path) -> None:
    picture, controlled = torch.rand(1, 32, 32, 3), positive(parts)
    assert "reference image" in refused(job_of(parts, positive(parts, length=61, reference_image=picture)))
    assert "the first frame" in refused(job_of(parts, positive(parts, reference_image=picture)))
    assert "57 frames and the video 69; set length 69" in refused(job_of(parts, positive(parts, length=57)))
    assert "the control is 64x32 and the video 32x32" in refused(job_of(parts, positive(parts, width=64)))
    later = (PromptEntry(0, controlled, "a"), PromptEntry(2, controlled, "b"))
    assert "from block 3 on carries VACE frames" in refused(job_of(parts, None, prompts=later))
    bare = replace(parts, target=attach_origin(load_model(tmp_path), preset=get_preset("krea-14b")))
    assert "the target has no control module" in refused(job_of(bare, controlled))
    bare.target.set_attachments(CONTROL, load_model(tmp_path))
    assert "has no VACE blocks" in refused(job_of(bare, controlled))
    bare.target.set_attachments(CONTROL, load_vace(tmp_path, 3, replace(CONFIG, dim=128), 1))
    assert "control is for a width of 128, and the target has 64" in refused(job_of(bare, controlled))


FRAME, MASK = torch.rand(1, 32, 18, 4, 4), torch.rand(1, 64, 18, 4, 4)
JUNK = {
    "text": ("x", [MASK], [1.0]),
    "a number": (3, [MASK], [1.0]),
    "a tensor": (FRAME, MASK, torch.ones(1)),
    "frames alone": ([FRAME], None, None),
    "masks alone": (None, [MASK], [1.0]),
    "two for one": ([FRAME, FRAME], [MASK], [1.0]),
    "text for a mask": ([FRAME], ["x"], [1.0]),
    "text for a strength": ([FRAME], [MASK], ["x"]),
}


@pytest.mark.parametrize("junk", JUNK)
def test_keys_of_a_control_that_are_none_are_refused(parts: Parts, junk: str) -> None:
    """The kind: what another pack puts under a key that we read. Catches: a trace, or a control without effect."""
    carried = dict(zip(VACE_KEYS, JUNK[junk], strict=True))
    conditioning = [[torch.randn(1, 512, 32), carried]]
    said = refused(job_of(parts, conditioning))
    assert said == f"the conditioning's vace_frames, vace_mask, vace_strength do not fit together; {VACE_NODE}"


@pytest.mark.parametrize(
    ("embedding", "carried", "says"),
    [
        (1.0, {"sdvg_later": "x"}, "the conditioning's sdvg_later is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_later": ("x",)}, "the conditioning's sdvg_later is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": (3,)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": ((),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": ((1,),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": (("x", "light"),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": ((1, 0.5),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": ((-1, "light"),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": ((True, "light"),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"sdvg_strengths": ((1, "light", 2),)}, "sdvg_strengths is not SDVG Prompt's; encode"),
        (1.0, {"start_percent": "x"}, "for only some denoising steps"),
        (1.0, {"end_percent": None, "start_percent": 0}, ""),
        (float("nan"), {}, "the embedding holds NaN or infinity"),
    ],
)
def test_other_keys_and_numbers_of_a_conditioning_are_checked(
    parts: Parts, embedding: float, carried: dict[str, Any], says: str
) -> None:
    job = job_of(parts, [[torch.full((1, 512, 32), embedding), carried]])
    if says:
        assert says in refused(job)
    else:
        assert video_of(job)


def test_a_kept_first_frame_is_no_reference_image(parts: Parts) -> None:
    """Inpainting from the first frame. Catches: any mask of zeros taken for a reference."""
    mask = torch.ones(FRAMES, 32, 32)
    mask[:4] = 0
    frames, *_ = video_of(job_of(parts, positive(parts, control_masks=mask)))
    assert len(frames) == FRAMES
