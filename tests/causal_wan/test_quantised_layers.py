"""Checkpoints in int8 and 4 bits: what their layers compute, with LoRAs and streamed; which are refused."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from quantised_files import MATRIX, Q, changed, plain_weight, quantised_state, quantised_tensors
from safetensors.torch import save_file
from torch.nn import functional as F
from wan_files import TINY, prefixed, random_state, save

from sdvg_core.causal_wan.checkpoint import find_lora, load_control, load_wan, open_control, open_wan
from sdvg_core.causal_wan.config import control_shapes
from sdvg_core.devices.compiling import compiled
from sdvg_core.errors import BadInput
from sdvg_core.weights import kitchen
from sdvg_core.weights.kitchen import FORMATS, KitchenLinear, find_layers, quantise, seed_of
from sdvg_core.weights.weight_file import open_weights

pytest.importorskip("comfy_kitchen")
ROOT = Path(__file__).parents[2]
SHARES = {"int8": 0.012, "w4a8": 0.08}
"""Most of a product's error that is expected of weights alone."""


def weight(rows: int = 64, columns: int = 512) -> torch.Tensor:
    normal = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    normal[3] *= 20
    return normal


def off(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    return float((tensor.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("columns", "rotation"), [(48, 16), (320, 64), (512, 256)])
def test_dequantised_weights_equal_a_plain_formula(form, columns, rotation):
    """Catches: halves of a byte swapped, a scale of another row, a rotation that is not taken back."""
    layer, parts = quantise(weight(columns=columns), Q, FORMATS[form])
    assert layer.rotation == rotation
    assert torch.equal(layer.dequantised(parts), plain_weight(parts, columns, rotation))


@pytest.mark.parametrize(("form", "error"), [("int8", 0.0083), ("w4a8", 0.073)])
def test_errors_are_small_at_the_published_width(form, error):
    """Catches a weight that is quantised without its rotation, or rotated in bfloat16 (0.0096 in int8)."""
    plain = weight(columns=5120)
    layer, parts = quantise(plain.bfloat16(), Q, FORMATS[form])
    assert off(layer.dequantised(parts), plain.bfloat16()) == pytest.approx(error, rel=0.05)


CHILD = """
import sys, comfy_kitchen, torch
from sdvg_core.weights.kitchen import find_layers
from sdvg_core.weights.weight_file import open_weights
assert comfy_kitchen.__file__.startswith(sys.argv[3]), "another version than the one asked for"
file = open_weights(sys.argv[1])
for name, layer in find_layers(file).items():
    torch.save(layer.dequantised(layer.read(file, torch.device("cpu"))), sys.argv[2])
"""


@pytest.mark.exhaustive
@pytest.mark.skipif("KITCHENS" not in os.environ, reason="KITCHENS names no folders with versions of comfy-kitchen")
@pytest.mark.parametrize("form", FORMATS)
def test_other_kitchens_read_the_same_bits(form, tmp_path):
    path = save(tmp_path / "a.safetensors", quantised_tensors(form, Q, weight()))
    file = open_weights(path)
    layer = find_layers(file)[Q]
    parts = layer.read(file, torch.device("cpu"))
    for folder in os.environ["KITCHENS"].split(os.pathsep):
        if form == "w4a8" and not (Path(folder) / "comfy_kitchen" / "tensor" / "w4a8_int8.py").exists():
            continue
        searched = os.pathsep.join((folder, str(ROOT)))
        command = [sys.executable, "-c", CHILD, str(path), str(tmp_path / "out.pt"), folder]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": searched})
        assert torch.equal(torch.load(tmp_path / "out.pt"), plain_weight(parts, 512, 256)), folder


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_quantised_file_loads_layer_by_layer(form, prefix, tmp_path):
    """Catches a layer of another one's parts, a bias left out, the rest not in bfloat16."""
    state = quantised_state(form)
    path = save(tmp_path / "q.safetensors", prefixed(state, prefix))
    checkpoint = open_wan(path)
    assert (checkpoint.quantisation.label, checkpoint.dtype, checkpoint.config) == (form, torch.bfloat16, TINY)
    tree = load_wan(checkpoint).tree
    plain = random_state(dtype=torch.bfloat16)
    names = {f"{name}.weight" for name, module in tree.named_modules() if isinstance(module, KitchenLinear)}
    assert names == {name for name in plain if MATRIX.fullmatch(name)}
    x = torch.randn(7, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name in (name for name in names if plain[name].shape[1] == 128):
        layer = tree.get_submodule(name.removesuffix(".weight"))
        expected = F.linear(x.float(), plain[name].float(), layer.bias.float())
        assert layer(x).dtype == torch.bfloat16
        assert off(layer(x), expected) < SHARES[form]
    others = {name: tensor for name, tensor in tree.state_dict().items() if name in plain and name not in names}
    assert all(torch.equal(tensor, plain[name]) for name, tensor in others.items())


@pytest.mark.parametrize("form", FORMATS)
def test_header_may_state_the_forms(form, tmp_path):
    """By the names in the file. Catches: layers that are not found, as these names have a prefix."""
    prefix = "model.diffusion_model."
    state = prefixed(quantised_state(form), prefix)
    marks = {name: state.pop(name) for name in list(state) if name.endswith(".comfy_quant")}
    layers = {name.removesuffix(".comfy_quant"): json.loads(bytes(mark.tolist())) for name, mark in marks.items()}
    stated = {"_quantization_metadata": json.dumps({"layers": layers})}
    quantisation = open_wan(save(tmp_path / "q.safetensors", state, stated)).quantisation
    assert quantisation.label == form
    assert {f"{prefix}{name}" for name in quantisation.layers} == {f"{layer}.weight" for layer in layers}


@pytest.mark.parametrize("form", FORMATS)
def test_compiled_layer_makes_the_same(form):
    """Catches kitchen's Python code in a graph, which torch cannot compile as one."""
    layer, parts = quantise(weight(), Q, FORMATS[form])
    linear = KitchenLinear(layer, parts, torch.nn.Parameter(torch.ones(64)))
    x = torch.randn(2, 5, 512, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(compiled(lambda x: linear(x) * 2, "eager")(x), linear(x) * 2)


def layers(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block.ffn(block.self_attn.o(x))


@pytest.mark.parametrize("form", FORMATS)
def test_streamed_layers_compute_the_same_bits(form, tmp_path):
    """Catches scales that are not copied with their numbers."""
    path = save(tmp_path / "q.safetensors", quantised_state(form))
    whole = load_wan(path).tree.blocks
    streamed = load_wan(path, streamed=[0, 1])
    assert streamed.copied > 0
    x = torch.randn(1, 3, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    for number in (0, 1, 0):
        expected = whole[number](layers, x)
        assert torch.equal(streamed.tree.blocks[number](layers, x), expected)


@pytest.mark.parametrize("form", FORMATS)
def test_full_precision_product_casts_the_weight_up(form, tmp_path):
    """A file can ask for it. Catches inputs that are rounded to int8 nevertheless."""
    state = quantised_state(form)
    mark = json.loads(bytes(state[f"{Q[:-7]}.comfy_quant"].tolist())) | {"full_precision_matrix_mult": True}
    state[f"{Q[:-7]}.comfy_quant"] = torch.tensor(list(json.dumps(mark).encode()), dtype=torch.uint8)
    path = save(tmp_path / "q.safetensors", state)
    layer = load_wan(path, dtype=torch.float32).tree.blocks[0].self_attn.q
    wide = find_layers(open_weights(path))[Q].dequantised(dict(layer.named_buffers()))
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer(x), F.linear(x, wide, layer.bias))


@pytest.mark.parametrize("form", FORMATS)
def test_lora_is_rounded_by_chance_like_comfyui(form, tmp_path):
    """Catches: a weak change that nearest rounding swallows, a seed of another name, other layers touched."""
    path = save(tmp_path / "q.safetensors", quantised_state(form))
    plain = load_wan(path).tree.state_dict()
    change = torch.full((128, 128), 0.2 * SHARES[form])
    save_file({f"diffusion_model.{Q[:-7]}.diff": change}, tmp_path / "lora.safetensors")
    lora = find_lora(str(tmp_path / "lora.safetensors"), open_wan(path))
    tree = load_wan(path, loras=[lora]).tree
    spec = find_layers(open_weights(path))[Q]

    def wide(state):
        return spec.dequantised({part: state[f"{Q[:-6]}{part}"] for part in spec.names})

    added = wide(tree.state_dict()) - wide(plain)
    # The corner of a rotated constant is in one column of 16, 64 or 256, so the mean tells whether it arrived.
    assert float(added.mean()) == pytest.approx(float(change.mean()), rel=0.25)
    parts = {part: plain[f"{Q[:-6]}{part}"] for part in spec.names}
    again = spec.requantised(parts, wide(plain) + change, seed_of(Q))
    assert all(torch.equal(tree.state_dict()[f"{Q[:-6]}{part}"], tensor) for part, tensor in again.items())
    others = {name for name in plain if not name.startswith(Q[:-6])}
    assert all(torch.equal(tree.state_dict()[name], plain[name]) for name in others)


@pytest.mark.parametrize("form", FORMATS)
def test_control_module_may_be_quantised(form, tmp_path):
    g = torch.Generator().manual_seed(0)
    state = {n: torch.randn(s, generator=g).bfloat16() for n, s in control_shapes(TINY, 1).items()}
    name = "vace_blocks.0.self_attn.q.weight"
    state |= quantised_tensors(form, name, state.pop(name))
    checkpoint = open_control(open_weights(save(tmp_path / "v.safetensors", state)), TINY, "target")
    tree = load_control(checkpoint, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert isinstance(tree.vace_blocks[0].self_attn.q, KitchenLinear)


# --- what is refused

NAN = torch.full((128, 1), torch.nan)
MARKS = {
    form: json.loads(kitchen.mark_of(kitchen.layer_of((128, 128), Q, kitchen.FORMATS[form]))) for form in FORMATS
}


def mark(form: str, **changes: object) -> torch.Tensor:
    return torch.tensor(list(json.dumps({**MARKS[form], **changes}).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("form", "changes", "word"),
    [
        ("int8", {"weight_scale": None}, "no blocks.0.self_attn.q.weight_scale"),
        ("int8", {"weight_scale": torch.ones(128, 4)}, "is no int8_tensorwise"),
        ("int8", {"weight_scale": torch.ones(128)}, "is no int8_tensorwise"),
        ("int8", {"weight_scale": NAN}, "holds NaN"),
        ("int8", {"weight": torch.zeros(128, 128)}, "is no int8_tensorwise"),
        ("int8", {"weight": torch.zeros(128, 64, dtype=torch.int8)}, "another shape"),
        ("int8", {"weight": torch.zeros(128, dtype=torch.int8)}, "is no int8_tensorwise"),
        *(
            ("int8", {"comfy_quant": mark("int8", convrot_groupsize=size)}, "groups of")
            for size in (3, 32, -16, "x", 2**40, 256)
        ),
        ("w4a8", {"weight_s_rel": None}, "no blocks.0.self_attn.q.weight_s_rel"),
        ("w4a8", {"weight_s_channel": torch.ones(4)}, "is no asym_w4a8_int8"),
        ("w4a8", {"weight_codebook": torch.ones(17)}, "is no asym_w4a8_int8"),
        ("w4a8", {"weight_s_channel": NAN[:, 0]}, "holds NaN"),
        ("w4a8", {"weight_correction": torch.ones(8, 128)}, "the unknown"),
        *(
            ("w4a8", {"comfy_quant": mark("w4a8", group_size=size)}, "groups of")
            for size in (0, 1, 24, 16.0, None, True)
        ),
        *(
            ("w4a8", {"weight": torch.zeros(128, columns, dtype=torch.int8)}, "is no asym_w4a8_int8")
            for columns in (0, 65)
        ),
    ],
)
def test_parts_that_misfit_are_refused(form, changes, word, tmp_path):
    """Catches scales that are broadcast over the wrong axis, and sizes of a rotation that fill the memory."""
    path = save(tmp_path / "q.safetensors", changed(quantised_state(form), **changes))
    with pytest.raises(BadInput) as refusal:
        load_wan(path)
    assert word in str(refusal.value)


@pytest.mark.parametrize("size", [0, 4, 64])
def test_rotation_of_a_file_is_read(size, tmp_path):
    """Also where we would have made another, or with none. Catches: a file of another program refused."""
    state = changed(quantised_state("int8"), comfy_quant=mark("int8", convrot_groupsize=size))
    checkpoint = open_wan(save(tmp_path / "q.safetensors", state))
    assert checkpoint.quantisation.layers[Q].rotation == size


def six_bits() -> dict[str, torch.Tensor]:
    parts = {"weight": torch.zeros(128, 96, dtype=torch.int8), "weight_codebook": None}
    return changed(quantised_state("w4a8"), **parts)


def test_six_bits_are_refused_by_an_older_kitchen(tmp_path, monkeypatch):
    """Catches six bits read as four, as they have one name, and four refused as six."""
    path = save(tmp_path / "q.safetensors", six_bits())
    four = save(tmp_path / "four.safetensors", quantised_state("w4a8"))
    layouts = dict.fromkeys((form.layout for form in FORMATS.values()), object)
    monkeypatch.setattr(kitchen, "_kitchen", lambda: SimpleNamespace(**layouts))
    open_wan(four)
    with pytest.raises(BadInput, match="6 bits"):
        open_wan(path)


@pytest.mark.parametrize("form", FORMATS)
def test_old_kitchen_is_named(form, tmp_path, monkeypatch):
    path = save(tmp_path / "q.safetensors", quantised_state(form))
    monkeypatch.setattr(kitchen, "_kitchen", lambda: SimpleNamespace())
    with pytest.raises(BadInput, match=f"needs comfy-kitchen {FORMATS[form].kitchen}"):
        open_wan(path)


@pytest.mark.parametrize("form", FORMATS)
def test_missing_kitchen_is_named(form, tmp_path, monkeypatch):
    path = save(tmp_path / "q.safetensors", quantised_state(form))

    def missing():
        raise ModuleNotFoundError("comfy_kitchen")

    monkeypatch.setattr(kitchen, "_kitchen", missing)
    with pytest.raises(BadInput, match="pip install comfy-kitchen"):
        open_wan(path)


def foreign_files() -> dict[str, dict[str, torch.Tensor]]:
    ones = torch.ones(128, 1)
    numbers = torch.zeros(128, 128, dtype=torch.int8)
    layer = Q.removesuffix(".weight")
    return {
        "quanto": {Q: None, f"{Q}._data": numbers, f"{Q}._scale": ones},
        "TurboDiffusion": {Q: None, f"{layer}.int8_weight": numbers, f"{layer}.scale": ones},
        "nunchaku": {Q: None, f"{layer}.qweight": numbers, f"{layer}.wscales": ones},
        "nf4": {Q: numbers.view(-1, 1), f"{Q}.absmax": torch.ones(4), f"{Q}.quant_map": torch.ones(16)},
        "int8 of bitsandbytes": {Q: numbers, f"{Q}.SCB": torch.ones(128)},
        "fp8 in blocks": {Q: torch.zeros(128, 128).to(torch.float8_e4m3fn), f"{Q}_scale_inv": torch.ones(1, 1)},
    }


@pytest.mark.parametrize("kind", foreign_files())
def test_other_quantisations_are_refused_by_name(kind, tmp_path):
    """Catches *not a whole Wan 2.1 transformer; use the file as published*, of a file that is as published."""
    state = {**random_state(dtype=torch.bfloat16), **foreign_files()[kind]}
    path = save(tmp_path / "q.safetensors", {name: tensor for name, tensor in state.items() if tensor is not None})
    with pytest.raises(BadInput) as refusal:
        open_wan(path)
    assert kind in str(refusal.value)
    assert "bf16" in str(refusal.value)


def test_opening_a_quantised_file_reads_no_weight(tmp_path):
    path = save(tmp_path / "q.safetensors", quantised_state("int8"))
    file = open_weights(path)
    names = []

    def read(name):
        names.append(name)
        return file.read(name)

    find_layers(dataclasses.replace(file, read=read))
    assert names
    assert all(name.endswith("comfy_quant") for name in names)
