"""GGUF files, as the loader of ComfyUI-GGUF reads them: by command, with a checkout of it in COMFYUI_GGUF."""

import json
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import comfy.sd
import pytest
import torch
from host_run import load_parts, make_job, video_of
from host_tiny import (
    CONFIG,
    LORA_LAYERS,
    STATED,
    clip,
    load_model,
    native_clip,
    onto_device,
    over,
    random_weights,
    with_lora,
)
from sdvg_pack.nodes.host.model import attach_origin, check_model
from sdvg_pack.sdvg_core.settings.context import get_preset
from torch import Tensor

pytestmark = [
    pytest.mark.comfyui,
    pytest.mark.exhaustive,
    pytest.mark.usefixtures("empty_store"),
    pytest.mark.skipif("COMFYUI_GGUF" not in os.environ, reason="COMFYUI_GGUF names no checkout of ComfyUI-GGUF"),
]

SUPERBLOCK = 256
K_QUANTS = {
    "Q4_K": (144, (0, 2), (5e-4, 3.75e-3)),
    "Q5_K": (176, (0, 2), (2.5e-4, 3.9e-3)),
    "Q6_K": (210, (208,), (6.4e-5,)),
}
"""Kind -> bytes of a superblock, where its scales in float16 are, and scales that give weights a usual size."""
WIDE = replace(CONFIG, dim=SUPERBLOCK, ffn_dim=2 * SUPERBLOCK)


def superblocks(kind, shape, number):
    """Valid bytes of a kind that gguf's Python only reads: any, but for the scales."""
    size, places, scales = K_QUANTS[kind]
    g = torch.Generator().manual_seed(number)
    blocks = torch.randint(256, (shape[0], shape[1] // SUPERBLOCK, size), generator=g, dtype=torch.uint8)
    for place, scale in zip(places, scales, strict=True):
        blocks[..., place : place + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    return blocks.flatten(1).numpy()


def write_gguf(gguf, path, kind):
    """Write a file whose blocks' matrices are of a kind; return what its weights mean."""
    writer = gguf.GGUFWriter(path, "wan")
    kinds = gguf.GGMLQuantizationType
    meant = {}
    weights = random_weights(config=WIDE if kind in K_QUANTS else CONFIG)
    for number, (name, weight) in enumerate(weights.items()):
        stored = kinds[kind if name.startswith("blocks.") and weight.ndim == 2 else "F32"]
        if stored.name in K_QUANTS:
            content = superblocks(kind, weight.shape, number)
        else:
            content = gguf.quants.quantize(weight.numpy(), stored)
        meant[name] = torch.tensor(gguf.quants.dequantize(content, stored)).reshape(weight.shape)
        writer.add_tensor(name, content, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


@cache
def gguf_nodes():
    root = Path(os.environ["COMFYUI_GGUF"])
    spec = spec_from_file_location("gguf_pack", root / "__init__.py", submodule_search_locations=[str(root)])
    sys.modules["gguf_pack"] = pack = module_from_spec(spec)
    spec.loader.exec_module(pack)
    return pack.nodes


@dataclass(frozen=True, slots=True)
class Stored:
    """A GGUF file. `weights`: what its numbers mean."""

    path: Path
    weights: dict[str, Tensor]
    nodes: ModuleType

    def load(self, **stated):
        """Load it as Unet Loader (GGUF) does, and tell what a tiny model's shapes do not."""
        model = comfy.sd.load_diffusion_model_state_dict(
            self.nodes.gguf_sd_loader(str(self.path)),
            model_options={"custom_operations": self.nodes.GGMLOps()},
            metadata={"config": json.dumps({"transformer": {**STATED, **stated}})},
        )
        return self.nodes.GGUFModelPatcher.clone(model)

    def patched(self, patcher, lora):
        return with_lora(patcher, LORA_LAYERS, self.weights) if lora else patcher


@pytest.fixture(scope="module", params=["Q8_0", "Q5_1", "Q4_0", "BF16", *K_QUANTS])
def stored(request, tmp_path_factory):
    """A file of every kind."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    weights = write_gguf(gguf, path, request.param)
    return Stored(path, weights, gguf_nodes())


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "with a LoRA"])
def test_our_forward_equals_comfyuis_causal_forward(lora, stored):
    """Catches: weights that are read past the loader's own layers."""
    patcher = stored.patched(stored.load(), lora)
    assert check_model(patcher, "target") == ()
    ours = clip(over(onto_device(patcher)))
    assert torch.equal(ours, native_clip(stored.patched(stored.load(causal_ar=True), lora)))


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "with a LoRA"])
def test_partly_loaded_model_makes_the_same_latents(lora, stored):
    """Catches: weights that are cast up on the wrong device."""
    whole = clip(over(onto_device(stored.patched(stored.load(), lora))))
    patcher = stored.patched(stored.load(), lora)
    patcher.load(torch.device("cpu"), lowvram_model_memory=patcher.model_size() // 2)
    assert patcher.model.model_lowvram
    assert torch.equal(whole, clip(over(patcher)))


def test_lora_changes_what_the_weights_mean(stored, tmp_path):
    """Catches: a LoRA that is merged into the stored numbers."""
    ours = clip(over(onto_device(stored.patched(stored.load(), lora=True))))
    plain = stored.patched(load_model(tmp_path, stored.weights), lora=True)
    assert (ours - clip(over(onto_device(plain)))).norm() / ours.norm() < 1e-3


def test_gguf_target_makes_a_video(stored, tmp_path):
    target = attach_origin(stored.load(), preset=get_preset("krea-14b"))
    frames, *_ = video_of(make_job(replace(load_parts(tmp_path), target=target), script="rar"))
    assert len(frames) == 33


def test_gguf_model_is_planned_by_its_file(stored):
    """ComfyUI-GGUF adds the room of the largest weight in float16, cast up."""
    room = 2 * max(weight.numel() for name, weight in stored.weights.items() if name.startswith("blocks."))
    assert stored.load().model_size() == pytest.approx(stored.path.stat().st_size + room, rel=0.05)
