"""LoRAs and their kin: changes of a model's weights, merged while these are read.

Every change is computed in float32, as ComfyUI does it: with alpha over rank, DoRA by the rows' lengths before the
change. What ComfyUI would merge and this does not is refused; what neither knows is left out, and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..devices.device import dtype_name
from ..errors import BadInput
from .weights import WeightFile, open_weights

UPS = (
    ".lora_up.weight",
    "_lora.up.weight",
    ".lora.up.weight",
    ".lora_linear_layer.up.weight",
    ".lora_B.weight",
    ".lora_B.default.weight",
    ".lora_B",
)
LOHA = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
LOKR = ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b")
UNREAD = ("lora_mid.weight", "reshape_weight", "set_weight", "hada_t1", "lokr_t2", "oft_blocks", "a1.weight")
"""Parts that ComfyUI merges too: without them a weight would come out otherwise than there."""
ENDINGS = {
    **dict.fromkeys(UPS, "lora_up"),
    **{end.replace("up", "down").replace("lora_B", "lora_A"): "lora_down" for end in UPS},
    **{f".{part}": part for part in ("alpha", "dora_scale", *LOHA, *LOKR, *UNREAD)},
    **dict.fromkeys((".diff", ".w_norm", ".diff_b", ".b_norm"), "diff"),
}
"""How the name of a tensor ends -> which part of a change it is."""
OF_BIAS = (".diff_b", ".b_norm")
RANKED = ("lora_down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b")
"""Parts whose rows are the rank, by which alpha is divided; the first that a change has counts."""
MOST_STRENGTH = 100.0


class OtherModel(BadInput):
    """A LoRA is for a model of another shape."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one weight. `parts`: part -> name of its tensor in the file. `scale`: alpha over rank."""

    parts: Mapping[str, str]
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """A LoRA for one model.

    `changes`: by the model's own name of a weight. `unused`: names in the file of tensors that change no weight.
    """

    file: WeightFile
    strength: float
    changes: Mapping[str, Change]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file.path.name}:{self.strength:g}"

    def applied(self, name: str, weight: Tensor) -> Tensor:
        """Return a weight with its change, in its own dtype; the weight itself without one.

        Raises `BadInput` if that dtype cannot hold the result.
        """
        if name not in self.changes:
            return weight
        change = self.changes[name]
        parts = {part: self.file[source].to(weight.device, torch.float32) for part, source in change.parts.items()}
        merged = _merged(weight.float(), parts, change.scale, self.strength).to(weight.dtype)
        if bool(weight.isfinite().all()) and not bool(merged.isfinite().all()):
            fault = f"{self.file.path.name} makes {name} too large for {dtype_name(weight.dtype)}"
            raise BadInput(f"{fault}; lower its strength, or compute in bfloat16")
        return merged

    def check_values(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Raise `BadInput` for NaN, infinity, or a change that makes a weight too large for `dtype`."""
        for name, change in self.changes.items():
            bound = abs(self.strength * change.scale)  # no number of a product is larger than its factors' norms
            for source in change.parts.values():
                bound *= float(torch.linalg.vector_norm(self.file[source].float(), dtype=torch.float64))
                if not math.isfinite(bound):
                    raise BadInput(f"{source} in {self.file.path.name} holds NaN or infinity; fetch the file again")
            if bound > torch.finfo(dtype).max / 2:
                self.applied(name, weights[name].to(dtype))


def _merged(weight: Tensor, parts: Mapping[str, Tensor], scale: float, strength: float) -> Tensor:
    """Return a float32 weight with its change. `scale`: of the product of the parts."""
    product = _product(parts).reshape(weight.shape)
    if "dora_scale" not in parts:
        return weight + strength * scale * product
    changed = weight + scale * product
    magnitude = parts["dora_scale"]
    lengths: Tensor
    if magnitude.shape[0] == weight.shape[0]:
        lengths = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.ndim)), keepdim=True)
    else:
        lengths = torch.linalg.vector_norm(changed, dim=(0, *range(2, weight.ndim)), keepdim=True)
    ratio = magnitude.reshape(lengths.shape) / (lengths + torch.finfo(torch.float32).eps)
    return weight + strength * (changed * ratio - weight)


def _product(parts: Mapping[str, Tensor]) -> Tensor:
    """Return what the parts come to: a difference as it is, anything else as `(rows, columns)`."""

    def factor(name: str) -> Tensor:
        if name in parts:
            return parts[name].flatten(1)
        return parts[f"{name}_a"].flatten(1) @ parts[f"{name}_b"].flatten(1)

    if "diff" in parts:
        return parts["diff"]
    if not parts.keys().isdisjoint(LOHA):
        return factor("hada_w1") * factor("hada_w2")
    if not parts.keys().isdisjoint(LOKR):
        return torch.kron(factor("lokr_w1"), factor("lokr_w2"))
    return parts["lora_up"].flatten(1) @ parts["lora_down"].flatten(1)


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


def open_lora(text: str, shapes: Mapping[str, tuple[int, ...]], flat_name: Callable[[str], str]) -> Lora:
    """Return a LoRA for a model with weights of these `shapes`; its values are not read.

    `text`: `FILE` or `FILE:STRENGTH`. `flat_name`: makes one name of all spellings of a layer. Raises `OtherModel`
    if it does not fit the model, `BadInput` if the file holds no LoRA, or changes that are not read here.
    """
    path, strength = split_strength(text)
    file = open_weights(path)
    weights = {flat_name(name.removesuffix(".weight")): name for name in shapes}
    parts: dict[str, dict[str, str]] = {}
    unused = []
    for source in file:
        end = next((end for end in ENDINGS if source.endswith(end)), "")
        layer = source.removesuffix(end) + (".bias" if end in OF_BIAS else "")
        name = weights.get(flat_name(layer)) if end else None
        if name is None:
            unused.append(source)
            continue
        other = parts.setdefault(name, {}).setdefault(ENDINGS[end], source)
        if other != source:
            raise BadInput(f"{path.name} changes {name} twice ({other}, {source}); convert it to one change")
    if not parts and not any(source.endswith(tuple(ENDINGS)) for source in file):
        raise BadInput(f"{path.name} holds no LoRA, but {unused[0]}; give one for the drafter or the target")
    if not parts:
        raise OtherModel(f"{path.name} changes no layer of this model, but {unused[0]}; give a LoRA of Wan 2.1")
    changes = {name: _open_change(file, name, shapes[name], named) for name, named in parts.items()}
    return Lora(file, strength, changes, tuple(unused))


def _open_change(file: WeightFile, name: str, shape: tuple[int, ...], parts: Mapping[str, str]) -> Change:
    """Return the change of a weight. Raises `OtherModel` if it is for another shape, `BadInput` if it is none."""
    unread = [source for part, source in parts.items() if part in UNREAD]
    if unread:
        raise BadInput(f"{unread[0]} in {file.path.name} is of a kind that is not read here; convert it to a LoRA")
    kinds = {part.partition("_")[0]: source for part, source in parts.items()}
    several = [source for kind, source in kinds.items() if kind not in ("alpha", "dora")]
    if len(several) > 1:
        raise BadInput(f"{file.path.name} changes {name} twice ({', '.join(several)}); convert it to one change")
    alpha = parts.get("alpha")
    parts = {part: source for part, source in parts.items() if part != "alpha"}
    weight = torch.empty(shape, device="meta")
    empty = {part: torch.empty(file.info[source].shape, device="meta") for part, source in parts.items()}
    try:
        product = _product(empty)
        fits = product.shape == (weight.shape if "diff" in parts else weight.flatten(1).shape)
        fits = fits and _merged(weight, empty, 1.0, 1.0).shape == weight.shape
    except KeyError as error:
        raise BadInput(f"{file.path.name} changes {name}, but lacks {error} for it; fetch it again") from error
    except (RuntimeError, IndexError):
        fits = False
    if not fits:
        source = next(iter(parts.values()))
        raise OtherModel(f"{source} in {file.path.name} does not fit {name} of {shape}; give a LoRA for its size")
    rank = next((file.info[parts[part]].shape[0] for part in RANKED if part in parts), 0)
    if alpha is None or not rank:
        return Change(parts, 1.0)
    if math.prod(file.info[alpha].shape) != 1:
        raise BadInput(f"{alpha} in {file.path.name} is not one number; fetch the file again")
    return Change(parts, float(file[alpha]) / rank)
