import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from wan_files import NARROW, NARROW_METADATA, TINY, assert_same_tensors, prefixed, random_state, save, save_hollow

from sdvg_core.causal_wan.checkpoint import inspect_weights, load_wan, open_wan
from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig, wan_shapes
from sdvg_core.causal_wan.modules import RMSNorm, WanTree
from sdvg_core.checkpoints.weights import TensorInfo, WeightFile, open_weights


def shapes_of(config, metadata):
    info = {name: TensorInfo(shape, torch.bfloat16) for name, shape in wan_shapes(config).items()}
    return WeightFile(Path("wan.safetensors"), "shapes", info, {}.get, {name: name for name in info}, metadata)


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


# --- memory

MIB = 1024 * 1024
WIDE = WanConfig(dim=1536, ffn_dim=8960, num_layers=16, num_heads=12)  # the widths of the 1.3B

CHILD = """
import sys, torch
from pathlib import Path
from sdvg_core.causal_wan.checkpoint import load_wan

def anonymous():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = anonymous()
loaded = load_wan(sys.argv[1], dtype=torch.bfloat16)
assert len(loaded.tree.blocks) == 16
print(anonymous() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_loading_never_holds_a_copy_of_the_model(tmp_path):
    """Catches reading the file whole, and cloning what could stay memory-mapped.

    The bound is a tenth of the file: 150 MB, and the largest tensor there is.
    """
    stated = {"config": json.dumps({"transformer": {"num_layers": WIDE.num_layers}})}
    path = save_hollow(tmp_path / "wan.safetensors", WIDE, stated)
    assert 1450 * MIB < path.stat().st_size < 1700 * MIB
    command = [sys.executable, "-c", CHILD, str(path)]
    grown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert int(grown.stdout) < 150 * MIB + 2 * 8960 * 1536


# --- the modules


@pytest.mark.parametrize("config", [TINY, NARROW, WAN_1_3B, WAN_14B], ids=["tiny", "narrow", "1.3B", "14B"])
def test_the_tree_has_exactly_the_tensors_of_a_checkpoint(config):
    with torch.device("meta"):
        tree = WanTree(config)
    assert {name: tuple(t.shape) for name, t in tree.state_dict().items()} == wan_shapes(config)


def test_the_layers_work_in_bfloat16_with_float32_statistics():
    """The root mean square is rounded before it is weighed; the patch embedding takes any dtype."""
    g = torch.Generator().manual_seed(0)
    norm = RMSNorm(64, 1e-6)
    torch.nn.init.normal_(norm.weight, generator=g)
    norm, x = norm.to(torch.bfloat16), torch.randn(5, 64, generator=g).bfloat16()
    assert torch.equal(norm(x), F.rms_norm(x.float(), (64,), eps=1e-6).bfloat16() * norm.weight)
    tree, x = WanTree(NARROW).to(torch.bfloat16), torch.randn(1, 3, 24, generator=g).bfloat16()
    for norm in (tree.blocks[0].norm1, tree.blocks[0].norm2, tree.blocks[0].norm3):
        assert torch.equal(norm(x), F.layer_norm(x, (24,), norm.weight, norm.bias, 1e-6))
    frames = torch.randn(1, 16, 2, 4, 4, generator=g)
    embedded = tree.patch_embedding(frames)
    assert embedded.dtype == torch.bfloat16
    assert torch.equal(embedded, tree.patch_embedding(frames.bfloat16()))
