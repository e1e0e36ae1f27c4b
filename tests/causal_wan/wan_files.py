"""Tiny random Wan 2.1 checkpoints, written in the layouts that real ones come in."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.causal_wan.config import WanConfig, wan_shapes

TINY = WanConfig(dim=128, ffn_dim=48, num_layers=2, num_heads=1, text_dim=8, freq_dim=16)
NARROW = WanConfig(dim=24, ffn_dim=32, num_layers=2, num_heads=2, text_dim=8, freq_dim=16)
NARROW_METADATA = {"config": json.dumps({"transformer": {"num_heads": 2, "causal_ar": True}})}


def random_state(
    config: WanConfig = TINY, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """A state dict in Wan names; no two of its tensors are equal."""
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g).to(dtype) for name, shape in wan_shapes(config).items()}


def save(path: Path, state: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
    save_file({name: t.clone() for name, t in state.items()}, path, metadata=metadata)
    return path


def save_hollow(path: Path, config: WanConfig, metadata: dict[str, str] | None = None) -> Path:
    """A bfloat16 file of real size that takes no room on the disk: a header, and a hole for the values."""
    offset = 0
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for name, shape in wan_shapes(config).items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return path


def prefixed(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def assert_same_tensors(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert sorted(state) == sorted(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype, name
        assert torch.equal(state[name], tensor), name
