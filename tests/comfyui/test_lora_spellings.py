"""LoRAs in every spelling: what the command line makes of a file, and what ComfyUI does, weight by weight.

The table of both is `TABLE`, which docs/loras.md lists. Where ComfyUI has no name for a spelling, it is asked
for the same LoRA in its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import comfy.sd
import pytest
import torch
from comfy.quant_ops import QuantizedTensor
from host_tiny import CONFIG, generator_of, load_model, onto_device, random_weights
from safetensors.torch import save_file
from sdvg_pack.sdvg_core.causal_wan.checkpoint import find_lora, load_wan, open_wan
from sdvg_pack.sdvg_core.causal_wan.config import wan_shapes
from sdvg_pack.sdvg_core.errors import BadInput
from stored_weights import STORED
from torch import Tensor

pytestmark = pytest.mark.comfyui
Tensors = Mapping[str, Tensor]
SHAPES = wan_shapes(CONFIG)
RANK = 4
STRENGTH = 0.7
LAYERS = {
    "blocks.0.cross_attn.k": "blocks.0.attn2.to_k",
    "blocks.1.self_attn.o": "blocks.1.attn1.to_out.0",
    "blocks.2.ffn.0": "blocks.2.ffn.net.0.proj",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
}
"""The original name of a layer -> diffusers'."""
ALL = len(LAYERS)
HALVES = (".lora_down.weight", ".lora_up.weight")


def numbers(seed, *shape):
    return torch.randn(shape, generator=generator_of(seed)) * 0.1


def lora(name_of, ends=HALVES, *, alpha=False):
    """The same LoRA of `LAYERS`, under other names."""
    tensors = {}
    for seed, layer in enumerate(LAYERS):
        rows, columns = SHAPES[f"{layer}.weight"]
        tensors[f"{name_of(layer)}{ends[0]}"] = numbers(seed, RANK, columns)
        tensors[f"{name_of(layer)}{ends[1]}"] = numbers(seed + 50, rows, RANK)
        if alpha:
            tensors[f"{name_of(layer)}.alpha"] = torch.tensor(2.0)
    return tensors


def under(prefix):
    return lambda layer: prefix + layer


def flat(prefix):
    return lambda layer: prefix + layer.replace(".", "_")


def diffusers(name_of):
    return lambda layer: name_of(LAYERS[layer])


def of_layers(**parts):
    """A change of each of `LAYERS`, in ComfyUI's names. `parts`: a name's last part, and its sizes by `sizes`."""
    tensors = {}
    for layer in LAYERS:
        rows, columns = SHAPES[f"{layer}.weight"]
        sizes = {"rows": rows, "columns": columns, "rank": RANK, "rows/2": rows // 2, "columns/4": columns // 4}
        for seed, (part, shape) in enumerate(parts.items()):
            tensor = numbers(seed, *(sizes.get(size) or int(size) for size in shape.split()))
            tensors[f"diffusion_model.{layer}.{part}"] = tensor.abs() + 1 if part == "dora_scale" else tensor
        if not UNSCALED & set(parts):
            tensors[f"diffusion_model.{layer}.alpha"] = torch.tensor(2.0)
    return tensors


def named(shapes):
    return {f"diffusion_model.{name}": numbers(seed, *shape) for seed, (name, shape) in enumerate(shapes.items())}


DIM = CONFIG.dim
CONVOLUTION = {
    "patch_embedding.lora_down.weight": (RANK, CONFIG.in_dim, *CONFIG.patch_size),
    "patch_embedding.lora_up.weight": (DIM, RANK, 1, 1, 1),
}
DIFFERENCES = {
    "blocks.0.ffn.0.diff": SHAPES["blocks.0.ffn.0.weight"],
    "blocks.0.ffn.0.diff_b": SHAPES["blocks.0.ffn.0.bias"],
    "blocks.1.self_attn.norm_q.diff": (DIM,),
    "blocks.1.modulation.diff": (1, 6, DIM),
    "head.modulation.diff": (1, 2, DIM),
    "patch_embedding.diff": SHAPES["patch_embedding.weight"],
    "blocks.2.norm3.w_norm": (DIM,),
    "blocks.2.norm3.b_norm": (DIM,),
}
LEFT = ("blocks.1.modulation", "head.modulation")
"""Changes that ComfyUI takes and does not make while it loads: of parameters of modules that hold other modules."""
MORE = {"blocks.0.cross_attn.k_img.lora_down.weight": (RANK, DIM), "blocks.0.diff_m": (1, 6, DIM)}
"""What LoRAs of image-to-video models and of LightX2V have too."""
OTHER = {
    "patch_embedding.lora_down.weight": (RANK, 36, *CONFIG.patch_size),
    "patch_embedding.lora_up.weight": (DIM, RANK, 1, 1, 1),
}
"""The patch embedding of an image-to-video model, with which ComfyUI leaves the weight as it is."""
MID = {"blocks.0.cross_attn.k.lora_mid.weight": (RANK, RANK, 1, 1)}


UNSCALED = {"oft_blocks", "a1.weight", "set_weight"}
LOHA = {
    "hada_w1_a": "rows rank",
    "hada_w1_b": "rank columns",
    "hada_w2_a": "rows rank",
    "hada_w2_b": "rank columns",
}
# The two factors of a LoKr, each of which may itself be a product of two halves.
FIRST = {"lokr_w1": "2 4"}
SECOND = {"lokr_w2": "rows/2 columns/4"}
FIRST_HALVED = {"lokr_w1_a": "2 rank", "lokr_w1_b": "rank 4"}
SECOND_HALVED = {"lokr_w2_a": "rows/2 5", "lokr_w2_b": "5 columns/4"}
DORA = {"lora_down.weight": "rank columns", "lora_up.weight": "rows rank"}
GLORA = {f"{part}.weight": "rank rank" for part in ("a1", "a2", "b1", "b2")}


def wrapped(layer):
    """What FSDP makes of a name: a part after the model's and after each block's."""
    return "base_model.model._fsdp_wrapped_module." + re.sub(r"(blocks\.\d)", r"\1._fsdp_wrapped_module", layer)


@dataclass(frozen=True)
class Row:
    """A file, and how many weights it changes on the command line and in ComfyUI.

    None: it is refused. `unused`: how many of its tensors change nothing.
    """

    tensors: Tensors
    command_line: int | None = ALL
    comfyui: int = ALL
    unused: int = 0


OURS = under("diffusion_model.")
PEFT = (".lora_A.weight", ".lora_B.weight")
NAMED = (".lora_A.default.weight", ".lora_B.default.weight")
STYLE = (".lora_A.style.weight", ".lora_B.style.weight")
LONG = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
TABLE = {
    "ComfyUI": Row(lora(OURS)),
    "ComfyUI, alpha": Row(lora(OURS, alpha=True)),
    "kohya": Row(lora(flat("lora_unet_"), alpha=True)),
    "Wan Fun": Row(lora(flat("lora_unet__"), alpha=True)),
    "PEFT's halves": Row(lora(OURS, PEFT)),
    "PEFT's halves, default": Row(lora(OURS, NAMED)),
    "halves without weight": Row(lora(OURS, (".lora_A", ".lora_B"))),
    "diffusers' old halves": Row(lora(OURS, (".lora.down.weight", ".lora.up.weight"))),
    "diffusers' oldest": Row(lora(OURS, ("_lora.down.weight", "_lora.up.weight"))),
    "transformers": Row(lora(OURS, LONG)),
    "PEFT's halves, named": Row(lora(OURS, STYLE), comfyui=0),
    "no prefix": Row(lora(under("")), comfyui=0),
    "PEFT": Row(lora(under("base_model.model."), NAMED), comfyui=0),
    "PEFT of a checkpoint": Row(lora(under("base_model.model.model."), PEFT), comfyui=0),
    "a whole checkpoint's": Row(lora(under("model.diffusion_model.")), comfyui=0),
    "transformer": Row(lora(under("transformer.")), comfyui=0),
    "unet": Row(lora(under("unet.")), comfyui=0),
    "DiffSynth": Row(lora(under("pipe.dit."), NAMED), comfyui=0),
    "diffusers": Row(lora(diffusers(under("transformer.")), PEFT), comfyui=0),
    "diffusers' layers": Row(lora(diffusers(OURS), PEFT), comfyui=0),
    "kohya, diffusers' layers": Row(lora(diffusers(flat("lora_unet_"))), comfyui=0),
    "OneTrainer": Row(lora(diffusers(flat("lora_transformer_"))), comfyui=0),
    "SimpleTuner": Row(lora(diffusers(flat("lycoris_"))), comfyui=0),
    "LyCORIS": Row(lora(flat("lycoris_")), comfyui=0),
    "compiled": Row(lora(under("diffusion_model._orig_mod.")), comfyui=0),
    "compiled outside": Row(lora(under("_orig_mod.diffusion_model.")), comfyui=0),
    "compiled, kohya": Row(lora(flat("lora_unet__orig_mod.")), comfyui=0),
    "FSDP": Row(lora(wrapped, PEFT), comfyui=0),
    "LoHa": Row(of_layers(**LOHA)),
    "LoKr": Row(of_layers(**FIRST, **SECOND)),
    "LoKr, first halved": Row(of_layers(**FIRST_HALVED, **SECOND)),
    "LoKr, second halved": Row(of_layers(**FIRST, **SECOND_HALVED)),
    "LoKr, both halved": Row(of_layers(**FIRST_HALVED, **SECOND_HALVED)),
    "DoRA by rows": Row(of_layers(**DORA, dora_scale="rows 1")),
    "DoRA by columns": Row(of_layers(**DORA, dora_scale="1 columns")),
    "a convolution": Row(named(CONVOLUTION), 1, 1),
    "differences": Row(named(DIFFERENCES), len(DIFFERENCES), len(DIFFERENCES)),
    "more than the model has": Row({**lora(OURS), **named(MORE)}, unused=len(MORE)),
    "another shape": Row({**lora(OURS), **named(OTHER)}, comfyui=ALL + 1, unused=len(OTHER)),
    "Tucker": Row({**lora(OURS), **named(MID)}, command_line=None),
    "OFT": Row(of_layers(oft_blocks="2 rows/2 rows/2"), command_line=None),
    "GLoRA": Row(of_layers(**GLORA), command_line=None),
    "a replacement": Row(of_layers(set_weight="rows columns"), command_line=None),
}


PAGE = Path(__file__).resolve().parents[2] / "docs" / "loras.md"


def lists_of_spellings():
    """Return the lists that docs/loras.md ends with: of each spelling a name that none before it has."""
    parts = {
        "On the command line and in ComfyUI": lambda row: row.command_line and row.comfyui,
        "Only on the command line": lambda row: not row.comfyui,
        "Only in ComfyUI": lambda row: row.command_line is None,
    }
    seen = set()
    names = {}
    for spelling, row in TABLE.items():
        new = [name for name in row.tensors if name not in seen]
        if new and not row.unused:
            names[spelling] = new[0]
        seen |= set(row.tensors)
    text = ""
    for head, belongs in parts.items():
        lines = [f"- {spelling}: `{name}`" for spelling, name in names.items() if belongs(TABLE[spelling])]
        text += "\n".join([f"\n### {head}\n", *lines, ""])
    return text


def test_page_on_loras_lists_the_table():
    """Catches: a spelling that is read and not written down, or the other way round."""
    assert PAGE.read_text(encoding="utf-8").endswith(lists_of_spellings())


def patched(folder, tensors, weights=None):
    return comfy.sd.load_lora_for_models(load_model(folder, weights), None, dict(tensors), STRENGTH, 0)[0]


def saved_lora(folder, tensors):
    """Save a LoRA and return what names it on the command line."""
    save_file(dict(tensors), folder / "lora.safetensors")
    return f"{folder / 'lora.safetensors'}:{STRENGTH}"


@pytest.mark.parametrize("spelling", [name for name, row in TABLE.items() if row.command_line is None])
def test_spelling_only_comfyui_knows_is_refused(tmp_path, spelling):
    """On the command line. Catches: a LoRA of which nothing is merged, unsaid."""
    row = TABLE[spelling]
    patcher = patched(tmp_path, row.tensors)
    assert len(patcher.patches) == row.comfyui
    checkpoint = open_wan(tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match="is of a kind that"):
        find_lora(saved_lora(tmp_path, row.tensors), checkpoint)


@pytest.mark.parametrize("spelling", [name for name, row in TABLE.items() if row.command_line is not None])
def test_lora_changes_weights_as_in_comfyui(tmp_path, spelling):
    """To rounding. The kind: a spelling of the same names.

    Catches: a spelling that is not read, another scale, a part left out.
    """
    row = TABLE[spelling]
    patcher = patched(tmp_path, row.tensors)
    assert len(patcher.patches) == row.comfyui
    checkpoint = open_wan(tmp_path / "model.safetensors")
    change = find_lora(saved_lora(tmp_path, row.tensors), checkpoint)
    assert len(change.changes) == row.command_line
    assert len(change.unused) == row.unused
    patcher = onto_device(patcher if row.comfyui else patched(tmp_path, lora(OURS)))
    theirs = patcher.model.diffusion_model.state_dict()
    plain = load_wan(checkpoint.weights.path, dtype=torch.float32).tree.state_dict()
    for name in LEFT:
        assert name not in change.changes or torch.equal(theirs[name].float(), plain[name])
        theirs[name] = patcher.patch_weight_to_device(f"diffusion_model.{name}", return_weight=True)
    merged = load_wan(checkpoint.weights.path, dtype=torch.float32, loras=[change]).tree.state_dict()
    for name, weight in merged.items():
        torch.testing.assert_close(weight, theirs[name].float(), rtol=1e-5, atol=1e-6)
        assert torch.equal(weight, plain[name]) == (name not in change.changes), name


def values_of(linear):
    """What the weight of a layer of ours means, and its scale, 1 without one."""
    scale = getattr(linear, "scale", None)
    scale = torch.ones(()) if scale is None else scale
    return linear.state_dict()["weight"].float() * scale, scale


@pytest.mark.parametrize("stored", ["fp8", "scaled fp8"])
def test_lora_on_fp8_weights_is_comfyuis_when_rounded(tmp_path, stored):
    """To a step of fp8: ComfyUI rounds up or down by chance, the command line to the nearest."""
    patcher = onto_device(patched(tmp_path, lora(OURS), STORED[stored](random_weights())))
    path = tmp_path / "model.safetensors"
    change = find_lora(saved_lora(tmp_path, lora(OURS)), open_wan(path))
    plain = load_wan(path).tree
    merged = load_wan(path, loras=[change]).tree
    for layer in LAYERS:
        theirs = patcher.model.diffusion_model.get_submodule(layer).weight
        theirs = theirs.dequantize().float() if isinstance(theirs, QuantizedTensor) else theirs.float()
        ours, scale = values_of(merged.get_submodule(layer))
        step = torch.maximum(ours.abs(), theirs.abs()) / 8 + scale * 2**-9
        assert bool(((ours - theirs).abs() <= step).all()), layer
        assert not bool(((values_of(plain.get_submodule(layer))[0] - theirs).abs() <= step).all()), layer
