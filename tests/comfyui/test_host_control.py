"""The control branch over ComfyUI's VACE modules, against ComfyUI's own VACE model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.sd
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from host_clip import NOISE, SCHEDULE, SPANS, onto_device, text
from host_tiny import CONFIG, SIZE, STATED, generator_of, load_model, random_weights
from safetensors.torch import save_file
from sdvg_pack.nodes.host.model import comfy_wan, compute_dtype
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.config import control_shapes
from sdvg_pack.sdvg_core.causal_wan.control_files import load_control, open_control
from sdvg_pack.sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_pack.sdvg_core.causal_wan.incremental import Incremental
from sdvg_pack.sdvg_core.causal_wan.presets import get_preset
from sdvg_pack.sdvg_core.engine.control import CHANNELS, ControlClip
from sdvg_pack.sdvg_core.engine.history import History
from sdvg_pack.sdvg_core.engine.protocols import BlockCall
from sdvg_pack.sdvg_core.engine.types import Condition
from torch import Tensor

pytestmark = pytest.mark.comfyui

LAYERS, HINTS = 4, 2  # hints after layers 0 and 2
SIZES = replace(CONFIG, num_layers=LAYERS)
DEPTH, SCRIBBLE = (torch.randn(1, CHANNELS, 3, *SIZE, generator=generator_of(seed)) for seed in (77, 78))
STRENGTHS = {"none": (0.0,), "half": (0.5,), "whole": (1.0,), "two": (0.7, 0.4)}


def control_weights(seed: int = 9) -> dict[str, Tensor]:
    g, weights = generator_of(seed), {}
    for name, shape in control_shapes(SIZES, HINTS).items():
        fan_in = torch.Size(shape[1:]).numel() if len(shape) > 1 else 1
        scale = 0.3 if len(shape) == 1 or "modulation" in name else 1.4 / fan_in**0.5
        one = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        weights[name] = torch.randn(shape, generator=g) * scale + one
    return weights


def load_vace(folder: Path, seed: int) -> ModelPatcher:
    """A whole VACE checkpoint, as ComfyUI loads it; `seed`: of the transformer, which a control does not use."""
    path = folder / f"vace{seed}.safetensors"
    weights = {**random_weights(seed, SIZES), **control_weights()}
    save_file(weights, path, metadata={"config": json.dumps({"transformer": STATED})})
    return comfy.sd.load_diffusion_model(str(path))


def controlled(tree: Any, ops: Any, module: Any, clips: tuple[ControlClip, ...]) -> Tensor:
    """The first block, by our forward pass."""
    generator = CausalWanGenerator(
        tree, name="model", ops=ops, context=Incremental(window=3), schedule=SCHEDULE[:1], control=module
    )
    call = BlockCall(History(), SPANS[0], replace(NOISE, controls=clips), Condition(text(), "a", "a"))
    return generator.generate(call).latents


@torch.inference_mode()
def native(patcher: ModelPatcher, clips: tuple[ControlClip, ...]) -> Tensor:
    """The same by ComfyUI's VACE model."""
    with torch.inference_mode(mode=False):
        onto_device(patcher)
    model, dtype, x = patcher.model.diffusion_model, compute_dtype(patcher), NOISE.draw(SPANS[0], 0)
    step = SCHEDULE[0]
    velocity = model.forward_orig(
        x.to(dtype),
        torch.tensor([step.timestep], dtype=torch.float32),
        text().to(dtype),
        vace_context=torch.stack([clip.context for clip in clips], dim=1).to(dtype),
        vace_strength=[clip.strength for clip in clips],
        freqs=model.rope_encode(*x.shape[2:], device=patcher.load_device, dtype=torch.float32),
    )
    return x - step.sigma * velocity


@pytest.mark.parametrize("strengths", STRENGTHS.values(), ids=STRENGTHS)
def test_the_branch_over_comfyuis_modules_makes_what_comfyuis_vace_model_makes(
    strengths: tuple[float, ...], tmp_path: Path
) -> None:
    clips = tuple(ControlClip(clip, s) for clip, s in zip((DEPTH, SCRIBBLE), strengths, strict=False))
    wan = comfy_wan(onto_device(load_model(tmp_path, random_weights(0, SIZES))), get_preset("custom"))
    module = onto_device(load_vace(tmp_path, 5)).model.diffusion_model
    ours, theirs = controlled(wan.tree, wan.ops, module, clips), native(load_vace(tmp_path, 0), clips)
    assert torch.allclose(ours, theirs, atol=2e-5), (ours - theirs).abs().max()
    plain = controlled(wan.tree, wan.ops, None, ())
    assert ((ours - plain).norm() > 0.05 * plain.norm()) == any(strengths)
    save_file(control_weights(), tmp_path / "module.safetensors")
    for file in ("module.safetensors", "vace5.safetensors"):
        found = open_control(tmp_path / file, SIZES, "target")
        own = load_control(found, device=torch.device("cpu"), dtype=torch.float32)
        by_own = controlled(wan.tree, TorchOps(torch.float32), own, clips)
        assert torch.allclose(by_own, theirs, atol=1e-4), (by_own - theirs).abs().max()
