"""Checkpoint files as MODELs, also those that ComfyUI's own loader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from random_set import write_random_set
from sdvg_pack.nodes.host.files import load_model
from sdvg_pack.nodes.host.presets import attach_preset, preset_of
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.errors import BadInput

pytestmark = pytest.mark.comfyui


def test_a_training_checkpoint_loads_and_can_be_loaded_again_for_another_device(tmp_path: Path) -> None:
    """ComfyUI's device nodes call `cached_patcher_init`; without it they leave the MODEL where it is."""
    files = write_random_set(tmp_path)
    for path in (files.drafter, files.target):
        model = load_model(str(path), "default")
        again, arguments = model.cached_patcher_init[:2]
        twin = again(*arguments, disable_dynamic=True)
        assert twin.model is not model.model
        weights, same = (m.model.diffusion_model.state_dict() for m in (model, twin))
        assert all(torch.equal(weights[name], same[name]) for name in weights)
        assert float(weights["blocks.0.self_attn.q.weight"].float().std()) > 0, (
            "the averaged weights, not the zeros"
        )


def test_a_preset_travels_with_every_clone_of_its_model(tmp_path: Path) -> None:
    """LoRA and device nodes hand on clones."""
    model = attach_preset(load_model(str(write_random_set(tmp_path).target), "default"), get_preset("longlive-1.0"))
    assert preset_of(model.clone().clone()) == get_preset("longlive-1.0")


def test_a_model_of_another_loader_is_known_by_its_size(tmp_path: Path) -> None:
    model = load_model(str(write_random_set(tmp_path).target), "default")
    with pytest.raises(BadInput, match=r"1\.3B or 14B"):
        preset_of(model)
    tree = model.model.diffusion_model
    for config, name in ((WAN_1_3B, "self-forcing-1.3b"), (WAN_14B, "krea-14b")):
        for field in ("dim", "ffn_dim", "num_layers", "num_heads"):
            assert hasattr(tree, field)
            setattr(tree, field, getattr(config, field))
        assert preset_of(model).name == name
