"""Checkpoint files as MODELs, also those that ComfyUI's own loader refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from host_tiny import STATED, random_weights
from random_set import write_random_set
from safetensors.torch import save_file
from sdvg_pack.nodes.host.files import load_checkpoint, load_model
from sdvg_pack.nodes.host.model import attach_preset, dictionary_of, file_notes, preset_of
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.errors import BadInput
from test_host_model import scaled_fp8

pytestmark = pytest.mark.comfyui


def test_a_training_checkpoint_loads_and_can_be_loaded_again_for_another_device(tmp_path: Path) -> None:
    """ComfyUI's device nodes call `cached_patcher_init`; without it they leave the MODEL where it is."""
    files = write_random_set(tmp_path)
    for path in (files.drafter, files.target):
        model = load_model(str(path), "default")
        again, arguments = model.cached_patcher_init[:2]
        twin = again(*arguments, disable_dynamic=True)
        assert twin.model is not model.model
        weights, same = (m.model.diffusion_model.state_dict() for m in (model, twin))
        assert all(torch.equal(weights[name], same[name]) for name in weights)
        assert float(weights["blocks.0.self_attn.q.weight"].float().std()) > 0, (
            "the averaged weights, not the zeros"
        )


@pytest.mark.parametrize(
    "weights, taken", [("ema", "generator_ema"), ("raw", "generator"), ("auto", "generator_ema")]
)
def test_the_weights_asked_for_are_loaded_also_for_another_device(tmp_path: Path, weights: str, taken: str) -> None:
    """Catches a reload that forgets which dictionary it was; the raw weights of this file are all zero."""
    files = write_random_set(tmp_path)
    model = load_checkpoint(str(files.drafter), "default", None, weights)
    again, arguments = model.cached_patcher_init[:2]
    for one in (model, model.clone(), again(*arguments)):
        assert dictionary_of(one) == taken
        spread = float(one.model.diffusion_model.state_dict()["blocks.0.self_attn.q.weight"].float().std())
        assert (spread == 0) is (taken == "generator")
        assert bool(file_notes(one)) is (weights == "auto")


def test_a_preset_states_the_weights_unless_the_loader_does(tmp_path: Path) -> None:
    path, raw = str(write_random_set(tmp_path).drafter), get_preset("causal-forcing")
    assert dictionary_of(load_checkpoint(path, "default", raw)) == "generator"
    assert dictionary_of(load_checkpoint(path, "default", raw, "ema")) == "generator_ema"
    assert file_notes(load_checkpoint(path, "default", raw)) == ()


def test_a_known_file_leads_to_its_preset_unless_the_loader_states_one(tmp_path: Path) -> None:
    (tmp_path / "chunkwise").mkdir()
    path = write_random_set(tmp_path).drafter.rename(tmp_path / "chunkwise" / "causal_forcing.pt")
    known = load_checkpoint(str(path), "default", None)
    assert (preset_of(known).name, dictionary_of(known)) == ("causal-forcing", "generator")
    (note,) = file_notes(known.clone())
    assert note.startswith("causal_forcing.pt is run with the preset causal-forcing, ")
    stated = load_checkpoint(str(path), "default", get_preset("longlive-1.0"))
    assert (preset_of(stated).name, file_notes(stated)) == ("longlive-1.0", ())


def test_a_preset_travels_with_every_clone_of_its_model(tmp_path: Path) -> None:
    """LoRA and device nodes hand on clones."""
    model = attach_preset(load_model(str(write_random_set(tmp_path).target), "default"), get_preset("longlive-1.0"))
    assert preset_of(model.clone().clone()) == get_preset("longlive-1.0")


def test_a_model_of_another_loader_is_known_by_its_size(tmp_path: Path) -> None:
    model = load_model(str(write_random_set(tmp_path).target), "default")
    with pytest.raises(BadInput, match=r"1\.3B or 14B"):
        preset_of(model)
    tree = model.model.diffusion_model
    for config, name in ((WAN_1_3B, "self-forcing-1.3b"), (WAN_14B, "krea-14b")):
        for field in ("dim", "ffn_dim", "num_layers", "num_heads"):
            assert hasattr(tree, field)
            setattr(tree, field, getattr(config, field))
        assert preset_of(model).name == name


def test_a_file_with_the_short_name_of_safetensors_loads_as_one_with_the_long_name(tmp_path: Path) -> None:
    """ComfyUI's loader knows scaled fp8, and takes both names."""
    paths = [tmp_path / f"model{suffix}" for suffix in (".safetensors", ".sft")]
    for path in paths:
        save_file(scaled_fp8(random_weights()), path, {"config": json.dumps({"transformer": STATED})})
    long, short = (load_model(str(path), "default").model.diffusion_model.state_dict() for path in paths)
    assert long.keys() == short.keys()
