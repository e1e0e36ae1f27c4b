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
def test_lora_changes_only_weights_it_names(files, checkpoint, tmp_path, how):
    """Catches: alpha left out, a strength squared, halves in the wrong order."""
    save_file(spelled(checkpoint, how), tmp_path / "style.safetensors")
    lora = find_lora(f"{tmp_path / 'style.safetensors'}:0.5", checkpoint)
    plain = load_wan(files.drafter).tree
    merged = load_wan(files.drafter, loras=[lora]).tree
    scale = 0.5 * (1 / RANK if how in ("ComfyUI", "kohya") else 1.0)
    for name, weight in plain.state_dict().items():
        expected = weight
        layer = name.removesuffix(".weight")
        if layer in LAYERS:
            down, up = halves(weight.shape, list(LAYERS).index(layer))
            expected = (weight.float() + scale * up @ down).to(weight.dtype)
            assert not torch.equal(expected, weight)
        assert torch.equal(merged.get_parameter(name), expected), name


def test_difference_is_added_to_a_bias(files, checkpoint, tmp_path):
    bias = checkpoint.weights["blocks.0.ffn.0.bias"]
    save_file({"diffusion_model.blocks.0.ffn.0.diff_b": torch.ones_like(bias)}, tmp_path / "a.safetensors")
    lora = find_lora(f"{tmp_path / 'a.safetensors'}:2", checkpoint)
    merged = load_wan(files.drafter, dtype=torch.float32, loras=[lora]).tree
    assert torch.equal(merged.get_parameter("blocks.0.ffn.0.bias"), bias.float() + 2)


def wrong_loras(checkpoint) -> dict[str, tuple[dict[str, torch.Tensor], type[BadInput], str]]:
    """Return the tensors of files that do not fit, the error, and a keyword of it."""
    tensors = spelled(checkpoint, "ComfyUI")
    q = "diffusion_model.blocks.0.self_attn.q"
    ffn = "diffusion_model.blocks.1.ffn.0"
    down, up = halves(checkpoint.weights.info["blocks.1.ffn.0.weight"].shape, 0)
    turned = {f"{ffn}.lora_down.weight": up.T, f"{ffn}.lora_up.weight": down.T}
    deeper = {name.replace("blocks.1", "blocks.77"): x for name, x in tensors.items() if "blocks.1" in name}
    small = {name: torch.ones(RANK, RANK) for name in tensors if "alpha" not in name}
    bias = "diffusion_model.blocks.1.ffn.0.bias"
    of_bias = {f"{bias}.lora_down.weight": torch.ones(RANK, 1), f"{bias}.lora_up.weight": up[:, :RANK]}
    half = {name: x for name, x in tensors.items() if "up" not in name}
    of_q = {name: x for name, x in tensors.items() if name.startswith(q)}
    ones = torch.ones(2)
    other_q = {"transformer.blocks.0.attn1.to_q.lora_A.weight": down}
    return {
        "of a deeper model": (deeper, OtherModel, r"no layer of this model, but \S+blocks.77.ffn.0"),
        "of a narrower model": (small, OtherModel, r"does not fit blocks.\S+ of \("),
        "halves turned": (turned, OtherModel, "does not fit blocks.1.ffn.0.weight"),
        "a scale turned": (
            {**of_q, f"{q}.dora_scale": ones},
            OtherModel,
            "does not fit blocks.0.self_attn.q.weight",
        ),
        "a bias with lengths": (
            {**of_bias, f"{bias}.dora_scale": up[:, 0]},
            OtherModel,
            "does not fit blocks.1.ffn.0.bias",
        ),
        "two changes": ({**tensors, f"{q}.diff": ones}, BadInput, "changes blocks.0.self_attn.q.weight twice"),
        "two spellings": ({**tensors, **other_q}, BadInput, r"twice \(.*\.q\..*to_q"),
        "an unknown kind": ({**tensors, f"{q}.oft_blocks": ones}, BadInput, "q.oft_blocks in a.safetensors"),
        "one half": (half, IncompleteChange, r"has \S+ without its other part"),
        "two alphas": ({**tensors, f"{q}.alpha": ones}, BadInput, "q.alpha in a.safetensors is no finite number"),
    }


def test_lora_that_does_not_fit_is_refused(checkpoint, tmp_path):
    """Catches: another reason than the true one, or one without the first name that is not taken."""
    path = tmp_path / "a.safetensors"
    for tensors, error, keyword in wrong_loras(checkpoint).values():
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        with pytest.raises(BadInput, match=keyword) as refusal:
            find_lora(str(path), checkpoint)
        assert refusal.type is error


def test_file_without_a_lora_is_refused(checkpoint, files):
    with pytest.raises(BadInput, match="holds no LoRA"):
        find_lora(str(files.vae), checkpoint)


@pytest.mark.parametrize("strength", ["nan", "1e9"])
def test_impossible_strength_of_a_lora_is_refused(strength):
    with pytest.raises(BadInput, match="strength"):
        split_strength(f"a.safetensors:{strength}")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_infinite_number_in_a_lora_is_refused(files, checkpoint, tmp_path, capsys, bad):
    """Catches: the blame on the checkpoint, after all was loaded."""
    rows, columns = checkpoint.weights.info["blocks.0.self_attn.q.weight"].shape
    path = tmp_path / "style.safetensors"
    q = "diffusion_model.blocks.0.self_attn.q"
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


def test_lora_too_large_for_float16_is_refused(files, checkpoint, tmp_path):
    """The LoRA's own numbers fit into float16; its product, or its sum with the weight, does not."""
    path = tmp_path / "style.safetensors"
    q = "diffusion_model.blocks.0.self_attn.q"
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


@pytest.mark.parametrize(("policy", "notes"), [("first", 1), ("always-target", 0)])
def test_report_notes_blocks_without_the_lora(base, files, tmp_path, policy, notes):
    """Catches: blocks without the LoRA, unsaid; a note of a model that makes no block."""
    path = tmp_path / "style.safetensors"
    save_file(spelled(open_wan(files.target), "ComfyUI"), path)
    more = ["--prompt", "a red ball", "--blocks", "2", "--lora", str(path), "--policy", policy]
    assert generate(without(base, "tau"), tmp_path / "out", *more) == 0
    of_lora = [note for note in report(tmp_path / "out")["notes"] if "LoRA" in note]
    assert len(of_lora) == notes
    assert all("fits only the target" in note for note in of_lora)


def test_note_names_what_a_model_does_not_take(files, checkpoint, tmp_path):
    path = tmp_path / "style.safetensors"
    extra = "diffusion_model.blocks.0.cross_attn.k_img.lora_up.weight"
    save_file({**spelled(checkpoint, "ComfyUI"), extra: torch.ones(2)}, path)
    models = check_models(files, LoadOptions(target=CUSTOM, drafter=CUSTOM, loras=(f"{path}:2",))).models
    [of_target] = [note for note in models["target"].notes if "LoRA" in note]
    [of_drafter] = [note for note in models["drafter"].notes if "LoRA" in note]
    assert "fits only the drafter" in of_target
    assert f"nothing from 1 tensor of the LoRA style.safetensors:2, the first {extra}" in of_drafter


def test_lora_goes_to_the_model_it_fits_whole(files, checkpoint, tmp_path):
    """Catches: a LoRA of the longer of two models of one width that goes into the shorter one, without its end."""
    weights = checkpoint.weights
    short = tmp_path / "short.safetensors"
    save_file({name: weights[name].clone() for name in weights if not name.startswith("blocks.1.")}, short)
    path = tmp_path / "style.safetensors"
    save_file(spelled(checkpoint, "ComfyUI"), path)
    options = LoadOptions(target=CUSTOM, drafter=CUSTOM, loras=(str(path),))
    models = check_models(replace(files, target=short), options).models
    assert {role: len(model.loras) for role, model in models.items()} == {"drafter": 1, "target": 0}


def test_lora_that_changes_nothing_is_noted(files, checkpoint, tmp_path):
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


def identity(files, load: LoadOptions) -> tuple[str, str]:
    """Return the key of the drafter's blocks and the digest of the request."""
    key = file_part_keys(files, load, check_models(files, load).models).drafter
    return key, digest_of(request_fingerprint(files, load, VideoRequest(), read_prompt("a red ball")))


def test_config_of_a_lora_changes_the_keys(files, checkpoint, tmp_path):
    """Catches: blocks of another scale used again after the config was changed."""
    path = tmp_path / "adapter_model.safetensors"
    save_file(spelled(checkpoint, "PEFT"), path)
    load = LoadOptions(drafter=CUSTOM, target=CUSTOM, loras=(str(path),))
    identities = []
    for alpha in (2, 16):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": alpha}))
        identities.append(identity(files, load))
    assert all(first != second for first, second in zip(*identities, strict=True))


@pytest.mark.parametrize("change", ["mode", "strength", "values"])
def test_use_of_a_lora_changes_the_keys(files, checkpoint, tmp_path, change):
    """Catches: blocks of another strength or file used again, or merged ones in place of those added beside."""
    path = tmp_path / "style.safetensors"
    tensors = spelled(checkpoint, "ComfyUI")
    save_file(tensors, path)
    merged = LoadOptions(drafter=CUSTOM, target=CUSTOM, loras=(str(path),))
    before = identity(files, merged)
    if change == "values":
        save_file({name: 2 * tensor for name, tensor in tensors.items()}, path)
    changes = {"mode": {"lora_mode": "beside"}, "strength": {"loras": (f"{path}:0.5",)}, "values": {}}
    after = identity(files, replace(merged, **changes[change]))
    assert all(first != second for first, second in zip(before, after, strict=True))


@pytest.mark.parametrize("mode", ["merge", "beside"])
def test_report_states_the_mode(mode, files, checkpoint, base, tmp_path):
    """Catches: `--from` that makes another video, as the mode is in no report."""
    save_file(spelled(checkpoint, "ComfyUI"), tmp_path / "style.safetensors")
    more = ["--prompt", "a red ball", "--blocks", "2"]
    more += ["--lora", str(tmp_path / "style.safetensors"), "--lora-mode", mode]
    assert generate(base, tmp_path / "out", *more) == 0
    assert read_report(tmp_path / "out" / "report.json").load["lora_mode"] == mode


def test_fp8_weights_of_a_lora_are_noted(files, checkpoint, tmp_path):
    weights = {
        name: tensor.to(torch.float8_e4m3fn) for name, tensor in checkpoint.weights.items() if tensor.ndim == 2
    }
    save_file({**checkpoint.weights, **weights}, tmp_path / "drafter.safetensors")
    save_file(spelled(checkpoint, "ComfyUI"), tmp_path / "style.safetensors")
    models = replace(files, drafter=tmp_path / "drafter.safetensors", target=None)
    options = LoadOptions(drafter=CUSTOM, loras=(str(tmp_path / "style.safetensors"),))
    (note,) = check_models(models, options).models["drafter"].notes
    assert note.startswith("The drafter's weights are in fp8: those that the LoRA style.safetensors:1 changes are")


def test_training_checkpoint_gives_the_generators_lora(checkpoint, tmp_path):
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
            expected = (weight.float() + up @ down).to(weight.dtype)
            assert torch.equal(lora.applied(f"{layer}.weight", weight), expected)


def test_lora_changes_video_and_is_reported(base, checkpoint, tmp_path, capsys):
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
