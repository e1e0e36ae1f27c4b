"""LoRAs: low-rank changes of a model's weights, merged while these are read.

A layer's weight becomes `W + strength * alpha / rank * up @ down`, computed in float32, as ComfyUI does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import BadInput
from .weights import WeightFile, open_weights

PREFIXES = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "lora_unet_",
    "model.",
)
DOWN = (".lora_down.weight", ".lora_A.weight", ".lora_A.default.weight", ".lora.down.weight")
UP = (".lora_up.weight", ".lora_B.weight", ".lora_B.default.weight", ".lora.up.weight")
ALPHA, DIFFS = ".alpha", {".diff": "weight", ".diff_b": "bias"}
MOST_STRENGTH = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """A LoRA for one model. `changes`: by the model's own name of a weight, the tensors of its change."""

    file: WeightFile
    strength: float
    changes: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        return f"{self.file.path.name}:{self.strength:g}"

    def applied(self, name: str, weight: Tensor) -> Tensor:
        """Return a weight with its change, in its own dtype; the weight itself without one."""
        if name not in self.changes:
            return weight
        parts = [self.file[part].to(weight.device, torch.float32) for part in self.changes[name]]
        if len(parts) == 1:
            change = self.strength * parts[0]
        else:
            down, up, *alpha = parts
            scale = self.strength * (float(alpha[0]) / down.shape[0] if alpha else 1.0)
            change = scale * (up.flatten(1) @ down.flatten(1))
        return (weight.float() + change.reshape(weight.shape)).to(weight.dtype)


def split_strength(text: str) -> tuple[Path, float]:
    """Read `FILE` or `FILE:STRENGTH`. Raises `BadInput` if the strength is not a number."""
    name, colon, number = text.rpartition(":")
    try:
        strength = float(number) if colon else 1.0
    except ValueError:
        return Path(text), 1.0
    if not math.isfinite(strength) or abs(strength) > MOST_STRENGTH:
        raise BadInput(f"a LoRA's strength is {number}; give one from -{MOST_STRENGTH:g} to {MOST_STRENGTH:g}")
    return Path(name if colon else text), strength


def open_lora(text: str, shapes: Mapping[str, tuple[int, ...]], wan_name: Callable[[str], str]) -> Lora | None:
    """Return a LoRA for a model with weights of these `shapes`, or None if it is for another one.

    `text`: `FILE` or `FILE:STRENGTH`. `wan_name`: from diffusers' name of a layer to the model's own.
    Raises `BadInput` if the file holds no LoRA, or something else too.
    """
    path, strength = split_strength(text)
    file = open_weights(path)
    layers = {name.rpartition(".")[0] for name in shapes}
    flat = {layer.replace(".", "_"): layer for layer in layers}
    found: dict[str, list[str | None]] = {}
    foreign, others = [], 0
    for name in file:
        layer, place, leaf = _placed(name)
        if layer is None:
            foreign.append(name)
            continue
        for prefix in PREFIXES:
            layer = layer.removeprefix(prefix)
        layer = flat.get(layer) or wan_name(layer)
        if layer not in layers:
            others += 1
            continue
        parts = found.setdefault(f"{layer}.{leaf}", [None, None, None])
        if parts[place]:
            raise BadInput(
                f"{path.name} changes {layer}.{leaf} twice ({parts[place]}, {name}); convert it to one change"
            )
        parts[place] = name
    if not found and not others:
        raise BadInput(f"{path.name} holds no LoRA; give one for the drafter or the target")
    if foreign:
        some = f"{len(foreign)} tensors, such as {foreign[0]:.60}"
        raise BadInput(f"{path.name} has {some}, which no plain LoRA has; convert it to one")
    changes = {name: tuple(part for part in parts if part) for name, parts in found.items()}
    fits = all(_fits(file, parts, shapes.get(name, ())) for name, parts in changes.items())
    return None if others or not fits else Lora(file, strength, changes)


def _placed(name: str) -> tuple[str | None, int, str]:
    """Return a tensor's layer, its place (0 down or diff, 1 up, 2 alpha), and what of the layer it changes."""
    for place, ends in ((0, DOWN), (1, UP), (2, (ALPHA,))):
        for end in ends:
            if name.endswith(end):
                return name.removesuffix(end), place, "weight"
    for end, leaf in DIFFS.items():
        if name.endswith(end):
            return name.removesuffix(end), 0, leaf
    return None, 0, ""


def _fits(file: WeightFile, parts: tuple[str, ...], shape: tuple[int, ...]) -> bool:
    """Whether a change is of a weight of this shape: as many rows, and as many numbers in each."""
    sizes = [file.info[part].shape for part in parts]
    if len(sizes) == 1:
        return tuple(sizes[0]) == tuple(shape)
    down, up = sizes[:2]
    halves = len(down) > 1 and len(up) > 1 and down[0] == math.prod(up[1:])
    return halves and (up[0], math.prod(down[1:])) == (shape[0], math.prod(shape[1:]))
