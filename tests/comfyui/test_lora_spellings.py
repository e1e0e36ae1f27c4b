"""LoRAs in every spelling: what the command line makes of a file, and what ComfyUI does, weight by weight.

The table of both is `TABLE`, and docs/loras.md what it says. Where ComfyUI has no name for a spelling, it is asked
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
FIRST, SECOND = {"lokr_w1": "2 4"}, {"lokr_w2": "rows/2 columns/4"}
"""The two factors of a LoKr, each of which may itself be a product of two halves."""
FIRST_HALVED = {"lokr_w1_a": "2 rank", "lokr_w1_b": "rank 4"}
SECOND_HALVED = {"lokr_w2_a": "rows/2 5", "lokr_w2_b": "5 columns/4"}
DORA = {"lora_down.weight": "rank columns", "lora_up.weight": "rows rank"}
GLORA = {f"{part}.weight": "rank rank" for part in ("a1", "a2", "b1", "b2")}


def wrapped(layer):
    """What FSDP makes of a name: a part after the model's and after each block's."""
    return "base_model.model._fsdp_wrapped_module." + re.sub(r"(blocks\.\d)", r"\1._fsdp_wrapped_module", layer)


@dataclass(frozen=True)
class Row:
    """A file, and how many weights it changes `here`, on the command line, and `there`, in ComfyUI.

    None: it is refused. `unused`: how many of its tensors change nothing.
    """

    tensors: Tensors
    here: int | None = ALL
    there: int = ALL
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
    "PEFT's halves, named": Row(lora(OURS, STYLE), there=0),
    "no prefix": Row(lora(under("")), there=0),
    "PEFT": Row(lora(under("base_model.model."), NAMED), there=0),
    "PEFT of a checkpoint": Row(lora(under("base_model.model.model."), PEFT), there=0),
    "a whole checkpoint's": Row(lora(under("model.diffusion_model.")), there=0),
    "transformer": Row(lora(under("transformer.")), there=0),
    "unet": Row(lora(under("unet.")), there=0),
    "DiffSynth": Row(lora(under("pipe.dit."), NAMED), there=0),
    "diffusers": Row(lora(diffusers(under("transformer.")), PEFT), there=0),
    "diffusers' layers": Row(lora(diffusers(OURS), PEFT), there=0),
    "kohya, diffusers' layers": Row(lora(diffusers(flat("lora_unet_"))), there=0),
    "OneTrainer": Row(lora(diffusers(flat("lora_transformer_"))), there=0),
    "SimpleTuner": Row(lora(diffusers(flat("lycoris_"))), there=0),
    "LyCORIS": Row(lora(flat("lycoris_")), there=0),
    "compiled": Row(lora(under("diffusion_model._orig_mod.")), there=0),
    "compiled outside": Row(lora(under("_orig_mod.diffusion_model.")), there=0),
    "compiled, kohya": Row(lora(flat("lora_unet__orig_mod.")), there=0),
    "FSDP": Row(lora(wrapped, PEFT), there=0),
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
    "another shape": Row({**lora(OURS), **named(OTHER)}, there=ALL + 1, unused=len(OTHER)),
    "Tucker": Row({**lora(OURS), **named(MID)}, here=None),
    "OFT": Row(of_layers(oft_blocks="2 rows/2 rows/2"), here=None),
    "GLoRA": Row(of_layers(**GLORA), here=None),
    "a replacement": Row(of_layers(set_weight="rows columns"), here=None),
}


PAGE = Path(__file__).resolve().parents[2] / "docs" / "loras.md"
TOP = """# LoRAs: scale and spelling

## Where the scale is stated

A LoRA's scale is alpha over rank (rsLoRA: over the root of the rank). The command line reads it from all of these.
Two that disagree by over 1 %, or another rank than the tensors have, are refused; without any, the scale is 1.

| written by | where | read in ComfyUI |
|---|---|---|
| kohya's trainers, LyCORIS | a tensor `alpha` per layer | yes |
| forks of musubi-tuner: rsLoRA, DoRA | tensors `use_rslora_flag`, `dora_layer.weight` | no |
| diffusers, SimpleTuner | `lora_adapter_metadata` in the header, PEFT's config as JSON; or its members | no |
| finetrainers | `lora_config` in the header, as JSON | no |
| LightX2V and others | `alpha`, `lora_alpha` or `network_alpha` in the header | no |
| PEFT, diffusion-pipe | `adapter_config.json` beside `adapter_model.*`, or a folder's only weights | no |
| ai-toolkit, DiffSynth | nowhere: alpha is the rank | yes |

- Read of PEFT's config: `r`, `lora_alpha`, `use_rslora`, `use_dora`, `rank_pattern`, `alpha_pattern`; diffusers
  puts `transformer.` before them. Keys of patterns are taken as names, or their ends, not as regular expressions.
- `ss_network_alpha` in the header is kohya's record of a training, not a scale: musubi-tuner's converter multiplies
  the halves by the scale, drops the tensors, and keeps the record.
- DoRA: PEFT's `lora_magnitude_vector` is the length of the rows after the change, as PEFT merges it; `dora_scale`
  is merged as in ComfyUI. Strength goes from the plain weight to the merged one.
- The bias of a half (`lora_B.bias`) is added to the layer's. Another ending on a layer of the model is refused, but
  for the base's own weights in the state dict of a whole PEFT model.
- A change of another shape is left out, and the report says so; if most are, the LoRA is for another size.
- A file with several named adapters is refused, with their names.

In ComfyUI the report says by which factor a file is meant that ComfyUI's own LoRA loaders merge otherwise, and
which strength gives it; or that a file changes nothing, as it is for another size, all zeros, of names that
ComfyUI does not know, or without the other halves. Of a file that fits in part, it counts the tensors that are left
out and the layers that lack a half. If a block comes out as NaN, the refusal names the LoRAs on that model, and the
tensor with NaN. Loaders of other packs get no note, nor does a file whose name comes over a wire.

Sources, read on 2026-11-28: diffusers 0.42 `loaders/lora_base.py`, `loaders/peft.py`, `utils/peft_utils.py`; PEFT
0.21 `tuners/lora/layer.py`, `variants.py`, `utils/other.py`; SimpleTuner `helpers/training/save_hooks.py`;
kohya-ss/musubi-tuner `networks/lora.py`, `convert_lora.py`; ostris/ai-toolkit `toolkit/lora_special.py`;
tdrussell/diffusion-pipe `models/base.py`; a-r-r-o-w/finetrainers; for LightX2V's header, sgl-project/sglang 36082.
PEFT alone was run; files like the others' are written by hand in the tests.

## On int8 and 4 bits

A merged change is rounded again, up or down by chance, seeded by the weight's name: the same numbers as in
ComfyUI where the layer is loaded. The report says the change's size in steps of the levels; below one, most of
it is noise. ComfyUI adds it unrounded to layers that it copies over, so there bits depend on the memory. Beside
its layers (`--lora-mode beside`, ComfyUI's bypass loader) nothing is rounded.

## Spelling by spelling

Is your LoRA read? Compare the names in its file with these; each stands for its kind. Weights are ComfyUI's to
1e-5 of their size, or, where it takes none of the names, what it makes of the same LoRA in its own. Names for
layers that the model has not are left out, and the report says so. `tests/comfyui/test_lora_spellings.py` checks
every line in ComfyUI 0.27 and 0.33.
"""


def page():
    """Return what docs/loras.md must say: of each spelling a name that none before it has."""
    parts = {
        "On the command line and in ComfyUI": lambda row: row.here and row.there,
        "Only on the command line": lambda row: not row.there,
        "Only in ComfyUI": lambda row: row.here is None,
    }
    seen = set()
    names = {}
    for spelling, row in TABLE.items():
        new = [name for name in row.tensors if name not in seen]
        if new and not row.unused:
            names[spelling] = new[0]
        seen |= set(row.tensors)
    text = TOP
    for head, belongs in parts.items():
        lines = [f"- {spelling}: `{name}`" for spelling, name in names.items() if belongs(TABLE[spelling])]
        text += "\n".join([f"\n### {head}\n", *lines, ""])
    return text


def test_the_page_has_the_table():
    assert PAGE.read_text(encoding="utf-8") == page()


def patched(folder, tensors, weights=None):
    return comfy.sd.load_lora_for_models(load_model(folder, weights), None, dict(tensors), STRENGTH, 0)[0]


@pytest.mark.parametrize("spelling", TABLE)
def test_lora_changes_weights_as_in_comfyui(tmp_path, spelling):
    """The kind: a spelling of the same names.

    To rounding, or it is refused. Catches: a spelling that is not read, another scale, a part left out.
    """
    row = TABLE[spelling]
    save_file(dict(row.tensors), tmp_path / "lora.safetensors")
    text = f"{tmp_path / 'lora.safetensors'}:{STRENGTH}"
    patcher = patched(tmp_path, row.tensors)
    found = open_wan(tmp_path / "model.safetensors")
    assert len(patcher.patches) == row.there
    if row.here is None:
        with pytest.raises(BadInput, match=r"^diffusion_model\S+ in lora.safetensors is of a kind that"):
            find_lora(text, found)
        return
    change = find_lora(text, found)
    assert (len(change.changes), len(change.unused)) == (row.here, row.unused)
    patcher = onto_device(patcher if row.there else patched(tmp_path, lora(OURS)))
    theirs = patcher.model.diffusion_model.state_dict()
    plain = load_wan(found.weights.path, dtype=torch.float32).tree.state_dict()
    for name in LEFT:
        assert name not in change.changes or torch.equal(theirs[name].float(), plain[name])
        theirs[name] = patcher.patch_weight_to_device(f"diffusion_model.{name}", return_weight=True)
    merged = load_wan(found.weights.path, dtype=torch.float32, loras=[change]).tree.state_dict()
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
    """ComfyUI rounds up or down by chance, the command line to the nearest."""
    patcher = onto_device(patched(tmp_path, lora(OURS), STORED[stored](random_weights())))
    save_file(dict(lora(OURS)), tmp_path / "lora.safetensors")
    path = tmp_path / "model.safetensors"
    change = find_lora(f"{tmp_path / 'lora.safetensors'}:{STRENGTH}", open_wan(path))
    plain = load_wan(path).tree
    merged = load_wan(path, loras=[change]).tree
    for layer in LAYERS:
        theirs = patcher.model.diffusion_model.get_submodule(layer).weight
        theirs = theirs.dequantize().float() if isinstance(theirs, QuantizedTensor) else theirs.float()
        ours, scale = values_of(merged.get_submodule(layer))
        step = torch.maximum(ours.abs(), theirs.abs()) / 8 + scale * 2**-9
        assert bool(((ours - theirs).abs() <= step).all()), layer
        assert not bool(((values_of(plain.get_submodule(layer))[0] - theirs).abs() <= step).all()), layer
