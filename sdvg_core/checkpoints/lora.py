"""LoRA, LoHa, LoKr and DoRA: changes of weights, merged while the weights are loaded.

As in ComfyUI, changes are computed in float32 with alpha over rank. Kinds that ComfyUI would merge and we do not
are rejected; tensors that neither knows are ignored and named. Applying a LoRA at run time would be reversible, but
cost time in every pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..devices.device import dtype_name
from ..errors import BadInput
from ..settings.load import split_strength
from .weights import WeightFile, open_weights

ENDING = re.compile(
    r"[._]lora(?:_linear_layer)?[._](?:(?P<lora_a>up|B)|(?P<lora_b>down|A))(?:\.default)?(?:\.weight)?$"
    r"|\.(?P<other>alpha|dora_scale|(?:hada|lokr)_w[12](?:_[ab])?)$"
    r"|\.(?P<diff>diff|w_norm)$|\.(?P<bias>diff_b|b_norm)$"
    r"|\.(?P<unread>lora_mid\.weight|reshape_weight|set_weight|hada_t1|lokr_t2|oft_blocks|a1\.weight)$"
)
"""Matches the end of a tensor's name: the part of a change. `unread`: kinds that only ComfyUI merges."""
SHARED = ("alpha", "dora_scale")
FACTORS = {"lora": ("lora",), "hada": ("hada_w1", "hada_w2"), "lokr": ("lokr_w1", "lokr_w2")}
"""Kind of a change -> its factors, each a matrix or the product of its halves `_a` and `_b`."""
RANKED = ("lora_b", "hada_w1_b", "lokr_w2_b", "lokr_w1_b")
"""Parts whose number of rows is the rank; the first that exists counts."""


class OtherModel(BadInput):
    """A LoRA for a model of another shape."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one weight: a difference (`diff`), or a product of `FACTORS`, with or without DoRA.

    `parts`: part -> name of its tensor in the file. `scale`: alpha over rank.
    """

    kind: str
    parts: Mapping[str, str]
    scale: float

    def merged(self, weight: Tensor, parts: Mapping[str, Tensor], strength: float) -> Tensor:
        """Return a float32 weight with the change merged. `parts`: its tensors, float32."""
        product = self._product(parts).reshape(weight.shape)
        if "dora_scale" not in parts:
            return weight + strength * self.scale * product
        changed = weight + self.scale * product
        magnitude = parts["dora_scale"]
        lengths: Tensor
        if magnitude.shape[0] == weight.shape[0]:
            lengths = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.ndim)), keepdim=True)
        else:
            lengths = torch.linalg.vector_norm(changed, dim=(0, *range(2, weight.ndim)), keepdim=True)
        ratio = magnitude.reshape(lengths.shape) / (lengths + torch.finfo(torch.float32).eps)
        return weight + strength * (changed * ratio - weight)

    def _product(self, parts: Mapping[str, Tensor]) -> Tensor:
        if self.kind == "diff":
            return parts["diff"]
        matrices = {part: tensor.reshape(_rows_columns(tensor.shape)) for part, tensor in parts.items()}
        first, *second = [
            matrices[name] if name in matrices else matrices[f"{name}_a"] @ matrices[f"{name}_b"]
            for name in FACTORS[self.kind]
        ]
        if self.kind == "lokr":
            return torch.kron(first, *second)
        return first * second[0] if second else first


def _rows_columns(shape: Sequence[int]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """A LoRA for one model. `changes`: by the model's weight names. `unused`: other tensors of the file."""

    file: WeightFile
    strength: float
    changes: Mapping[str, Change]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file.path.name}:{self.strength:g}"

    def applied(self, name: str, weight: Tensor) -> Tensor:
        """Return a weight with its change, if any, in its dtype. Raises `BadInput` if that overflows."""
        if name not in self.changes:
            return weight
        change = self.changes[name]
        parts = {part: self.file[source].to(weight.device, torch.float32) for part, source in change.parts.items()}
        merged = change.merged(weight.float(), parts, self.strength).to(weight.dtype)
        if not bool(merged.isfinite().all()) and bool(weight.isfinite().all()):
            fault = f"{self.file.path.name} makes {name} too large for {dtype_name(weight.dtype)}"
            raise BadInput(f"{fault}; lower its strength, or compute in bfloat16")
        return merged

    def check_values(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Raise `BadInput` for NaN, infinity, or a change that makes a weight too large for `dtype`."""
        for name, change in self.changes.items():
            bound = abs(self.strength * change.scale)  # values of a product are bounded by its factors' norms
            for source in change.parts.values():
                bound *= float(torch.linalg.vector_norm(self.file[source].float(), dtype=torch.float64))
                if not math.isfinite(bound):
                    raise BadInput(f"{source} in {self.file.path.name} holds NaN or infinity; fetch the file again")
            if bound > torch.finfo(dtype).max / 2:
                self.applied(name, weights[name].to(dtype))


def open_lora(text: str, shapes: Mapping[str, tuple[int, ...]], flat_name: Callable[[str], str]) -> Lora:
    """Open a LoRA for a model with weights of these `shapes`, without reading values.

    `text`: `FILE` or `FILE:STRENGTH`. `flat_name`: maps all spellings of a layer to one. Raises `OtherModel` if it
    does not fit the model, and `BadInput` if the file holds no LoRA, or kinds that are not supported.
    """
    path, strength = split_strength(text)
    file = open_weights(path)
    weights = {flat_name(name.removesuffix(".weight")): name for name in shapes}
    parts: dict[str, dict[str, str]] = {}
    unused = []
    for source in file:
        layer, part = _layer_and_part(source)
        name = weights.get(flat_name(layer)) if part else None
        if name is None:
            unused.append(source)
            continue
        other = parts.setdefault(name, {}).setdefault(part, source)
        if other != source:
            raise BadInput(f"{path.name} changes {name} twice ({other}, {source}); convert it to one change")
    if not parts and not any(map(ENDING.search, file)):
        raise BadInput(f"{path.name} holds no LoRA, but {unused[0]}; give one for the drafter or the target")
    if not parts:
        raise OtherModel(f"{path.name} changes no layer of this model, but {unused[0]}; give a LoRA of Wan 2.1")
    changes = {name: _open_change(file, name, shapes[name], named) for name, named in parts.items()}
    return Lora(file, strength, changes, tuple(unused))


def _layer_and_part(source: str) -> tuple[str, str]:
    """Split a tensor's name into layer (or its bias) and part of the change, which is empty for other tensors."""
    end = ENDING.search(source)
    if end is None:
        return source, ""
    layer = source[: end.start()]
    if end["bias"]:
        return f"{layer}.bias", "diff"
    return layer, end["other"] or end.lastgroup or ""


def _open_change(file: WeightFile, name: str, shape: tuple[int, ...], parts: Mapping[str, str]) -> Change:
    """Return the change of a weight. Raises `OtherModel` for another shape, and `BadInput` for incomplete parts."""
    if "unread" in parts:
        raise BadInput(
            f"{parts['unread']} in {file.path.name} is of a kind that is not read here; convert it to LoRA"
        )
    kinds = {part.partition("_")[0]: source for part, source in parts.items() if part not in SHARED}
    if len(kinds) > 1:
        several = ", ".join(kinds.values())
        raise BadInput(f"{file.path.name} changes {name} twice ({several}); convert it to one change")
    kind = next(iter(kinds), "lora")
    shapes = {part: file.info[source].shape for part, source in parts.items()}
    try:
        fits = _fits(kind, shapes, shape)
    except KeyError as error:
        source = next(iter(parts.values()))
        raise BadInput(f"{file.path.name} has {source} without its other part; fetch the file again") from error
    if not fits:
        source = next(iter(kinds.values()))
        raise OtherModel(f"{source} in {file.path.name} does not fit {name} of {shape}; give a LoRA for its size")
    rank = next((shapes[part][0] for part in RANKED if part in shapes), 0)
    scale = 1.0
    if rank and "alpha" in parts:
        alpha = file[parts["alpha"]]
        if alpha.numel() != 1 or not bool(alpha.isfinite()):
            raise BadInput(f"{parts['alpha']} in {file.path.name} is no finite number; fetch the file again")
        scale = float(alpha) / rank
    return Change(kind, {part: source for part, source in parts.items() if part != "alpha"}, scale)


def _fits(kind: str, shapes: Mapping[str, tuple[int, ...]], weight: tuple[int, ...]) -> bool:
    """True if parts of these `shapes` fit a weight of shape `weight`. Raises `KeyError` if a part is missing."""
    if kind == "diff":
        return shapes["diff"] == weight
    sizes = {part: _rows_columns(shape or (1,)) for part, shape in shapes.items()}
    factors: list[tuple[int, int]] = []
    for name in FACTORS[kind]:
        if name not in sizes:
            rows, inner = sizes[f"{name}_a"]
            rank, columns = sizes[f"{name}_b"]
            if inner != rank:
                return False
            sizes[name] = rows, columns
        factors.append(sizes[name])
    if kind == "lokr":
        factors = [(math.prod(rows for rows, _ in factors), math.prod(columns for _, columns in factors))]
    if set(factors) != {_rows_columns(weight)}:
        return False
    magnitude = shapes.get("dora_scale")
    if magnitude is None or len(weight) == 1:
        return magnitude is None
    return math.prod(magnitude) == weight[0 if magnitude[:1] == weight[:1] else 1]
