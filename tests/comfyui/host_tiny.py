"""Tiny random models as files in the real formats, and as ComfyUI loads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import comfy.sd
import comfy.utils
import torch
from comfy.ldm.wan.vae import WanVAE
from comfy.model_patcher import ModelPatcher
from safetensors.torch import save_file
from sdvg_pack.sdvg_core.causal_wan.config import WanConfig, wan_shapes
from torch import Tensor

CONFIG = WanConfig(dim=64, ffn_dim=96, num_layers=3, num_heads=2, text_dim=32)
STATED = {"num_heads": CONFIG.num_heads, "text_dim": CONFIG.text_dim}
SIZE = (6, 8)
VAE_DIM = 4


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weights(
    seed: int = 0, config: WanConfig = CONFIG, shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """Weights under which every input matters: context, prompt, position, timestep. `shapes`: else the model's."""
    g, weights = generator_of(seed), {}
    for name, shape in (shapes or wan_shapes(config)).items():
        fan_in = torch.Size(shape[1:]).numel() if len(shape) > 1 else 1
        scale = 0.3 if len(shape) == 1 or "modulation" in name else 1.4 / fan_in**0.5
        weights[name] = torch.randn(shape, generator=g) * scale + (
            1.0 if "norm" in name and name.endswith("weight") else 0.0
        )
    return weights


def load_model(
    folder: Path, weights: dict[str, Tensor] | None = None, *, causal: bool = False, **stated: Any
) -> ModelPatcher:
    """Save weights and load them as Load Diffusion Model does; `causal`: under ComfyUI's own causal forward."""
    transformer = {**STATED, **stated, **({"causal_ar": True} if causal else {})}
    path = folder / "model.safetensors"
    save_file(weights or random_weights(), path, metadata={"config": json.dumps({"transformer": transformer})})
    return comfy.sd.load_diffusion_model(str(path))


def load_vae(seed: int = 0, dim: int = VAE_DIM) -> comfy.sd.VAE:
    """Return a VAE with Wan 2.1's layout, narrow and random."""
    g = generator_of(seed)
    layout = {
        "dim": dim,
        "z_dim": 16,
        "dim_mult": [1, 2, 4, 4],
        "num_res_blocks": 2,
        "attn_scales": [],
        "temperal_downsample": [False, True, True],
    }
    empty = WanVAE(**layout).state_dict()
    weights = {
        name: torch.ones_like(t) if "gamma" in name else torch.randn(t.shape, generator=g) * 0.08
        for name, t in empty.items()
    }
    return comfy.sd.VAE(sd=weights)
