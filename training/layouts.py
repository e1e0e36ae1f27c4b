"""Weights in the layouts that others publish; what reads them is in the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from sdvg_core.checkpoints.weights import count_layers
from sdvg_core.decoders.wan_vae_files import RESIDUAL, rename, units_of
from sdvg_core.text.umt5 import SPIECE, TABLE_COPY

T = TypeVar("T")


def wan_vae_to_original(weights: Mapping[str, T]) -> dict[str, T]:
    """Return weights with diffusers' names (`AutoencoderKLWan.state_dict()`) under the original release's names."""
    stage = count_layers(weights, "decoder.up_blocks.0.resnets") + 1
    stages = count_layers(weights, "decoder.up_blocks")
    units = units_of(count_layers(weights, "encoder.down_blocks"), stages * stage - 1, stage)
    back, residual = ({new: old for old, new in table.items()} for table in (units, RESIDUAL))
    return {rename(name, back, residual): tensor for name, tensor in weights.items()}


def umt5_to_comfy(weights: Mapping[str, Tensor], spiece: bytes) -> dict[str, Tensor]:
    """Return `UMT5EncoderModel` weights in the form of ComfyUI's text encoder files, with the tokenizer inside."""
    kept = {name: tensor for name, tensor in weights.items() if name != TABLE_COPY}
    return {**kept, SPIECE: torch.frombuffer(bytearray(spiece), dtype=torch.uint8)}
