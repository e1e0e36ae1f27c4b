"""GGUF files, as the loader of ComfyUI-GGUF reads them: by command, with a checkout of it in COMFYUI_GGUF."""

import json
import os
import sys
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import comfy.model_management
import comfy.sd
import pytest
import torch
from host_run import load_parts, make_job, video_of
from host_tiny import (
    CONFIG,
    LORA_LAYERS,
    SIZE,
    clip,
    generator_of,
    load_model,
    native_clip,
    onto_device,
    over,
    random_weights,
    with_lora,
)
from k_quants import WRITERS, superblocks
from safetensors.torch import load_file
from sdvg_pack.nodes.host.memory import memory_of, weights_of
from sdvg_pack.nodes.host.model import attach_origin, check_model
from sdvg_pack.nodes.host.sockets import PromptEntry
from sdvg_pack.sdvg_core.causal_wan.checkpoint import open_wan
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WanConfig
from sdvg_pack.sdvg_core.pocket.trained_set import trained_set
from sdvg_pack.sdvg_core.settings.context import get_preset
from torch import Tensor

pytestmark = [
    pytest.mark.comfyui,
    pytest.mark.exhaustive,
    pytest.mark.usefixtures("empty_store"),
    pytest.mark.skipif("COMFYUI_GGUF" not in os.environ, reason="COMFYUI_GGUF names no checkout of ComfyUI-GGUF"),
]

ERRORS = {"Q8_0": 0.007, "Q5_1": 0.05, "Q4_0": 0.1, "BF16": 0.002, "Q4_K": 0.09, "Q5_K": 0.045, "Q6_K": 0.022}
"""Kind -> how far its numbers may be from the weights that it stores, as a share of these."""
HALF = 0.02
"""The same of latents: ComfyUI-GGUF casts up in float16."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is stored: a model's sizes and weights."""

    config: WanConfig
    weights: dict[str, Tensor]


def random_source(config):
    return Source(config, random_weights(config=config))


def pocket_target():
    path = trained_set().target
    weights = {name.removeprefix("model."): weight.float() for name, weight in load_file(path).items()}
    return Source(open_wan(path).config, weights)


SOURCES = {
    "narrow": lambda: random_source(CONFIG),
    "pocket target": pocket_target,
    "1.3B, two layers": lambda: random_source(replace(WAN_1_3B, num_layers=2)),
}
CASES = [
    *(("narrow", kind) for kind in ERRORS if kind not in WRITERS),
    *((source, kind) for source in SOURCES if source != "narrow" for kind in WRITERS),
]
"""A superblock is wider than the narrow matrices."""


@cache
def gguf_nodes():
    root = Path(os.environ["COMFYUI_GGUF"])
    spec = spec_from_file_location("gguf_pack", root / "__init__.py", submodule_search_locations=[str(root)])
    sys.modules["gguf_pack"] = pack = module_from_spec(spec)
    spec.loader.exec_module(pack)
    return pack.nodes


@dataclass(frozen=True)
class Stored:
    """A GGUF file whose blocks' matrices are of a kind. `weights`: what its numbers mean, as gguf reads them."""

    path: Path
    kind: str
    source: Source
    weights: dict[str, Tensor]
    sizes: dict[str, int]
    nodes: ModuleType

    @property
    def stated(self):
        """What a model's shapes do not tell ComfyUI."""
        config = self.source.config
        return {name: getattr(config, name) for name in ("num_heads", "text_dim", "patch_size", "out_dim")}

    @cached_property
    def text(self):
        width = self.source.config.text_dim
        embedding = torch.zeros(1, 512, width)
        embedding[:, :12] = torch.randn(1, 12, width, generator=generator_of(3))
        return embedding

    @property
    def tokens(self):
        """Tokens of a frame of SIZE."""
        _, rows, columns = self.source.config.patch_size
        return SIZE[0] * SIZE[1] // rows // columns

    def load(self, **stated):
        """Load it as Unet Loader (GGUF) does."""
        model = comfy.sd.load_diffusion_model_state_dict(
            self.nodes.gguf_sd_loader(str(self.path)),
            model_options={"custom_operations": self.nodes.GGMLOps()},
            metadata={"config": json.dumps({"transformer": {**self.stated, **stated}})},
        )
        return self.nodes.GGUFModelPatcher.clone(model)

    def load_plain(self, folder):
        """Load what its numbers mean, in float32."""
        folder.mkdir(exist_ok=True)
        return load_model(folder, self.weights, **self.stated)

    def patched(self, patcher, lora):
        layers = [layer for layer in LORA_LAYERS if f"{layer}.weight" in self.weights]
        return with_lora(patcher, layers, self.weights) if lora else patcher

    def job(self, folder, target):
        """Return a job of three blocks; the drafter is narrow and reads the same prompt."""
        config = replace(CONFIG, text_dim=self.source.config.text_dim)
        (folder / "narrow").mkdir(exist_ok=True)
        drafter = load_model(folder / "narrow", random_weights(1, config), text_dim=config.text_dim)
        parts = replace(
            load_parts(folder),
            drafter=attach_origin(drafter, preset=get_preset("self-forcing-1.3b")),
            target=attach_origin(target, preset=get_preset("krea-14b")),
        )
        return make_job(parts, script="rar", prompts=(PromptEntry(0, [[self.text, {}]], "a ball"),))


def form_of(name, weight, kind):
    """Return how a tensor is stored: as in published files, only the blocks' matrices are of the kind."""
    if weight.ndim != 2:
        return "F32"
    return kind if name.startswith("blocks.") else "BF16"


def write_gguf(gguf, path, source, kind):
    """Write a file; return what its weights mean, and their bytes."""
    writer = gguf.GGUFWriter(path, "wan")
    meant = {}
    sizes = {}
    for name, weight in source.weights.items():
        form = form_of(name, weight, kind)
        stored = gguf.GGMLQuantizationType[form]
        content = superblocks(form, weight) if form in WRITERS else gguf.quants.quantize(weight.numpy(), stored)
        meant[name] = torch.tensor(gguf.quants.dequantize(content, stored)).reshape(weight.shape)
        sizes[name] = content.nbytes
        writer.add_tensor(name, content, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant, sizes


@pytest.fixture(scope="module", params=CASES, ids=", ".join)
def stored(request, tmp_path_factory):
    """A file of every kind; of K-quants, with each source."""
    gguf = pytest.importorskip("gguf")
    name, kind = request.param
    source = SOURCES[name]()
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return Stored(path, kind, source, *write_gguf(gguf, path, source, kind), gguf_nodes())


def difference(tensor, wanted):
    return float((tensor - wanted).norm() / wanted.norm())


def test_stored_numbers_are_close_to_the_weights(stored):
    """Catches: a writer of superblocks with another scale, minimum or order of numbers."""
    for name, weight in stored.source.weights.items():
        if form_of(name, weight, stored.kind) == stored.kind:
            assert 0 < difference(stored.weights[name], weight) < ERRORS[stored.kind], name


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "with a LoRA"])
def test_our_forward_equals_comfyuis_causal_forward(lora, stored):
    """Catches: weights that are read past the loader's own layers."""
    patcher = stored.patched(stored.load(), lora)
    assert check_model(patcher, "target") == ()
    ours = clip(over(onto_device(patcher)), stored.text)
    native = stored.patched(stored.load(causal_ar=True), lora)
    assert torch.equal(ours, native_clip(native, stored.text, stored.tokens))


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "with a LoRA"])
def test_partly_loaded_model_makes_the_same_latents(lora, stored):
    """Catches: weights that are cast up on the wrong device."""
    whole = clip(over(onto_device(stored.patched(stored.load(), lora))), stored.text)
    patcher = stored.patched(stored.load(), lora)
    patcher.load(torch.device("cpu"), lowvram_model_memory=patcher.model_size() // 2)
    assert patcher.model.model_lowvram
    assert torch.equal(whole, clip(over(patcher), stored.text))


def test_lora_changes_what_the_weights_mean(stored, tmp_path):
    """Catches: a LoRA that is merged into the stored numbers."""
    ours = clip(over(onto_device(stored.patched(stored.load(), lora=True))), stored.text)
    plain = stored.patched(stored.load_plain(tmp_path), lora=True)
    assert difference(ours, clip(over(onto_device(plain)), stored.text)) < HALF


def test_gguf_target_makes_the_video_of_its_weights(stored, tmp_path):
    """Catches: a prompt, a patch or a size that only the narrow shape allows."""
    frames, latents, _ = video_of(stored.job(tmp_path, stored.load()))
    assert len(frames) == 33
    _, wanted, _ = video_of(stored.job(tmp_path, stored.load_plain(tmp_path / "plain")))
    assert difference(latents, wanted) < HALF


def test_gguf_model_is_planned_by_its_bytes(stored, tmp_path):
    """Catches: bytes counted as cast up. ComfyUI-GGUF adds the room of the largest stored weight, in float16."""
    largest = max(stored.sizes, key=stored.sizes.get)
    room = 2 * stored.weights[largest].numel()
    target = memory_of(stored.job(tmp_path, stored.load())).models["target"]
    noise_levels = comfy.model_management.module_size(target.model.model_sampling)
    assert weights_of(target) == sum(stored.sizes.values()) + room + noise_levels
