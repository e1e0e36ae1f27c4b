"""Checkpoints of the transformer: every layout, wrapper, dtype and quantisation loads to the same weights."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from wan_files import NARROW, NARROW_METADATA, TINY, assert_same_tensors, prefixed, random_state, save, save_hollow

from sdvg_core.causal_wan.checkpoint import find_lora, inspect_weights, load_wan, open_wan
from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig, wan_shapes
from sdvg_core.causal_wan.modules import RMSNorm, WanTree
from sdvg_core.errors import BadInput
from sdvg_core.weights.quantized import Fp8Linear
from sdvg_core.weights.weight_file import TensorInfo, WeightFile, open_weights
from tests.support.forked import fork


def shapes_of(config, metadata):
    info = {name: TensorInfo(shape, torch.bfloat16) for name, shape in wan_shapes(config).items()}
    return WeightFile(Path("wan.safetensors"), "shapes", info, {}.get, {name: name for name in info}, metadata)


@pytest.mark.parametrize("config", [WAN_1_3B, WAN_14B, TINY])
def test_sizes_are_read_off_the_shapes(config):
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
    file = open_wan(path)
    assert_same_tensors(load_wan(path).tree.state_dict(), state)
    assert file.config == TINY
    assert file.naming == ("Wan names" if not prefix else f"Wan names under {prefix[:-1]}")
    assert (file.weights.layout, file.quantisation.label, file.unused) == ("safetensors", "none", ())
    assert file.weights.path.name == "wan.safetensors"


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
def test_training_wrappers_are_removed_anywhere(tmp_path, rename):
    state = random_state()
    path = save(tmp_path / "wan.safetensors", {rename(n): t for n, t in state.items()})
    assert_same_tensors(load_wan(path).tree.state_dict(), state)
    assert "training wrappers removed" in open_wan(path).naming


@pytest.fixture
def mixed_file(tmp_path):
    """A bfloat16 model with norms in float32, heads stated in the metadata, and tensors that are none of it."""
    state = random_state(NARROW, dtype=torch.bfloat16)
    state = {n: t.float() if "norm" in n or "modulation" in n else t for n, t in state.items()}
    extra = {"model.freqs": torch.ones(3), "vae.weight": torch.ones(2)}
    return save(tmp_path / "wan.sft", {**prefixed(state, "model."), **extra}, NARROW_METADATA)


def test_tensors_beside_the_model_are_reported(mixed_file):
    """Catches: rotary tables, which are computed, reported as left out; heads guessed from the width."""
    file = open_wan(mixed_file)
    assert file.config == NARROW
    assert file.unused == ("vae.weight",)


def test_loaded_tree_is_frozen(mixed_file):
    """Catches: a dtype that the few norms decide, and not most tensors."""
    tree = load_wan(mixed_file).tree
    assert not tree.training
    assert {(p.dtype, p.requires_grad) for p in tree.parameters()} == {(torch.bfloat16, False)}


def test_loading_draws_no_random_number(mixed_file):
    before = torch.get_rng_state()
    load_wan(mixed_file)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [None, torch.bfloat16, torch.float16, torch.float32])
def test_stored_dtype_is_kept_unless_asked_otherwise(tmp_path, stored, asked):
    state = random_state(dtype=stored)
    loaded = load_wan(save(tmp_path / "wan.safetensors", state), dtype=asked)
    wanted = asked or stored
    assert loaded.ops.dtype == wanted
    assert_same_tensors(loaded.tree.state_dict(), {n: t.to(wanted) for n, t in state.items()})


@pytest.mark.parametrize(
    ("matrices", "rest", "wanted"),
    [
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float16, torch.float32, torch.float16),
        (torch.float8_e4m3fn, torch.float32, torch.bfloat16),
        (torch.float32, torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_dtype_is_that_of_most_parameters(tmp_path, matrices, rest, wanted):
    """Of 14B files the few large tensors. Catches: the dtype of the many small ones, of norms and biases."""
    state = random_state()
    small = [name for name, tensor in state.items() if tensor.ndim < 2 or "modulation" in name]
    assert len(small) > len(state) / 2
    mixed = {name: tensor.to(rest if name in small else matrices) for name, tensor in state.items()}
    assert open_wan(save(tmp_path / "wan.safetensors", mixed)).dtype == wanted


def test_inspection_reads_no_weight(tmp_path):
    """Catches asking a lazy mapping for a name in a way that reads the tensor."""

    def read(name):
        raise AssertionError(f"{name} was read")

    file = open_weights(save(tmp_path / "wan.safetensors", prefixed(random_state(), "model.")))
    checkpoint = inspect_weights(dataclasses.replace(file, read=read))
    assert checkpoint.config == TINY


# --- memory

MIB = 1024 * 1024
WIDE = WanConfig(dim=1536, ffn_dim=8960, num_layers=16, num_heads=12)  # the widths of the 1.3B


def anonymous() -> int:
    """Return the bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def write_growth(path: Path, grown: Path) -> None:
    """Load a model, and write down by how many bytes the process has grown."""
    before = anonymous()
    loaded = load_wan(path, dtype=torch.bfloat16)
    assert len(loaded.tree.blocks) == WIDE.num_layers
    grown.write_text(str(anonymous() - before))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_loading_never_holds_a_copy_of_the_model(tmp_path):
    """Catches reading the file whole, and cloning what could stay memory-mapped.

    The bound is a tenth of the file: 150 MB, and the largest tensor there is.
    """
    stated = {"config": json.dumps({"transformer": {"num_layers": WIDE.num_layers}})}
    path = save_hollow(tmp_path / "wan.safetensors", WIDE, stated)
    assert 1450 * MIB < path.stat().st_size < 1700 * MIB
    grown = tmp_path / "grown"
    process = fork(lambda: write_growth(path, grown), os.devnull, os.devnull)
    process.join()
    assert process.exitcode == 0
    assert int(grown.read_text()) < 150 * MIB + 2 * 8960 * 1536


# --- the modules


@pytest.mark.parametrize("config", [TINY, NARROW, WAN_1_3B, WAN_14B], ids=["tiny", "narrow", "1.3B", "14B"])
def test_tree_has_exactly_the_tensors_of_checkpoints(config):
    with torch.device("meta"):
        tree = WanTree(config)
    assert {name: tuple(t.shape) for name, t in tree.state_dict().items()} == wan_shapes(config)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_root_mean_square_is_rounded_before_its_weight():
    """Catches: statistics in bfloat16, or a product in float32 that is rounded at the end."""
    norm = RMSNorm(64, 1e-6)
    norm.weight.data = normal(64)
    norm = norm.to(torch.bfloat16)
    x = normal(5, 64).bfloat16()
    assert torch.equal(norm(x), F.rms_norm(x.float(), (64,), eps=1e-6).bfloat16() * norm.weight)


def test_layer_norms_work_in_bfloat16():
    block = WanTree(NARROW).to(torch.bfloat16).blocks[0]
    x = normal(1, 3, 24).bfloat16()
    for norm in (block.norm1, block.norm2, block.norm3):
        assert torch.equal(norm(x), F.layer_norm(x, (24,), norm.weight, norm.bias, 1e-6))


def test_patch_embedding_takes_any_dtype():
    tree = WanTree(NARROW).to(torch.bfloat16)
    frames = normal(1, 16, 2, 4, 4)
    embedded = tree.patch_embedding(frames)
    assert embedded.dtype == torch.bfloat16
    assert torch.equal(embedded, tree.patch_embedding(frames.bfloat16()))


FP8 = torch.float8_e4m3fn
LINEARS = [n for n, t in random_state().items() if t.ndim == 2 and n.startswith("blocks.")]
LAYERS = [n.removesuffix(".weight") for n in LINEARS]


def scale_of(layer: str, rows: int = 1) -> torch.Tensor:
    """A scale of its own for each layer, and no power of two, so that rounding it shows."""
    return 0.0123 + 0.0007 * LAYERS.index(layer) + 0.0001 * torch.arange(rows, dtype=torch.float32)


def fp8_state():
    state = random_state(dtype=torch.bfloat16)
    return {n: t.to(FP8) if n in LINEARS else t for n, t in state.items()}


def old_form():
    state = fp8_state()
    scales = {f"{x}.scale_weight": scale_of(x)[0] for x in LAYERS}
    inputs = {f"{x}.scale_input": torch.tensor(0.5) for x in LAYERS[::2]}
    return {**state, **scales, **inputs, "scaled_fp8": torch.zeros(2, dtype=FP8)}


def new_form(extra=None):
    state = fp8_state()
    for layer in LAYERS:
        stated = json.dumps({"format": "float8_e4m3fn", "full_precision_matrix_mult": True, **(extra or {})})
        state[f"{layer}.weight_scale"] = scale_of(layer)[0]
        state[f"{layer}.input_scale"] = torch.tensor(0.5)
        state[f"{layer}.comfy_quant"] = torch.tensor(list(stated.encode()), dtype=torch.uint8)
    return state


def metadata_form():
    state = {n: t for n, t in new_form().items() if not n.endswith(".comfy_quant")}
    layers = {f"model.{layer}": {"format": "float8_e4m3fn"} for layer in LAYERS}
    return state, {"_quantization_metadata": json.dumps({"layers": layers})}


def row_form():
    state = fp8_state()
    for n, layer in zip(LINEARS, LAYERS, strict=True):
        state[f"{layer}.weight_scale"] = scale_of(layer, state[n].shape[0])[:, None]
    return state


def assert_layers_compute(tree, scale, *, dtype=torch.float32):
    """Compare each layer with what its own stored weight and its own scale make in float32."""
    state = fp8_state()
    g = torch.Generator().manual_seed(3)
    for layer in LAYERS:
        module = tree.get_submodule(layer)
        assert isinstance(module, Fp8Linear)
        assert module.weight.dtype == FP8
        weight = (state[f"{layer}.weight"].float() * scale(layer)).to(dtype)
        x = torch.randn(5, weight.shape[1], generator=g).to(dtype)
        wanted = F.linear(x, weight, state[f"{layer}.bias"].to(dtype))
        assert torch.equal(module(x), wanted), layer


@pytest.mark.parametrize(
    "state, metadata, label",
    [
        (old_form(), None, "fp8 scaled, old form"),
        (new_form(), None, "fp8 scaled, new form"),
        (*metadata_form(), "fp8 scaled, new form"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_multiply_by_their_own_scale(tmp_path, state, metadata, label, dtype):
    """Catches a scale that is dropped, taken from another layer, or rounded to the compute dtype first."""
    state = {f"model.{n}": t for n, t in state.items()}
    path = save(tmp_path / "fp8.safetensors", state, metadata)
    file = open_wan(path)
    assert (file.quantisation.label, file.unused) == (label, ())
    assert_layers_compute(load_wan(path, dtype=dtype).tree, scale_of, dtype=dtype)


def test_scale_of_rows_multiplies_row_by_row(tmp_path):
    loaded = load_wan(save(tmp_path / "fp8.safetensors", row_form()), dtype=torch.float32)
    rows = {n.removesuffix(".weight"): t.shape[0] for n, t in fp8_state().items() if n in LINEARS}
    assert_layers_compute(loaded.tree, lambda x: scale_of(x, rows[x])[:, None])


def test_plain_fp8_is_cast_up_on_use(tmp_path):
    path = save(tmp_path / "fp8.safetensors", fp8_state())
    assert open_wan(path).quantisation.label == "fp8 plain"
    assert_layers_compute(load_wan(path).tree, lambda x: 1.0)


def test_only_linear_weights_stay_fp8(tmp_path):
    """Of a file that is fp8 throughout. Catches: a convolution, norm or bare parameter left in fp8."""
    state = {n: t.to(FP8) for n, t in random_state().items()}
    loaded = load_wan(save(tmp_path / "fp8.safetensors", state))
    assert loaded.ops.dtype == torch.bfloat16
    assert {p.dtype for p in loaded.tree.parameters()} == {torch.bfloat16}
    linears = [m for m in loaded.tree.modules() if isinstance(m, Fp8Linear)]
    assert len(linears) == sum(t.ndim == 2 for t in state.values())
    assert torch.equal(loaded.tree.patch_embedding.weight, state["patch_embedding.weight"].to(torch.bfloat16))
    assert torch.equal(loaded.tree.head.modulation, state["head.modulation"].to(torch.bfloat16))


def test_scaled_patch_embedding_is_cast_up(tmp_path):
    """It is no linear layer. Catches: its scale left out."""
    state = {**old_form(), "patch_embedding.scale_weight": torch.tensor(0.037)}
    state["patch_embedding.weight"] = state["patch_embedding.weight"].to(FP8)
    loaded = load_wan(save(tmp_path / "fp8.safetensors", state), dtype=torch.float32)
    assert torch.equal(loaded.tree.patch_embedding.weight, state["patch_embedding.weight"].float() * 0.037)


def test_cast_layer_gives_the_same_result_twice():
    """Catches scaling in place a weight that needed no cast and so was no copy."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 6, generator=g).to(FP8)
    bias = nn.Parameter(torch.randn(4, generator=g))
    layer = Fp8Linear(weight, torch.tensor(0.3), bias).to(torch.float32)
    x = torch.randn(3, 6, generator=g)
    assert torch.equal(layer(x), layer(x))


def without_a_scale():
    return {n: t for n, t in new_form().items() if n != f"{LAYERS[0]}.weight_scale"}


def marked(text: bytes):
    return {**new_form(), f"{LAYERS[0]}.comfy_quant": torch.tensor(list(text), dtype=torch.uint8)}


def stored_as(dtype, share: int = 1):
    rows, columns = random_state()[LINEARS[0]].shape
    return {**random_state(), LINEARS[0]: torch.zeros(rows, columns // share, dtype=dtype)}


@pytest.mark.parametrize(
    "state, metadata, words",
    [
        *(
            (new_form({"format": form}), None, f"is {form}, not float8_e4m3fn or ")
            for form in ("nvfp4", "mxfp8", "convrot_w4a4", None, 7)
        ),
        (metadata_form()[0], {"layers": {LAYERS[0]: {"format": "nvfp4"}}}, "is nvfp4, not float8_e4m3fn or "),
        # Even though their shape is right: cast to float they would be noise.
        (stored_as(torch.int8), None, f"another quantisation, in {LINEARS[0]}"),
        (stored_as(torch.uint8), None, f"another quantisation, in {LINEARS[0]}"),
        (stored_as(torch.uint8, share=2), None, "another quantisation"),
        ({**fp8_state(), f"{LAYERS[0]}.weight_scale": torch.ones(128, 4)}, None, "not one number or one a row"),
        (
            {**fp8_state(), f"{LAYERS[0]}.weight_scale": torch.ones(1).to(torch.float8_e4m3fn)},
            None,
            "scale is float8_e4m3fn",
        ),
        # Dropping it would give another model; so would multiplying a weight that was scaled already.
        (
            {**random_state(dtype=torch.bfloat16), f"{LAYERS[0]}.scale_weight": torch.tensor(0.5)},
            None,
            "for bfloat16",
        ),
        (without_a_scale(), None, f"the quantised {LAYERS[0]} has no scale"),
        *((marked(text), None, "comfy_quant") for text in (b"{", b"[1]", b'[["a", 1]]', b"\xff\xff")),
    ],
)
def test_unread_quantisation_is_refused_by_name(tmp_path, state, metadata, words):
    stated = metadata and {"_quantization_metadata": json.dumps(metadata)}
    with pytest.raises(BadInput) as refusal:
        load_wan(save(tmp_path / "q.safetensors", state, stated))
    assert words in str(refusal.value)


@pytest.mark.parametrize("form", [fp8_state, old_form, new_form, row_form])
def test_lora_on_fp8_is_rounded_once(tmp_path, form):
    """Catches: a scale left out, or kept too small for the sum; other weights touched; a second rounding."""
    layer = LAYERS[1]
    state = form()
    rows, columns = state[f"{layer}.weight"].shape
    change = 3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    save_file({f"diffusion_model.{layer}.diff": change}, tmp_path / "lora.safetensors")
    path = save(tmp_path / "model.safetensors", state)
    plain = load_wan(path).tree
    tree = load_wan(path, loras=[find_lora(str(tmp_path / "lora.safetensors"), open_wan(path))]).tree
    for name in LAYERS:
        before = plain.get_submodule(name)
        after = tree.get_submodule(name)
        assert after.weight.dtype == FP8
        if name != layer:
            assert torch.equal(after.weight.view(torch.uint8), before.weight.view(torch.uint8))
            continue
        scale = torch.ones(1) if after.scale is None else after.scale
        wanted = before.weight.float() * (1 if before.scale is None else before.scale) + change
        error = (after.weight.float() * scale - wanted).abs()
        # Half a step of e4m3: a sixteenth of the number's power of two, or of the least one's.
        steps = torch.exp2((wanted / scale).abs().log2().floor().clamp(min=-6)) / 16
        assert bool((error <= steps * scale * 1.001).all())
        assert (after.scale is None) == (before.scale is None)
        if after.scale is not None:
            assert after.scale.shape == (before.scale.shape if before.scale.numel() > 1 else ())
            torch.testing.assert_close(after.weight.float().abs().amax(), torch.tensor(448.0))
