"""LoRAs beside their layers: what merged ones make, but for the rounding; bits, sizes and notes of both modes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from quantised_files import Q, quantised_state
from safetensors.torch import save_file
from wan_files import TINY, random_state, save

from sdvg_core.causal_wan.checkpoint import WanFile, find_lora, load_wan, open_wan
from sdvg_core.causal_wan.config import linear_weights
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import _notes_on_lora
from sdvg_core.settings.context import get_preset
from sdvg_core.settings.load import LoadOptions
from sdvg_core.weights.kitchen import FORMATS
from sdvg_core.weights.lora_beside import LoraLinear, beside, beside_bytes

LAYER = Q.removesuffix(".weight")
LINEAR = linear_weights(TINY)
pytest.importorskip("comfy_kitchen")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def lora_file(folder: Path, size: float = 0.1, **more: torch.Tensor) -> Path:
    g = generator()
    tensors = {
        f"diffusion_model.{LAYER}.lora_A.weight": size * torch.randn(4, 128, generator=g),
        f"diffusion_model.{LAYER}.lora_B.weight": size * torch.randn(128, 4, generator=g),
        f"diffusion_model.{LAYER}.alpha": torch.tensor(2.0),
        f"diffusion_model.{LAYER}.diff_b": torch.randn(128, generator=g),
    }
    named = {f"diffusion_model.{LAYER}.{ending}": tensor for ending, tensor in more.items()}
    save_file({**tensors, **named}, folder / "lora.safetensors")
    return folder / "lora.safetensors"


def inputs(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(5, 128, generator=generator()).to(dtype)


def layer_of(path: Path, *loras, **options):
    return load_wan(path, loras=loras, **options).tree.blocks[0].self_attn.q


def test_lora_beside_makes_what_merging_makes(tmp_path):
    """Also two of them. Catches: alpha or strength left out, halves swapped, a bias that is not merged."""
    path = save(tmp_path / "wan.safetensors", random_state())
    lora = find_lora(f"{lora_file(tmp_path)}:0.7", open_wan(path))
    merged = layer_of(path, lora, lora)
    added = layer_of(path, *[beside(lora, LINEAR)] * 2)
    assert isinstance(added, LoraLinear)
    x = inputs(torch.float32)
    torch.testing.assert_close(added(x), merged(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(merged(x), layer_of(path)(x), atol=0.1)


@pytest.mark.parametrize("form", FORMATS)
def test_lora_beside_a_quantised_layer_is_exact(form, tmp_path):
    path = save(tmp_path / "q.safetensors", quantised_state(form))
    lora = beside(find_lora(str(lora_file(tmp_path)), open_wan(path)), LINEAR)
    plain = layer_of(path)
    added = layer_of(path, lora)
    assert all(torch.equal(a, b) for a, b in zip(added.layer.buffers(), plain.buffers(), strict=True))
    down, up = lora.factors(Q)
    x = inputs(torch.bfloat16)
    expected = added.layer(x) + (x @ down.bfloat16().T) @ up.bfloat16().T
    assert torch.equal(added(x), expected)
    streamed = load_wan(path, loras=[lora], streamed=[0, 1]).tree.blocks[0]
    assert torch.equal(streamed(lambda block, x: block.self_attn.q(x), x), expected)


def test_dora_beside_is_refused(tmp_path):
    path = save(tmp_path / "wan.safetensors", random_state())
    lora = find_lora(str(lora_file(tmp_path, dora_scale=torch.ones(128, 1))), open_wan(path))
    with pytest.raises(BadInput, match="merge"):
        beside(lora, LINEAR)


def test_mode_without_a_lora_is_refused():
    with pytest.raises(BadInput, match="without a LoRA"):
        LoadOptions(lora_mode="beside")


def test_bytes_of_added_loras_are_counted(tmp_path):
    """Catches a plan that leaves them out, and counts those that are merged."""
    path = save(tmp_path / "wan.safetensors", random_state())
    lora = find_lora(str(lora_file(tmp_path)), open_wan(path))
    assert beside_bytes([lora], torch.bfloat16) == 0
    assert beside_bytes([beside(lora, LINEAR)], torch.bfloat16) == 2 * 4 * (128 + 128)


@pytest.mark.parametrize(("size", "weak"), [(0.001, True), (1.0, False)])
def test_merged_lora_has_a_note_in_steps(size, weak, tmp_path):
    """Catches a weak LoRA that is drowned in the rounding, unsaid."""
    path = save(tmp_path / "q.safetensors", quantised_state("int8"))
    checkpoint = open_wan(path)
    header = WanFile(config=TINY, preset=get_preset("custom"), checkpoint=checkpoint)
    lora = find_lora(str(lora_file(tmp_path, size)), checkpoint)
    [note] = _notes_on_lora("target", header, lora)
    assert (float(note.split(" by ")[1].split()[0]) < 1) == weak
    assert list(_notes_on_lora("target", header, beside(lora, LINEAR))) == []
    assert list(_notes_on_lora("target", replace(header, checkpoint=open_plain(tmp_path)), lora)) == []


def open_plain(folder: Path):
    return open_wan(save(folder / "plain.safetensors", random_state()))
