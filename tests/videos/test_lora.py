"""LoRAs are merged into the weights they name, in every usual spelling; a file's other tensors are named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from sdvg_core.causal_wan.checkpoint import find_lora, load_wan, open_wan
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models, file_part_keys
from sdvg_core.report.run_report import read_report
from sdvg_core.settings.load import LoadOptions, ModelOptions, split_strength
from sdvg_core.settings.request import VideoRequest
from sdvg_core.text.prompts import read_prompt
from sdvg_core.videos.fingerprint import digest_of, request_fingerprint
from sdvg_core.weights.lora import IncompleteChange, OtherModel
from tests.support.cli_runs import generate, latents, options, refused, report, without
from tests.support.reuse_folders import PROMPT as ASKED
from tests.support.tiny import generator_of

LAYERS = {"blocks.0.self_attn.q": "blocks.0.attn1.to_q", "blocks.1.ffn.0": "blocks.1.ffn.net.0.proj"}
RANK = 2
CUSTOM = ModelOptions(preset="custom")


def halves(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator_of(seed)
    return torch.randn(RANK, shape[1], generator=g), torch.randn(shape[0], RANK, generator=g)


@pytest.fixture(scope="module")
def checkpoint(files):
    return open_wan(files.drafter)


def spelled(checkpoint, how: str) -> dict[str, torch.Tensor]:
    tensors = {}
    for number, (ours, theirs) in enumerate(LAYERS.items()):
        down, up = halves(checkpoint.weights.info[f"{ours}.weight"].shape, number)
        name, ends = {
            "ComfyUI": (f"diffusion_model.{ours}", ("lora_down.weight", "lora_up.weight")),
            "kohya": (f"lora_unet_{ours.replace('.', '_')}", ("lora_down.weight", "lora_up.weight")),
            "diffusers": (f"transformer.{theirs}", ("lora_A.weight", "lora_B.weight")),
            "PEFT": (f"base_model.model.{ours}", ("lora_A.default.weight", "lora_B.default.weight")),
        }[how]
        tensors |= {f"{name}.{ends[0]}": down, f"{name}.{ends[1]}": up}
        if how in ("ComfyUI", "kohya"):
            tensors[f"{name}.alpha"] = torch.tensor(1.0)
    return tensors


@pytest.mark.parametrize("how", ["ComfyUI", "kohya", "diffusers", "PEFT"])
def test_a_lora_changes_the_weights_it_names_and_no_other(files, checkpoint, tmp_path, how):
    """Catches: alpha left out, a strength squared, halves in the wrong order."""
    save_file(spelled(checkpoint, how), tmp_path / "style.safetensors")
    lora = find_lora(f"{tmp_path / 'style.safetensors'}:0.5", checkpoint)
    plain, merged = load_wan(files.drafter).tree, load_wan(files.drafter, loras=[lora]).tree
    scale = 0.5 * (1 / RANK if how in ("ComfyUI", "kohya") else 1.0)
    for name, weight in plain.state_dict().items():
        wanted = weight
        if (layer := name.removesuffix(".weight")) in LAYERS:
            down, up = halves(weight.shape, list(LAYERS).index(layer))
            wanted = (weight.float() + scale * up @ down).to(weight.dtype)
            assert not torch.equal(wanted, weight)
        assert torch.equal(merged.get_parameter(name), wanted), name


def test_a_difference_of_a_weight_or_a_bias_is_added(files, checkpoint, tmp_path):
    bias = checkpoint.weights["blocks.0.ffn.0.bias"]
    save_file({"diffusion_model.blocks.0.ffn.0.diff_b": torch.ones_like(bias)}, tmp_path / "a.safetensors")
    lora = find_lora(f"{tmp_path / 'a.safetensors'}:2", checkpoint)
    merged = load_wan(files.drafter, dtype=torch.float32, loras=[lora]).tree
    assert torch.equal(merged.get_parameter("blocks.0.ffn.0.bias"), bias.float() + 2)


def test_what_is_no_lora_for_the_model_is_refused_or_left_to_the_other(checkpoint, files, tmp_path):
    """The reason is the true one, with the first name that is not taken."""
    path = tmp_path / "a.safetensors"
    tensors = spelled(checkpoint, "ComfyUI")
    q = "diffusion_model.blocks.0.self_attn.q"
    ffn = "diffusion_model.blocks.1.ffn.0"
    down, up = halves(checkpoint.weights.info["blocks.1.ffn.0.weight"].shape, 0)
    turned = {f"{ffn}.lora_down.weight": up.T, f"{ffn}.lora_up.weight": down.T}
    deeper = {name.replace("blocks.1", "blocks.77"): x for name, x in tensors.items() if "blocks.1" in name}
    small = {name: torch.ones(RANK, RANK) for name in tensors if "alpha" not in name}
    half = {name: x for name, x in tensors.items() if "up" not in name}
    of_q = {name: x for name, x in tensors.items() if name.startswith(q)}
    refusals = (
        (deeper, OtherModel, r"no layer of this model, but \S+blocks.77.ffn.0.\S+; give a LoRA of Wan 2.1"),
        (small, OtherModel, r"does not fit blocks.\S+ of \("),
        (turned, OtherModel, r"does not fit blocks.1.ffn.0.weight of"),
        ({**of_q, f"{q}.dora_scale": torch.ones(2)}, OtherModel, r"does not fit blocks.0.self_attn.q.weight"),
        ({**tensors, f"{q}.diff": torch.ones(2)}, BadInput, r"changes blocks.0.self_attn.q.weight twice"),
        ({**tensors, "transformer.blocks.0.attn1.to_q.lora_A.weight": down}, BadInput, r"twice \(.*\.q\..*to_q"),
        ({**tensors, f"{q}.oft_blocks": torch.ones(2)}, BadInput, r"q.oft_blocks in a.safetensors is of a kind"),
        (half, IncompleteChange, r"has \S+ without its other part"),
        ({**tensors, f"{q}.alpha": torch.ones(2)}, BadInput, r"q.alpha in a.safetensors is no finite number"),
    )
    for wrong, error, message in refusals:
        save_file({name: tensor.contiguous() for name, tensor in wrong.items()}, path)
        with pytest.raises(BadInput, match=message) as refusal:
            find_lora(str(path), checkpoint)
        assert refusal.type is error
    with pytest.raises(BadInput, match=r"holds no LoRA, but \S+; give one"):
        find_lora(str(files.vae), checkpoint)
    for strength in ("nan", "1e9"):
        with pytest.raises(BadInput, match="strength"):
            split_strength(f"a.safetensors:{strength}")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_number_in_a_lora_is_named_when_it_is_opened(files, checkpoint, tmp_path, capsys, bad):
    """Catches: the blame on the checkpoint, after all was loaded."""
    rows, columns = checkpoint.weights.info["blocks.0.self_attn.q.weight"].shape
    path, q = tmp_path / "style.safetensors", "diffusion_model.blocks.0.self_attn.q"
    kinds = (
        {"lora_down.weight": (2, columns), "lora_up.weight": (rows, 2), "alpha": (), "dora_scale": (rows, 1)},
        {f"hada_w{n}_{half}": size for n in "12" for half, size in (("a", (rows, 2)), ("b", (2, columns)))},
        {"lokr_w1": (2, 2), "lokr_w2": (rows // 2, columns // 2)},
        {"diff_b": (rows,)},
    )
    for kind in kinds:
        for part in kind:
            tensors = {f"{q}.{name}": torch.full(size, bad if name == part else 0.1) for name, size in kind.items()}
            save_file(tensors, path)
            with pytest.raises(BadInput, match=rf"{part} in style.safetensors (holds NaN or inf|is no finite)"):
                find_lora(str(path), checkpoint)
    with patch("sdvg_core.loading.load.load_wan", side_effect=AssertionError("a model was read")):
        assert "in style.safetensors holds NaN" in refused(capsys, [*options(files), *ASKED, "--lora", str(path)])


def test_a_lora_that_is_too_large_for_the_dtype_is_named_when_it_is_opened(files, checkpoint, tmp_path):
    """The LoRA's own numbers fit into float16; its product, or its sum with the weight, does not."""
    path, q = tmp_path / "style.safetensors", "diffusion_model.blocks.0.self_attn.q"
    rows, columns = checkpoint.weights.info["blocks.0.self_attn.q.weight"].shape
    plain = {"lora_down.weight": torch.full((2, columns), 200.0), "lora_up.weight": torch.full((rows, 2), 200.0)}
    weight = checkpoint.weights["blocks.0.self_attn.q.weight"].float()
    half = replace(checkpoint, dtype=torch.float16)
    edge = {"diff": torch.where(weight > 0.05, 65519.96, 0.0)}
    for tensors in (plain, edge):
        save_file({f"{q}.{part}": tensor for part, tensor in tensors.items()}, path)
        with pytest.raises(BadInput, match=r"style.safetensors makes blocks.0.self_attn.q.weight too large"):
            find_lora(str(path), half)
        assert load_wan(files.drafter, dtype=torch.bfloat16, loras=[find_lora(str(path), checkpoint)])
    find_lora(f"{path}:0.5", half)


def test_the_model_that_a_lora_does_not_fit_is_named_in_a_note(base, files, checkpoint, tmp_path):
    """The kind: an option that applies to a part of the video. Catches: blocks without the LoRA, unsaid."""
    base = without(base, "tau")
    path = tmp_path / "style.safetensors"
    save_file(spelled(open_wan(files.target), "ComfyUI"), path)
    more = ["--prompt", "a red ball", "--blocks", "2", "--lora", str(path)]
    for route, notes in (
        (["--policy", "first"], 1),
        (["--policy", "always-target"], 0),
    ):
        assert generate(base, tmp_path / route[1], *more, *route) == 0
        said = [note for note in report(tmp_path / route[1])["notes"] if "LoRA" in note]
        sentence = "The LoRA style.safetensors:1 fits only the target: what the drafter makes lacks it."
        assert said == [sentence] * notes
    tensors = spelled(checkpoint, "ComfyUI")
    save_file({**tensors, "diffusion_model.blocks.0.cross_attn.k_img.lora_up.weight": torch.ones(2)}, path)
    headers = check_models(files, LoadOptions(target=CUSTOM, drafter=CUSTOM, loras=(f"{path}:2",)))
    assert [note for note in headers.models["target"].notes if "LoRA" in note] == [
        "The LoRA style.safetensors:2 fits only the drafter: what the target makes lacks it."
    ]
    assert [note for note in headers.models["drafter"].notes if "LoRA" in note] == [
        "The drafter takes nothing from 1 tensor of the LoRA style.safetensors:2, the first "
        "diffusion_model.blocks.0.cross_attn.k_img.lora_up.weight: it has no such layer, or in another shape. The "
        "rest is used."
    ]


def test_a_lora_that_changes_nothing_is_said_to(files, checkpoint, tmp_path):
    """Catches: no effect and no word, for halves of zeros and for a strength of 0."""
    path = tmp_path / "style.safetensors"
    tensors = spelled(checkpoint, "ComfyUI")
    zeros = {name: torch.zeros_like(tensor) if "up" in name else tensor for name, tensor in tensors.items()}
    models = replace(files, target=None)
    for content, strength, count in ((zeros, 1, 1), (tensors, 0, 1), (tensors, 1, 0)):
        save_file(content, path)
        headers = check_models(models, LoadOptions(drafter=CUSTOM, loras=(f"{path}:{strength}",)))
        notes = [note for note in headers.models["drafter"].notes if "changes nothing" in note]
        assert len(notes) == count


def test_a_config_beside_a_lora_belongs_to_the_identity(files, checkpoint, tmp_path):
    """Catches: blocks of another scale used again after the config was changed."""
    path = tmp_path / "adapter_model.safetensors"
    save_file(spelled(checkpoint, "PEFT"), path)
    load = LoadOptions(drafter=CUSTOM, target=CUSTOM, loras=(str(path),))
    part_keys = set()
    requests = set()
    for alpha in (2, 16):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": alpha}))
        part_keys.add(file_part_keys(files, load, check_models(files, load).models).drafter)
        requests.add(digest_of(request_fingerprint(files, load, VideoRequest(), read_prompt("a red ball"))))
    assert (len(part_keys), len(requests)) == (2, 2)


def test_the_mode_of_a_lora_belongs_to_the_identity(files, checkpoint, tmp_path):
    """Catches: merged blocks used again beside those of the other mode, which round otherwise."""
    save_file(spelled(checkpoint, "ComfyUI"), tmp_path / "style.safetensors")
    part_keys = set()
    requests = set()
    for mode in ("merge", "beside"):
        load = LoadOptions(
            drafter=CUSTOM, target=CUSTOM, loras=(str(tmp_path / "style.safetensors"),), lora_mode=mode
        )
        part_keys.add(file_part_keys(files, load, check_models(files, load).models).drafter)
        requests.add(digest_of(request_fingerprint(files, load, VideoRequest(), read_prompt("a red ball"))))
    assert (len(part_keys), len(requests)) == (2, 2)


@pytest.mark.parametrize("mode", ["merge", "beside"])
def test_a_report_repeats_the_mode(mode, files, checkpoint, base, tmp_path):
    """Catches: `--from` that makes another video, as the mode is in no report."""
    save_file(spelled(checkpoint, "ComfyUI"), tmp_path / "style.safetensors")
    more = ["--prompt", "a red ball", "--blocks", "2"]
    more += ["--lora", str(tmp_path / "style.safetensors"), "--lora-mode", mode]
    assert generate(base, tmp_path / "one", *more) == 0
    assert read_report(tmp_path / "one" / "report.json").load["lora_mode"] == mode


def test_weights_in_fp8_that_a_lora_changes_are_said_to_be_rounded_again(files, checkpoint, tmp_path):
    weights = {
        name: tensor.to(torch.float8_e4m3fn) for name, tensor in checkpoint.weights.items() if tensor.ndim == 2
    }
    save_file({**checkpoint.weights, **weights}, tmp_path / "drafter.safetensors")
    save_file(spelled(checkpoint, "ComfyUI"), tmp_path / "style.safetensors")
    models = replace(files, drafter=tmp_path / "drafter.safetensors", target=None)
    options = LoadOptions(drafter=CUSTOM, loras=(str(tmp_path / "style.safetensors"),))
    (note,) = check_models(models, options).models["drafter"].notes
    assert note.startswith("The drafter's weights are in fp8: those that the LoRA style.safetensors:1 changes are")


def test_a_training_checkpoint_of_loras_gives_the_generators(checkpoint, tmp_path):
    """LongLive's layout, with a critic's LoRA and the step. Catches: the critic's taken, the step as a LoRA."""
    tensors = spelled(checkpoint, "PEFT")
    critic = {name: torch.full_like(tensor, 9) for name, tensor in tensors.items()}
    for content in (
        {"generator_lora": tensors},
        {"critic_lora": critic, "generator_lora": tensors},
        {"critic_lora": critic, "generator_lora": tensors, "step": torch.tensor(3)},
        {"step": 3, "generator_lora": tensors, "critic_lora": critic, "optimizer": {"lr": torch.tensor(1e-4)}},
    ):
        torch.save(content, tmp_path / "lora.pt")
        lora = find_lora(str(tmp_path / "lora.pt"), checkpoint)
        assert len(lora.changes) == len(LAYERS)
        for number, layer in enumerate(LAYERS):
            weight = checkpoint.weights[f"{layer}.weight"]
            down, up = halves(weight.shape, number)
            assert torch.equal(
                lora.applied(f"{layer}.weight", weight), (weight.float() + up @ down).to(weight.dtype)
            )


def test_a_lora_makes_another_video_and_the_report_names_it(base, checkpoint, tmp_path, capsys):
    """Catches: a LoRA that is read and not used; a key that does not know of it."""
    base = without(base, "tau")
    more = ["--prompt", "a red ball", "--blocks", "2", "--policy", "first", "--forced-blocks", "0"]
    assert generate(base, tmp_path / "plain", *more) == 0
    path = tmp_path / "style.safetensors"
    save_file({name: 3 * tensor for name, tensor in spelled(checkpoint, "ComfyUI").items()}, path)
    assert generate(base, tmp_path / "style", *more, "--lora", f"{path}:1.5") == 0
    assert not torch.equal(latents(tmp_path / "plain"), latents(tmp_path / "style"))
    settings = report(tmp_path / "style")["settings"]["drafter"]
    assert (settings["loras"], settings["loras_and_patches"]) == (["style.safetensors:1.5"], 2)
    of_report = ["--blocks", "2", "--from", str(tmp_path / "style" / "report.json"), "--models"]
    assert generate(base, tmp_path / "same", *of_report, str(tmp_path)) == 0
    assert torch.equal(latents(tmp_path / "same"), latents(tmp_path / "style"))
    (tmp_path / "empty").mkdir()
    assert generate(base, tmp_path / "not", *of_report, str(tmp_path / "empty")) == 2
    assert "made with the LoRA style.safetensors, which is not in" in capsys.readouterr().err
    assert generate(base, tmp_path / "none", *more, "--lora", str(tmp_path / "nothing.safetensors")) == 2
