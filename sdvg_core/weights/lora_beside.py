"""LoRAs beside their layers instead of merged: exact where merged weights would be rounded to int8 or 4 bits again.

As ComfyUI's bypass loader does. It costs two thin products in every call, and the memory of the LoRA.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import BadInput
from .kitchen import QuantisedLayer
from .lora import Lora
from .weight_file import WeightFile

COMPARED = 4
"""Layers whose change is compared with the steps of their levels."""


class LoraLinear(nn.Module):
    """A linear layer with LoRAs beside it.

    `down`: `(rank, columns)`. `up`: `(rows, rank)`, with the strengths.
    """

    down: Tensor
    up: Tensor

    def __init__(self, layer: nn.Module, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("down", down)
        self.register_buffer("up", up)

    def forward(self, x: Tensor) -> Tensor:
        """Return `layer(x) + x @ down.T @ up.T`."""
        result: Tensor = self.layer(x) + F.linear(F.linear(x, self.down), self.up)
        return result


def beside(lora: Lora, linear: Collection[str]) -> Lora:
    """Return a LoRA that is added beside the layers whose weights are `linear`.

    Raises `BadInput` for one that is no product of two matrices there.
    """
    for name in linear:
        change = lora.changes.get(name)
        if change and set(change.parts) != {"lora_a", "lora_b"}:
            fault = (
                f"{lora.file.path.name} changes {name} by more than two matrices (LoHa, LoKr, DoRA or a difference)"
            )
            raise BadInput(f"{fault}; merge it, with --lora-mode merge")
    return replace(lora, beside=frozenset(name for name in linear if name in lora.changes))


def merged_only(loras: Iterable[Lora]) -> list[Lora]:
    """Return LoRAs with the changes that are merged."""
    return [
        replace(lora, changes={name: change for name, change in lora.changes.items() if name not in lora.beside})
        for lora in loras
    ]


def add_beside(tree: nn.Module, loras: Sequence[Lora], dtype: torch.dtype) -> None:
    """Add to a loaded tree the changes that are not merged."""
    for name in dict.fromkeys(name for lora in loras for name in lora.beside):
        layer = name.removesuffix(".weight")
        module = tree.get_submodule(layer)
        home = next(module.parameters()).device
        factors = [lora.factors(name) for lora in loras if name in lora.beside]
        down = torch.cat([down for down, _ in factors]).to(home, dtype)
        up = torch.cat([up for _, up in factors], dim=1).to(home, dtype)
        parent, _, leaf = layer.rpartition(".")
        tree.get_submodule(parent).register_module(leaf, LoraLinear(module, down, up))


def beside_bytes(loras: Iterable[Lora], dtype: torch.dtype) -> int:
    """Return the bytes of what is added beside layers."""
    numbers = sum(
        math.prod(lora.file.info[source].shape)
        for lora in loras
        for name in lora.beside
        for source in lora.changes[name].parts.values()
    )
    return numbers * dtype.itemsize


def change_in_steps(lora: Lora, layers: Mapping[str, QuantisedLayer], weights: WeightFile) -> float | None:
    """Return how much a merged LoRA changes quantised weights, in steps of their levels, on some layers.

    None if it changes no such weight.
    """
    names = [name for name in layers if name in lora.changes and name not in lora.beside]
    shares = []
    for name in names[:: -(-len(names) // COMPARED) or 1]:
        parts = layers[name].read(weights, torch.device("cpu"))
        weight = layers[name].dequantised(parts)
        change = lora.applied(name, weight) - weight
        shares.append(float(change.square().mean().sqrt()) / layers[name].step(parts))
    return sum(shares) / len(shares) if shares else None
