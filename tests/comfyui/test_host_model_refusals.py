"""Which MODELs and conditionings are refused, and which patches are said to have no effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_clip import text, with_lora
from host_run import Parts, make_job, same_video, video_of
from host_tiny import CONFIG, generator_of, load_model, random_weights
from sdvg_pack.nodes.host.conditioning import read_embedding
from sdvg_pack.nodes.host.model import check_loras, check_model
from sdvg_pack.nodes.host.run import run_job
from sdvg_pack.nodes.sockets import RouterValue
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.errors import BadInput
from torch import Tensor

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]


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
def test_a_conditioning_that_is_not_one_prompt_is_refused(conditioning: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_embedding(conditioning, CONFIG.text_dim)


def test_a_text_to_video_model_passes_plain_causal_or_with_lora(tmp_path: Path) -> None:
    plain, causal = load_model(tmp_path), load_model(tmp_path, causal=True)
    assert (
        check_model(plain, "drafter") == check_model(causal, "target") == check_model(with_lora(plain), "x") == ()
    )
    check_loras({"drafter": plain, "target": causal})


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
    "image-to-video": (image_to_video, "image-to-video model"),
    "2.2 5B": (lambda: with_channels(48, 48), "48 input and 48 output channels"),
    "fun control": (lambda: with_channels(32, 16), "32 input and 16 output channels"),
    "reference": (with_reference, "Fun control model"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_wan_model_is_refused_by_what_it_is(kind: str, tmp_path: Path) -> None:
    make, sentence = FOREIGN[kind]
    with pytest.raises(BadInput, match=f"the drafter is no Wan 2.1 transformer .found: {sentence}"):
        check_model(load_model(tmp_path, make()), "drafter")


def test_a_model_of_another_family_is_refused() -> None:
    base = torch.nn.Module()
    base.diffusion_model = torch.nn.Linear(1, 1)
    device = torch.device("cpu")
    with pytest.raises(BadInput, match="found: a model of another family"):
        check_model(ModelPatcher(base, device, device), "target")


def test_two_clones_of_one_model_are_refused(tmp_path: Path) -> None:
    model = load_model(tmp_path)
    with pytest.raises(BadInput, match="one loaded model with different LoRAs"):
        check_loras({"drafter": model, "target": with_lora(model)})


def test_patches_without_effect_are_named(tmp_path: Path) -> None:
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


def test_one_model_alone_makes_what_it_makes_beside_another(parts: Parts) -> None:
    both = make_job(parts, script="aaa", router=RouterValue(RouterConfig(policy="always-target"), None))
    assert same_video(video_of(both), video_of(replace(both, drafter=None)))
    drafts = RouterValue(RouterConfig(policy="first", forced_blocks=0), None)
    both = make_job(parts, script="aaa", router=drafts)
    only = video_of(replace(both, target=None))
    assert same_video(video_of(both), only)
    assert only[2].settings["target"] is None


def test_one_model_with_two_schedules_is_a_pair(parts: Parts) -> None:
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
