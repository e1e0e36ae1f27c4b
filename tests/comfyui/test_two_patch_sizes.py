"""A target whose token is one latent pixel beside a drafter of 2 x 2, as ComfyUI loads and runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import folder_paths
import pytest
import torch
from host_clip import clip, native_clip, onto_device, over
from host_tiny import CONFIG, STATED, load_model, random_weights
from safetensors.torch import save_file
from sdvg_pack.nodes.host import model
from sdvg_pack.nodes.loaders import TargetLoader
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.checkpoint import load_wan
from test_host_model import standalone

pytestmark = pytest.mark.comfyui

FINE = replace(CONFIG, patch_size=(1, 1, 1))
SIZES: dict[str, Any] = {**STATED, "patch_size": [1, 1, 1], "out_dim": 16}


def write(path: Path, stated: dict[str, Any]) -> Path:
    """Write the fine model as the embedded set holds its own: 16 bits, under a prefix."""
    weights = {f"model.{name}": w.half() for name, w in random_weights(4, FINE).items()}
    save_file(weights, path, {"config": json.dumps({"transformer": stated})})
    return path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "diffusion_models"
    folder.mkdir()
    monkeypatch.setattr(folder_paths, "get_filename_list", lambda kind: ["fine.safetensors"])
    monkeypatch.setattr(folder_paths, "get_full_path_or_raise", lambda kind, name: str(folder / name))
    return folder


@pytest.mark.parametrize("stated", [SIZES, STATED], ids=["all sizes stated", "no patch stated"])
def test_the_loader_node_loads_tokens_of_one_latent_pixel(
    stated: dict[str, Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ComfyUI's own detection takes every Wan for one of 2 x 2. Over its modules we make what ours make."""
    path = write(models / "fine.safetensors", stated)
    loaded = TargetLoader.execute(
        file="fine.safetensors", weight_dtype="default", preset={"preset": "krea-14b"}
    ).args[0]
    tree = loaded.model.diffusion_model
    assert (tuple(tree.patch_size), tree.out_dim) == ((1, 1, 1), 16)
    assert not loaded.model.diffusion_model.head.head.weight.isnan().any()
    monkeypatch.setattr(model, "ComfyOps", lambda dtype, _: TorchOps(torch.float32))
    ours = standalone(load_wan(path, dtype=torch.float32).tree)
    torch.testing.assert_close(clip(over(onto_device(loaded))), clip(ours), rtol=0, atol=2e-3)


def test_our_forward_over_it_equals_comfyuis_causal_forward(tmp_path: Path) -> None:
    weights = random_weights(4, FINE)
    ours = clip(over(onto_device(load_model(tmp_path, weights, patch_size=[1, 1, 1], out_dim=16))))
    causal = load_model(tmp_path, weights, causal=True, patch_size=[1, 1, 1], out_dim=16)
    assert torch.equal(ours, native_clip(causal, tokens=6 * 8))
    assert not torch.equal(ours, clip(over(onto_device(load_model(tmp_path)))))
