"""Memory layouts on the command line: the same video in each, a refusal where none fits, and the target in fp8."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_encoder, load_models, plan_memory
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import ROUTE_PRESETS
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos.asked import Batch
from sdvg_core.videos.film import resolve_film
from sdvg_core.videos.fingerprint import digest_of, request_fingerprint
from sdvg_core.videos.maker import make_videos
from sdvg_core.weights import quantized, weight_file
from sdvg_core.weights.latents import load_latents
from sdvg_core.weights.quantized import Fp8Linear
from tests.support.cli_runs import refused

PROMPT = "a big blue ball drifts right from the left over sand"
REQUEST = VideoRequest(blocks=3, width=64, height=64, route=ROUTE_PRESETS["balanced"])
FILES = trained_set()


def planned(vram: float, **changes: object):
    load = replace(pocket_options(), vram=vram, **changes)
    checked = check_models(FILES, load)
    needed = resolve_film(REQUEST, checked).models_needed
    return plan_memory(checked.restrict_to(needed), load, 64, 64, REQUEST.blocks)


def render(folder, **changes: object):
    load = replace(pocket_options(), **changes)
    batch = Batch(files=FILES, load=load, request=REQUEST, prompts=(one_prompt(PROMPT),), output=folder)
    ((_, report),) = make_videos(batch)
    return load_latents(folder / "latents.safetensors").latents, report


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return render(tmp_path_factory.mktemp("usual"))


def test_streamed_layers_make_the_same_video(usual, tmp_path):
    """Catches a layer that is streamed and never copied. That a layout is no request, test_every_setting proves."""
    latents, plain = usual
    for role, vram in (("target", 0.0471), ("drafter", 0.0386)):
        layout = planned(vram)
        assert [*layout.streamed][-1] == role
        streamed, report = render(tmp_path / role, vram=vram)
        assert torch.equal(streamed, latents)
        [note] = set(report.notes) - set(plain.notes)
        copied = layout.copied[role] / 1e6
        resident = report.settings[role]["bytes"] / 1e6 - copied
        assert note.startswith("Memory: drafter ")
        assert f"{role} {resident:.1f} MB on the device and {copied:.1f} MB copied over in every pass" in note
        assert f"planned peak {layout.peak / 1e6:.1f} MB" in note


def test_target_is_planned_in_its_new_dtype():
    """Catches: a plan of the file's weights, where the run rounds them to fp8."""
    whole = planned(1.0)
    rounded_target = planned(1.0, weight_dtype="fp8_e4m3fn")
    assert rounded_target.peak < whole.peak


@pytest.mark.parametrize("role", ["drafter", "target"])
def test_pair_is_planned_in_its_wider_dtype(role):
    """Catches: the activations of a float32 model counted at half of their bytes, as the other is in bfloat16."""
    load = replace(pocket_options(), vram=24.0)
    checked = check_models(FILES, load)
    model = checked.models[role]
    narrow = replace(model, checkpoint=replace(model.checkpoint, dtype=torch.bfloat16))
    pair = replace(checked, models={**checked.models, role: narrow})
    assert plan_memory(pair, load, 64, 64, REQUEST.blocks).request.dtype == "float32"


def test_refusal_names_two_ways_to_save_memory():
    with pytest.raises(BadInput) as refusal:
        planned(0.03)
    assert "less memory than the video needs" in str(refusal.value)
    assert "--vae-dtype bfloat16 saves" in str(refusal.value)
    assert " or " in str(refusal.value)


COMMAND = ["generate", "--models", "pocket", "--prompt", PROMPT]


def test_too_little_memory_is_refused_before_loading(capsys, tmp_path):
    assert main([*COMMAND, "--output", str(tmp_path / "out"), "--vram", "0.001"]) == 2
    printed = capsys.readouterr()
    assert "less memory than the video needs" in printed.err
    assert "loading" not in printed.out


@pytest.mark.parametrize("value", ["0", "-1", "nan", "much"])
def test_impossible_memory_is_refused(capsys, tmp_path, value):
    assert "vram" in refused(capsys, [*COMMAND, "--output", str(tmp_path / "out"), "--vram", value])


def test_streamed_text_encoder_gives_the_same_bits():
    whole = load_encoder(FILES, replace(pocket_options(), vram="all"))
    streamed = load_encoder(FILES, replace(pocket_options(), vram=0.0001))
    assert torch.equal(whole(PROMPT), streamed(PROMPT))


def test_stated_tokenizer_is_read(tmp_path):
    """Catches: the option, passed over where the text encoder is loaded."""
    (tmp_path / "spiece.model").write_text("no tokenizer")
    with pytest.raises(BadInput, match=r"spiece\.model"):
        load_encoder(replace(FILES, tokenizer=tmp_path / "spiece.model"), pocket_options())


def test_fp8_rounds_only_linear_weights():
    plain = load_wan(FILES.target, fp8=False).tree
    rounded = load_wan(FILES.target, fp8=True).tree
    linear = {name for name, module in plain.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, module in rounded.named_modules() if isinstance(module, Fp8Linear)} == linear
    weights = rounded.state_dict()
    for name, tensor in plain.state_dict().items():
        of_linear = name.rpartition(".")[0] in linear and name.endswith(".weight")
        expected = tensor.to(torch.float8_e4m3fn) if of_linear else tensor
        assert weights[name].dtype == expected.dtype
        assert torch.equal(weights[name].float(), expected.float())


def test_fp8_is_of_the_target_alone(tmp_path, usual):
    latents, report = render(tmp_path, weight_dtype="fp8_e4m3fn")
    assert report.settings["target"]["quantisation"] == "fp8_e4m3fn, as asked"
    assert report.settings["drafter"]["quantisation"] == "none"
    assert report.settings["target"]["bytes"] < 0.4 * usual[1].settings["target"]["bytes"]
    assert not torch.equal(latents, usual[0])


def test_each_weight_file_is_opened_once(tmp_path, monkeypatch):
    """Catches a loader that opens again what the check of the headers has open."""
    new = {
        role: Path(shutil.copy(getattr(FILES, role), tmp_path)) for role in ("drafter", "target", "vae", "reward")
    }
    files = replace(FILES, **new)
    opened: list[str] = []
    safe_open = weight_file.safe_open

    def noted_open(path: str, **options: Any) -> Any:
        opened.append(Path(path).name)
        return safe_open(path, **options)

    monkeypatch.setattr(weight_file, "safe_open", noted_open)
    options = pocket_options()
    load_models(files, options, check_models(files, options))
    assert sorted(opened) == sorted(path.name for path in new.values())


@pytest.fixture
def products_on_a_cpu(monkeypatch):
    """Let torchao multiply in fp8 on a CPU, which it can do and refuses, as it is slow."""
    quant_api = pytest.importorskip("torchao.quantization.quant_api")
    monkeypatch.setattr(quantized, "capability", lambda device: quantized.ADA)
    monkeypatch.setattr(quant_api, "is_sm_at_least_89", lambda: True)
    monkeypatch.setattr(quant_api, "_check_hardware_support", lambda granularity: None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stored", [False, True])
def test_fp8_products_are_those_of_rounded_rows(products_on_a_cpu, stored):
    """Also of weights that are stored in fp8, and of a row of zeros, such as a padded text token."""

    def load() -> nn.Module:
        return load_wan(FILES.target, dtype=torch.bfloat16, fp8=stored).tree

    layer = load().blocks[0].self_attn.q
    fast = quantized.multiply_in_fp8(load(), torch.device("cpu")).blocks[0].self_attn.q
    x = torch.randn((1, 40, layer.in_features), generator=torch.Generator().manual_seed(0)).bfloat16()
    x[0, 3] = 0
    expected = rounded(x[0, 4:]) @ rounded(layer.weight).T + layer.bias.float()
    assert deviation(fast(x)[0, 4:], expected) < 0.016 < deviation(layer(x)[0, 4:], expected)
    assert torch.equal(fast(x)[0, 3], layer.bias)


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Round to fp8 with a scale for each row."""
    values, scale = quantized.quantized(tensor.float(), torch.float8_e4m3fn, torch.ones(2))
    return values.float() * scale


def deviation(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    return float((tensor.float() - expected).norm() / expected.norm())


@pytest.mark.exhaustive
def test_fp8_products_make_nearly_the_same_video(products_on_a_cpu, tmp_path):
    whole, plain = render(tmp_path / "whole", dtype="bfloat16")
    fast, report = render(tmp_path / "fast", dtype="bfloat16", weight_dtype="fp8_e4m3fn_fast")
    assert 0.01 < deviation(fast[:, :, :3], whole[:, :, :3].float()) < 0.1
    assert report.settings["target"]["quantisation"] == "fp8_e4m3fn_fast, as asked"
    assert report.settings["target"]["bytes"] < 0.52 * plain.settings["target"]["bytes"]
    load = replace(pocket_options(), dtype="bfloat16")
    keys = {
        digest_of(request_fingerprint(FILES, replace(load, weight_dtype=name), REQUEST, one_prompt(PROMPT)))
        for name in ("default", "fp8_e4m3fn", "fp8_e4m3fn_fast")
    }
    assert len(keys) == 3


def test_fp8_products_are_refused_without_hardware(capsys, monkeypatch, tmp_path):
    command = [*COMMAND, "--output", str(tmp_path / "out"), "--weight-dtype", "fp8_e4m3fn_fast"]
    assert "add --dtype bfloat16" in refused(capsys, command)
    command += ["--dtype", "bfloat16"]
    assert "needs an NVIDIA GPU" in refused(capsys, command)
    monkeypatch.setattr(quantized, "capability", lambda device: quantized.ADA)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    assert "needs torchao" in refused(capsys, command)


def test_fp8_products_need_the_whole_target_in_memory():
    load = replace(pocket_options(), dtype="bfloat16", weight_dtype="fp8_e4m3fn_fast")
    with pytest.raises(BadInput, match="does not fit whole"):
        load_models(FILES, load, check_models(FILES, load), SimpleNamespace(streamed={"target": 1}))
