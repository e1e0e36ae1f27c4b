"""LoRAs are merged into the weights they name, in every usual spelling; whatever else a file holds is refused."""

from __future__ import annotations

import pytest
import torch
from cli_runs import generate, latents, report
from safetensors.torch import save_file
from tiny import generator_of

from sdvg_core.causal_wan.checkpoint import find_lora, load_wan, open_wan
from sdvg_core.checkpoints.lora import split_strength
from sdvg_core.errors import BadInput

LAYERS = {"blocks.0.self_attn.q": "blocks.0.attn1.to_q", "blocks.1.ffn.0": "blocks.1.ffn.net.0.proj"}
RANK = 2


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
    path = tmp_path / "a.safetensors"
    tensors = spelled(checkpoint, "ComfyUI")
    save_file({**tensors, "diffusion_model.blocks.0.self_attn.q.dora_scale": torch.ones(2)}, path)
    with pytest.raises(BadInput, match=r"1 tensors, such as .*, which no plain LoRA has"):
        find_lora(str(path), checkpoint)
    save_file({name.replace("blocks.1", "blocks.77"): tensor for name, tensor in tensors.items()}, path)
    assert find_lora(str(path), checkpoint) is None
    save_file({name: torch.ones(RANK, RANK) for name in tensors}, path)
    assert find_lora(str(path), checkpoint) is None, "of another size"
    down, up = halves(checkpoint.weights.info["blocks.1.ffn.0.weight"].shape, 0)
    names = [f"diffusion_model.blocks.1.ffn.0.lora_{half}.weight" for half in ("down", "up")]
    save_file(dict(zip(names, (up.T.contiguous(), down.T.contiguous()), strict=True)), path)
    assert find_lora(str(path), checkpoint) is None, "as many numbers, but turned round"
    save_file({**tensors, "diffusion_model.blocks.1.ffn.0.diff": torch.ones(2)}, path)
    with pytest.raises(BadInput, match=r"changes blocks.1.ffn.0.weight twice"):
        find_lora(str(path), checkpoint)
    with pytest.raises(BadInput, match="holds no LoRA"):
        find_lora(str(files.vae), checkpoint)
    for strength in ("nan", "1e9"):
        with pytest.raises(BadInput, match="strength"):
            split_strength(f"a.safetensors:{strength}")


def test_a_lora_makes_another_video_and_the_report_names_it(base, checkpoint, tmp_path, capsys):
    """Catches: a LoRA that is read and not used; a key that does not know of it."""
    more = ["--prompt", "a red ball", "--blocks", "2", "--policy", "always-draft", "--forced-blocks", "0"]
    assert generate(base, tmp_path / "plain", *more) == 0
    path = tmp_path / "style.safetensors"
    save_file({name: 3 * tensor for name, tensor in spelled(checkpoint, "ComfyUI").items()}, path)
    again = [*more, "--lora", f"{path}:1.5", "--reuse", str(tmp_path / "plain")]
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
    assert generate(base, tmp_path / "again", *again) == 2
    assert "or other settings, or is damaged" in capsys.readouterr().err
    assert generate(base, tmp_path / "none", *more, "--lora", str(tmp_path / "nothing.safetensors")) == 2
