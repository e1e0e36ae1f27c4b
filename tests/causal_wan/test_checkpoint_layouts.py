import dataclasses
import json
from pathlib import Path

import pytest
import torch
from wan_files import NARROW, NARROW_METADATA, TINY, assert_same_tensors, prefixed, random_state, save

from sdvg_core.causal_wan.checkpoint import inspect_weights, load_wan, open_wan
from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, wan_shapes
from sdvg_core.checkpoints.weights import TensorInfo, WeightFile, open_weights


def shapes_of(config, metadata):
    info = {name: TensorInfo(shape, torch.bfloat16) for name, shape in wan_shapes(config).items()}
    return WeightFile(Path("wan.safetensors"), "shapes", info, {}.get, {name: name for name in info}, metadata)


@pytest.mark.parametrize("config, billions", [(WAN_1_3B, 1.419), (WAN_14B, 14.288)])
def test_the_published_sizes_have_the_published_number_of_parameters(config, billions):
    assert config.parameters / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize("config", [WAN_1_3B, WAN_14B, TINY])
def test_the_sizes_are_read_off_the_shapes(config):
    assert inspect_weights(shapes_of(config, {})).config == config


def test_metadata_overrides_what_the_shapes_suggest():
    stated = {
        "config": json.dumps({"transformer": {"num_heads": 20, "text_len": 64, "eps": 1e-5, "causal_ar": True}})
    }
    config = inspect_weights(shapes_of(WAN_14B, stated)).config
    assert (config.num_heads, config.text_len, config.eps) == (20, 64, 1e-5)


@pytest.mark.parametrize("prefix", ["", "model.", "model.diffusion_model.", "diffusion_model."])
def test_every_usual_prefix_loads_bit_for_bit(tmp_path, prefix):
    state = random_state()
    path = save(tmp_path / "wan.safetensors", prefixed(state, prefix))
    found = open_wan(path)
    assert_same_tensors(load_wan(path).tree.state_dict(), state)
    assert found.config == TINY
    assert found.key_style == ("Wan names" if not prefix else f"Wan names under {prefix[:-1]}")
    assert (found.weights.layout, found.quantisation.label, found.unused) == ("safetensors", "none", ())
    assert found.weights.path.name == "wan.safetensors"


@pytest.mark.parametrize(
    "rename",
    [
        lambda n: f"model._fsdp_wrapped_module.{n}",
        lambda n: f"module.{n}",
        lambda n: f"_orig_mod.model.{n}",
        lambda n: "model." + n.replace("blocks.1.", "blocks.1._fsdp_wrapped_module._orig_mod."),
        lambda n: n.replace("ffn.", "ffn._checkpoint_wrapped_module."),
    ],
)
def test_training_wrappers_anywhere_in_a_name_are_removed(tmp_path, rename):
    state = random_state()
    path = save(tmp_path / "wan.safetensors", {rename(n): t for n, t in state.items()})
    assert_same_tensors(load_wan(path).tree.state_dict(), state)
    assert "training wrappers removed" in open_wan(path).key_style


def test_a_loaded_tree_is_frozen_reports_what_it_left_and_draws_nothing(tmp_path):
    """Narrow heads come from the metadata, rotary tables are passed over, and most tensors decide the dtype."""
    state = random_state(NARROW, dtype=torch.bfloat16)
    state = {n: t.float() if "norm" in n or "modulation" in n else t for n, t in state.items()}
    extra = {"model.freqs": torch.ones(3), "vae.weight": torch.ones(2)}
    path = save(tmp_path / "wan.sft", {**prefixed(state, "model."), **extra}, NARROW_METADATA)
    found, before = open_wan(path), torch.get_rng_state()
    loaded = load_wan(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.config, found.unused) == (NARROW, ("vae.weight",))
    assert not loaded.tree.training
    assert {(p.dtype, p.requires_grad) for p in loaded.tree.parameters()} == {(torch.bfloat16, False)}


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [None, torch.bfloat16, torch.float16, torch.float32])
def test_the_stored_dtype_is_kept_unless_another_is_asked_for(tmp_path, stored, asked):
    state = random_state(dtype=stored)
    loaded = load_wan(save(tmp_path / "wan.safetensors", state), dtype=asked)
    wanted = asked or stored
    assert loaded.ops.dtype == wanted
    assert_same_tensors(loaded.tree.state_dict(), {n: t.to(wanted) for n, t in state.items()})


def test_finding_out_what_a_file_is_reads_no_weight(tmp_path):
    """Catches asking a lazy mapping for a name in a way that reads the tensor."""

    def read(name):
        raise AssertionError(f"{name} was read")

    file = open_weights(save(tmp_path / "wan.safetensors", prefixed(random_state(), "model.")))
    found = inspect_weights(dataclasses.replace(file, read=read))
    assert found.config == TINY
