"""Files in int8 and 4 bits, as `convert` writes them, in ComfyUI: layers, LoRAs, bytes; what it cannot read."""

import json

import comfy.model_management
import comfy.sd
import comfy.utils
import pytest
import torch
from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor
from host_loras import notes_of
from host_loras import save as save_lora
from host_tiny import BLOCKS, FRAMES, STATED, clip, lora_weights, native_clip, onto_device, over, random_weights
from safetensors.torch import load_file, save_file
from sdvg_pack.nodes.host import files, model
from sdvg_pack.nodes.host.files import load_checkpoint
from sdvg_pack.nodes.host.memory import weights_of
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.checkpoint import find_lora, load_wan, open_wan
from sdvg_pack.sdvg_core.causal_wan.config import QUANTISED
from sdvg_pack.sdvg_core.causal_wan.context import RollingContext
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.errors import BadInput
from sdvg_pack.sdvg_core.settings.context import get_preset
from sdvg_pack.sdvg_core.weights.kitchen import FORMATS, mark_of, quantise, seed_of

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("empty_store")]
Q = "blocks.0.self_attn.q.weight"
HERE = [name for name, form in FORMATS.items() if form.stated in QUANT_ALGOS]
"""The formats that this ComfyUI reads."""
HALF = torch.bfloat16


def write(path, form, *, prefix="", **stated):
    tensors = {}
    for name, weight in random_weights().items():
        if not QUANTISED.fullmatch(name):
            tensors[name] = weight.bfloat16()
            continue
        layer, parts = quantise(weight.bfloat16(), name, FORMATS[form])
        tensors |= {layer.names[part]: tensor for part, tensor in parts.items()}
        tensors[f"{name[:-7]}.comfy_quant"] = torch.tensor(list(mark_of(layer)), dtype=torch.uint8)
    config = json.dumps({"transformer": {**STATED, **stated}})
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, path, {"config": config})
    return path


def load(path, dtype=torch.float32):
    patcher = load_checkpoint(str(path), "auto", get_preset("custom"))
    patcher.set_model_compute_dtype(dtype)
    patcher.model.manual_cast_dtype = dtype
    return patcher


@pytest.mark.parametrize("form", HERE)
def test_our_forward_makes_what_comfyuis_makes(form, tmp_path):
    """Catches: quantised weights that are read past ComfyUI's layers."""
    ours = load(write(tmp_path / "q.safetensors", form))
    assert isinstance(ours.model.diffusion_model.blocks[0].self_attn.q.weight, QuantizedTensor)
    native = load(write(tmp_path / "causal.safetensors", form, causal_ar=True))
    latents = clip(over(onto_device(ours)))
    assert latents.std() > 0.1
    assert torch.equal(latents, native_clip(native))


@pytest.mark.parametrize("form", HERE)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 0.0), (HALF, 0.01)])
def test_command_line_makes_what_the_nodes_make(form, dtype, most, tmp_path, monkeypatch):
    """Under one attention. Catches another scale, rotation or order of products.

    In bfloat16 ComfyUI embeds patches in float32: a plain file differs by 0.005 too, and inputs that are rounded to
    int8 make it 0.008.
    """
    path = write(tmp_path / "q.safetensors", form)
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(dtype))
    theirs = clip(over(onto_device(load(path, dtype)))).float()
    wan = load_wan(path, dtype=dtype)
    ours = clip(CausalWanGenerator(wan, name="model", context=RollingContext(window=FRAMES * BLOCKS))).float()
    assert float((ours - theirs).norm() / theirs.norm()) <= most


def test_quantised_file_is_computed_in_bfloat16(tmp_path):
    assert load_wan(write(tmp_path / "q.safetensors", HERE[0])).ops.dtype == HALF


@pytest.mark.parametrize("form", HERE)
def test_bytes_are_those_of_the_file(form, tmp_path):
    """Catches 4 bits that are counted as bfloat16, so that layers are copied over that would fit."""
    path = write(tmp_path / "q.safetensors", form)
    tensors = [tensor for name, tensor in load_file(path).items() if not name.endswith("comfy_quant")]
    # On a CPU, ComfyUI keeps the rest in float32.
    stored = sum(tensor.nbytes * (2 if tensor.dtype == HALF else 1) for tensor in tensors)
    assert weights_of(load(path)) == pytest.approx(stored, rel=0.03)


@pytest.mark.parametrize("form", HERE)
def test_half_on_the_device_makes_the_same_bits(form, tmp_path):
    """Catches: weights that are read on the wrong device, or without their scale."""
    path = write(tmp_path / "q.safetensors", form)
    whole = clip(over(onto_device(load(path))))
    halved = load(path)
    comfy.model_management.load_models_gpu([halved], force_full_load=False)
    halved.partially_unload(halved.offload_device, int(halved.model_size() // 2))
    assert torch.equal(whole, clip(over(halved)))


@pytest.mark.parametrize("form", HERE)
def test_lora_makes_the_numbers_that_comfyui_makes(form, tmp_path):
    """Catches another seed, or another sum before the rounding. A last digit may round otherwise by chance."""
    path = write(tmp_path / "q.safetensors", form)
    tensors = lora_weights(["blocks.0.self_attn.q", "blocks.1.ffn.0"])
    save_file(tensors, tmp_path / "lora.safetensors")
    patcher = load(path)
    patched = onto_device(comfy.sd.load_lora_for_models(patcher, None, tensors, 1.0, 0)[0])
    lora = find_lora(str(tmp_path / "lora.safetensors"), open_wan(path))
    ours = load_wan(path, loras=[lora]).tree
    plain = load_wan(path).tree
    for layer in ("blocks.0.self_attn.q", "blocks.1.ffn.0", "blocks.1.ffn.2"):
        theirs = patched.model.diffusion_model.get_submodule(layer).weight._qdata
        weight = ours.get_submodule(layer).weight
        assert float((theirs != weight).float().mean()) < 1e-3, layer
        same = torch.equal(weight, plain.get_submodule(layer).weight)
        assert same == (layer == "blocks.1.ffn.2")
    assert seed_of(Q) == comfy.utils.string_to_seed(f"diffusion_model.{Q}")


@pytest.mark.parametrize(("kind", "noted"), [("LoraLoaderModelOnly", True), ("LoraLoaderBypassModelOnly", False)])
def test_note_on_merged_lora_names_the_bypass(kind, noted, loras, tmp_path):
    """Catches bits that change with the memory, unsaid."""
    save_lora(loras, "l.safetensors")
    patcher = load(write(tmp_path / "q.safetensors", HERE[0]))
    notes = notes_of(patcher, (kind, {"lora_name": "l.safetensors", "strength_model": 1.0}))
    assert bool(notes) == noted
    assert all("bypass" in note for note in notes)
    assert notes_of(patcher) == ()


def test_format_that_comfyui_lacks_is_refused(tmp_path, monkeypatch):
    """Catches: an error of ComfyUI's loader."""
    path = write(tmp_path / "q.safetensors", "int8")
    monkeypatch.setattr(files, "QUANT_ALGOS", {})
    with pytest.raises(BadInput, match=r"ComfyUI reads from 0\.27 on"):
        load_checkpoint(str(path), "default", get_preset("custom"))


@pytest.mark.skipif("w4a8" in HERE, reason="this ComfyUI reads it")
def test_four_bits_are_refused_by_an_older_comfyui(tmp_path):
    path = write(tmp_path / "q.safetensors", "int8")
    tensors = load_file(path)
    stated = json.dumps({"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": 64}).encode()
    tensors[f"{Q[:-7]}.comfy_quant"] = torch.tensor(list(stated), dtype=torch.uint8)
    config = json.dumps({"transformer": STATED})
    save_file(tensors, tmp_path / "w4a8.safetensors", {"config": config})
    with pytest.raises(BadInput, match=r"ComfyUI 0\.31"):
        load_checkpoint(str(tmp_path / "w4a8.safetensors"), "default", get_preset("custom"))


@pytest.mark.parametrize("weight_dtype", [name for name in files.WEIGHT_DTYPES if name != "default"])
def test_fp8_of_a_quantised_file_is_refused(weight_dtype, tmp_path):
    """Catches: a choice that has no effect, unsaid."""
    path = write(tmp_path / "q.safetensors", HERE[0])
    with pytest.raises(BadInput, match="int8 already"):
        load_checkpoint(str(path), weight_dtype, get_preset("custom"))
