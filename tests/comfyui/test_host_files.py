"""Checkpoint files as MODELs, also those that ComfyUI's own loader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sdvg_pack.nodes.host.files import load_model
from sdvg_pack.sdvg_core.pocket.random_set import write_random_set

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
