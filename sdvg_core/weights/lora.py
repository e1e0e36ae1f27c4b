"""LoRA, LoHa, LoKr and DoRA: changes of weights, merged while the weights are loaded.

As in ComfyUI, changes are computed in float32 with alpha over rank. Kinds that ComfyUI would merge and we do not
are rejected, as is what is not known of a layer that the model has; layers that it lacks, or has in another shape,
are ignored and named. Applying a LoRA at run time would be reversible, but
cost time in every pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..devices.device import dtype_name
from ..errors import BadInput, count
from ..settings.load import split_strength
from .lora_file import FLAGS, UNREAD_ENDING, LoraLayers, Stated, add_part, rank_of, read_parts, read_stated
from .names import Rename
from .weight_file import WeightFile, open_weights

MAGNITUDES = ("dora_scale", "magnitude")
SHARED = ("alpha", *MAGNITUDES)
FACTORS = {"lora": ("lora",), "hada": ("hada_w1", "hada_w2"), "lokr": ("lokr_w1", "lokr_w2")}
"""Kind of a change -> its factors, each a matrix or the product of its halves `_a` and `_b`."""
LONGEST_ENDING = 3
"""Parts between dots of an ending that is not known: `lora_A.default.weight_scale`."""
WHOLE_PATCHES = {"diff": "diff", "half": "half_bias"}
"""Kind of a change -> its one part, the change itself; the bias of a half is scaled as the halves are."""
NO_SUCH_LAYER = "it has no such layer, or in another shape"
BASE = ".base_layer."
"""What PEFT puts before `weight` and `bias` of a layer that it changes."""


class OtherModel(BadInput):
    """A LoRA for a model of another shape."""


class IncompleteChange(BadInput):
    """A change that lacks a part, such as one of its halves."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one weight: a difference (`diff`), or a product of `FACTORS`, with or without DoRA.

    `parts`: part -> name of its tensor in the file. `scale`: alpha over rank, or over its root.
    """

    kind: str
    parts: Mapping[str, str]
    scale: float

    def merged(self, weight: Tensor, parts: Mapping[str, Tensor], strength: float) -> Tensor:
        """Return a float32 weight with the change merged. `parts`: its tensors, float32."""
        product = self._product(parts).reshape(weight.shape)
        stated = next((name for name in MAGNITUDES if name in parts), None)
        if stated is None:
            return weight + strength * self.scale * product
        changed = weight + self.scale * product
        magnitude = parts[stated]
        rows = tuple(range(1, weight.ndim))
        lengths: Tensor
        if stated == "magnitude":  # PEFT's, always of the rows, and of what they become
            lengths = torch.linalg.vector_norm(changed, dim=rows, keepdim=True)
        elif magnitude.shape[0] == weight.shape[0]:
            lengths = torch.linalg.vector_norm(weight, dim=rows, keepdim=True)
        else:
            lengths = torch.linalg.vector_norm(changed, dim=(0, *range(2, weight.ndim)), keepdim=True)
        ratio = magnitude.reshape(lengths.shape) / (lengths + torch.finfo(torch.float32).eps)
        return weight + strength * (changed * ratio - weight)

    def _product(self, parts: Mapping[str, Tensor]) -> Tensor:
        if self.kind in WHOLE_PATCHES:
            return parts[WHOLE_PATCHES[self.kind]]
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
    """A LoRA for one model. `changes`: by the model's weight names. `unused`: other tensors of the file.

    `inert`: whether it changes nothing, as `checked` finds out. `beside`: weights beside whose layers it is added
    (see lora_beside.py), instead of merged.
    """

    file: WeightFile
    strength: float
    changes: Mapping[str, Change]
    unused: tuple[str, ...]
    inert: bool = False
    beside: frozenset[str] = frozenset()

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

    def factors(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the halves of a weight's change, `(rank, columns)` and `(rows, rank)`, whose product it is."""
        change = self.changes[name]
        up, down = (self.file[change.parts[f"lora_{half}"]].float() for half in "ab")
        up = up.reshape(_rows_columns(up.shape))
        return down.reshape(_rows_columns(down.shape)), self.strength * change.scale * up

    def checked(self, weight_of: Callable[[str], Tensor], dtype: torch.dtype) -> Lora:
        """Read all values; return the LoRA, with `inert`. `weight_of`: reads one of the model's, as plain numbers.

        Raises `BadInput` for NaN, infinity, or a change that makes a weight too large for `dtype`.
        """
        inert = True
        for name, change in self.changes.items():
            bound = abs(self.strength * change.scale)  # values of a product are bounded by its factors' norms
            for source in change.parts.values():
                bound *= float(torch.linalg.vector_norm(self.file[source].float(), dtype=torch.float64))
                if not math.isfinite(bound):
                    raise BadInput(f"{source} in {self.file.path.name} holds NaN or infinity; fetch the file again")
            inert = inert and not bound and (not self.strength or change.parts.keys().isdisjoint(MAGNITUDES))
            if bound > torch.finfo(dtype).max / 2:
                self.applied(name, weight_of(name).to(dtype))
        return replace(self, inert=inert)


def open_lora(text: str, shapes: Mapping[str, tuple[int, ...]], flat_name: Rename) -> Lora:
    """Open a LoRA for a model with weights of these `shapes`, without reading values.

    `text`: `FILE` or `FILE:STRENGTH`. `flat_name`: maps all spellings of a layer to one. Raises `OtherModel` if it
    does not fit the model, and `BadInput` if the file holds no LoRA, or what is not supported.
    """
    path, strength = split_strength(text)
    file = open_weights(path)
    weights = {flat_name(name.removesuffix(".weight")): name for name in shapes}
    layers, others = read_parts(file)
    _check_understood(file, others, weights, flat_name)
    parts = _by_weight(file, layers, weights, flat_name)
    used = {source for named in parts.values() for source in named.values()}
    unused = [source for source in file if source not in used and source not in FLAGS]
    if not layers:
        raise BadInput(f"{path.name} holds no LoRA, but {unused[0]}; give one for the drafter or the target")
    if not parts:
        raise OtherModel(f"{path.name} changes no layer of this model, but {unused[0]}; give a LoRA of Wan 2.1")
    stated = read_stated(file, flat_name)
    changes: dict[str, Change] = {}
    misfits: list[OtherModel] = []
    for name, named in parts.items():
        try:
            changes[name] = _open_change(stated, name, shapes[name], named, parts)
        except OtherModel as problem:
            misfits.append(problem)
            unused += named.values()
    if len(misfits) > len(changes):
        raise misfits[0]
    return Lora(file, strength, changes, tuple(unused))


@dataclass(frozen=True, slots=True)
class Reach:
    """What of a LoRA may change a model, by its header.

    `changes`: parts by the model's weights. `incomplete`: such parts where another is missing. `misfits`, `absent`:
    tensors for weights that the model has in another shape, or has not.
    """

    changes: Mapping[str, Mapping[str, str]]
    incomplete: Mapping[str, Mapping[str, str]]
    misfits: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def lone_part(self) -> str:
        """The first tensor of `incomplete`."""
        return next(iter(next(iter(self.incomplete.values())).values()))


def reach_of(
    file: WeightFile, layers: LoraLayers, shapes: Mapping[str, tuple[int, ...]], flat_name: Rename
) -> Reach:
    """Return what of a LoRA may change a model with weights of these `shapes`; kinds not read here may change one.

    `layers`: its parts. Raises `BadInput` for a weight that is changed twice.
    """
    weights = {flat_name(name.removesuffix(".weight")): name for name in shapes}
    parts = _by_weight(file, layers, weights, flat_name)
    changes: dict[str, Mapping[str, str]] = {}
    incomplete: dict[str, Mapping[str, str]] = {}
    misfits: list[str] = []
    for name, named in parts.items():
        try:
            _kind_of(file, name, shapes[name], named, parts)
        except OtherModel:
            misfits += named.values()
            continue
        except IncompleteChange:
            incomplete[name] = named
            continue
        except BadInput:
            pass
        changes[name] = named
    known = {source for named in parts.values() for source in named.values()}
    absent = (source for named in layers.values() for source in named.values() if source not in known)
    return Reach(changes, incomplete, tuple(misfits), tuple(absent))


def why_inert(file: WeightFile, reach: Reach) -> str:
    """Return why a LoRA changes no weight of a model, or nothing if it may change one.

    Values are read until a change that is not zero.
    """
    if reach.changes:
        nonzero = any(_is_nonzero(file, parts) for parts in reach.changes.values())
        return "" if nonzero else "all its changes are zeros"
    if reach.misfits:
        return "it is for a model of another size"
    if reach.incomplete:
        lone = f"{reach.lone_part:.80} is there without its other part"
        return f"its layers lack a half, as {lone}; fetch the file again"
    return ""


def note_on_left_out(role: str, lora: str, tensors: Sequence[str], why: str) -> str:
    """Return a note that a model leaves out some `tensors` of a LoRA."""
    left_out = f"{count(len(tensors), 'tensor')} of the LoRA {lora}, the first {tensors[0]:.80}"
    return f"The {role} takes nothing from {left_out}: {why}. The rest is used."


def _is_nonzero(file: WeightFile, parts: Mapping[str, str]) -> bool:
    """True if a change may differ from zero: none of its factors is zero, or it has magnitudes."""
    if not parts.keys().isdisjoint(MAGNITUDES):
        return True
    ranked = bool(rank_of(file, parts))
    factors = (source for part, source in parts.items() if ranked or part != "alpha")
    return all(bool(file[source].float().any()) for source in factors)


def _by_weight(
    file: WeightFile, layers: LoraLayers, weights: Mapping[str, str], flat_name: Rename
) -> dict[str, dict[str, str]]:
    """Return the parts of a LoRA by the model's weights, whose names are given by flat name.

    Raises `BadInput` for a weight that is changed twice.
    """
    changes: dict[str, dict[str, str]] = {}
    for layer, parts in layers.items():
        name = weights.get(flat_name(layer))
        if name is None:
            continue
        for part, source in parts.items():
            add_part(file, changes.setdefault(name, {}), name, part, source)
    return changes


def _check_understood(
    file: WeightFile, others: Iterable[str], weights: Mapping[str, str], flat_name: Rename
) -> None:
    """Raise `BadInput` if a tensor of no known kind belongs to a layer of the model.

    The state dict of a whole PEFT model has the weights that it changes too, which change nothing.
    """
    others = list(others)
    whole = any(BASE in source for source in others)
    for source in others:
        plain = source.removesuffix(".weight")
        if BASE in source or (whole and flat_name(plain) in weights):
            continue
        words = source.split(".")
        layers = (".".join(words[: len(words) - number]) for number in range(LONGEST_ENDING + 1))
        if any(flat_name(layer) in weights for layer in layers):
            raise _unread(source, file)


def _unread(source: str, file: WeightFile) -> BadInput:
    return BadInput(f"{source} in {file.path.name} is of a kind that is not read here; convert it to LoRA")


def _open_change(
    stated: Stated,
    name: str,
    shape: tuple[int, ...],
    parts: Mapping[str, str],
    all_parts: Mapping[str, Mapping[str, str]],
) -> Change:
    """Return the change of a weight. `all_parts`: those of all weights.

    Raises `BadInput` like `_kind_of`, and for two scales.
    """
    kind = _kind_of(stated.file, name, shape, parts, all_parts)
    halves = all_parts[_halved(name)] if kind == "half" else parts
    scale = stated.scale(name.removesuffix(".bias").removesuffix(".weight"), halves)
    return Change(kind, {part: source for part, source in parts.items() if part != "alpha"}, scale)


def _kind_of(
    file: WeightFile,
    name: str,
    shape: tuple[int, ...],
    parts: Mapping[str, str],
    all_parts: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the kind of the change of a weight. `all_parts`: those of all weights.

    Raises `OtherModel` for another shape, `IncompleteChange` for a missing part, and `BadInput` for a kind that is
    not read, or several.
    """
    if UNREAD_ENDING in parts:
        raise _unread(parts[UNREAD_ENDING], file)
    kinds = {part.partition("_")[0]: source for part, source in parts.items() if part not in SHARED}
    if len(kinds) > 1 or all(part in parts for part in MAGNITUDES):
        several = ", ".join(parts.values())
        raise BadInput(f"{file.path.name} changes {name} twice ({several}); convert it to one change")
    kind = next(iter(kinds), "lora")
    shapes = {part: file.info[source].shape for part, source in parts.items()}
    try:
        fits: bool | None = _fits(kind, shapes, shape)
    except KeyError:
        fits = None
    if fits is None or (kind == "half" and _halved(name) not in all_parts):
        source = next(iter(parts.values()))
        raise IncompleteChange(f"{file.path.name} has {source} without its other part; fetch the file again")
    if not fits:
        source = next(iter(kinds.values()))
        raise OtherModel(f"{source} in {file.path.name} does not fit {name} of {shape}; give a LoRA for its size")
    return kind


def _halved(name: str) -> str:
    """Return the weight whose halves have a bias for the bias `name`."""
    return f"{name.removesuffix('.bias')}.weight"


def _fits(kind: str, shapes: Mapping[str, tuple[int, ...]], weight: tuple[int, ...]) -> bool:
    """True if parts of these `shapes` fit a weight of shape `weight`. Raises `KeyError` if a part is missing."""
    if kind in WHOLE_PATCHES:
        return shapes[WHOLE_PATCHES[kind]] == weight
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
    if "magnitude" in shapes:
        return math.prod(shapes["magnitude"]) == weight[0] and len(weight) > 1
    magnitude = shapes.get("dora_scale")
    if magnitude is None or len(weight) == 1:
        return magnitude is None
    return math.prod(magnitude) == weight[0 if magnitude[:1] == weight[:1] else 1]
