"""Tiny checkpoints in int8 and 4 bits, made by hand from kitchen's tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from wan_files import TINY, random_state

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.weights.kitchen import FORMATS, mark_of, quantise

MATRIX = re.compile(r"blocks\.\d+\.((self|cross)_attn\.[qkvo]|ffn\.[02])\.weight")
Q = "blocks.0.self_attn.q.weight"


def quantised_state(form: str, config: WanConfig = TINY, *, seed: int = 0) -> dict[str, Tensor]:
    """Return a random state dict whose large matrices are in a format of `convert`; nobody may change a tensor."""
    return dict(_quantised_once(form, config, seed))


@cache
def _quantised_once(form: str, config: WanConfig, seed: int) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in random_state(config, seed=seed, dtype=torch.bfloat16).items():
        state |= quantised_tensors(form, name, tensor) if MATRIX.fullmatch(name) else {name: tensor}
    return state


def quantised_tensors(form: str, name: str, weight: Tensor) -> dict[str, Tensor]:
    layer, parts = quantise(weight, name, FORMATS[form])
    mark = torch.tensor(list(mark_of(layer)), dtype=torch.uint8)
    return {layer.names[part]: tensor for part, tensor in parts.items()} | {f"{name[:-7]}.comfy_quant": mark}


def hadamard(size: int) -> Tensor:
    """Return the rotation of ConvRot: products of a matrix of 4 x 4 by itself, of length 1."""
    four = torch.ones(4, 4) - 2 * torch.eye(4).flip(1)
    matrix = four
    while len(matrix) < size:
        matrix = torch.kron(matrix, four)
    return matrix / size**0.5


def plain_weight(parts: Mapping[str, Tensor], columns: int, rotation: int, group: int = 16) -> Tensor:
    """Return what stored parts mean, without kitchen: numbers times scales, then the rotation taken back."""
    numbers = parts["weight"]
    if "s_channel" in parts:
        packed = numbers.view(torch.uint8)
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        levels = parts["codebook"][codes.int()].unflatten(1, (-1, group)) * parts["scale"].float()[..., None]
        numbers = levels.flatten(1).round().clamp(-127, 127)
        scale = parts["s_channel"][:, None]
    else:
        scale = parts["scale"]
    turned = (numbers.float() * scale).view(len(numbers), -1, rotation) @ hadamard(rotation).T
    return turned.reshape(-1, columns)


def changed(state: Mapping[str, Tensor], **changes: Any) -> dict[str, Tensor]:
    """Return the tensors with those of one layer replaced, by the end of their names, or left out for None."""
    named = {f"{Q[:-7]}.{ending}": tensor for ending, tensor in changes.items()}
    return {name: tensor for name, tensor in {**state, **named}.items() if tensor is not None}
