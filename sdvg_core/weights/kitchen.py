"""int8 and 4-bit weights in ComfyUI's layouts, which its library comfy-kitchen reads, makes and multiplies.

Both rotate each group of columns by a Hadamard matrix (ConvRot), so that no column stands out, and round the inputs
of a product to int8 too. int8 has a scale per row; W4A8 has levels of 4 bits (a codebook), with a scale per row and
per group of columns. comfy-kitchen is imported when a file needs it, as that takes seconds. A layer calls it by an
operator of our own, as torch cannot compile its code for W4A8.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..devices.device import dtype_name
from ..errors import BadInput
from ..weights import LARGEST_SIZE
from .comfy_quant import stated_layers
from .weight_file import TensorInfo, WeightFile

ROTATIONS = (256, 64, 16)
"""Columns that are rotated together, the most first; kitchen takes powers of 4."""
GROUP = 16
"""Columns that share a scale in W4A8."""
LARGEST_GROUP = 1024
NUMBERS_AT_ONCE = 1 << 19
"""Numbers that are quantised or compared at a time: kitchen needs up to 150 bytes for each."""
SIX_BITS = "0.2.40"
"""The first comfy-kitchen with 6 bits, which have the name of the 4 bits."""
INSTALL = "pip install comfy-kitchen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A quantised form. `stated`: its name in `comfy_quant`; `layout`: kitchen's class.

    `parts`: end of a tensor's name after `X.weight` -> kitchen's name for it. `kitchen`, `comfyui`: first versions
    that read it. `bits`: of a weight, with scales.
    """

    name: str
    stated: str
    layout: str
    parts: Mapping[str, str]
    kitchen: str
    comfyui: str
    bits: float


INT8 = Format(
    name="int8",
    stated="int8_tensorwise",
    layout="TensorWiseINT8Layout",
    parts={"_scale": "scale"},
    kitchen="0.2.16",
    comfyui="0.27",
    bits=8,
)
W4A8 = Format(
    name="w4a8",
    stated="asym_w4a8_int8",
    layout="AsymW4A8Int8Layout",
    parts={"_s_rel": "scale", "_s_channel": "s_channel", "_codebook": "codebook"},
    kitchen="0.2.28",
    comfyui="0.31",
    bits=4 + 8 / GROUP,
)
FORMATS: Mapping[str, Format] = {form.name: form for form in (INT8, W4A8)}
FORMATS_STATED: Mapping[str, Format] = {form.stated: form for form in FORMATS.values()}


@cache
def _kitchen() -> ModuleType:
    import comfy_kitchen.tensor

    kitchen: ModuleType = comfy_kitchen.tensor
    return kitchen


def layout_of(form: Format, file: str = "") -> Any:
    """Return kitchen's class for a format. `file`: its name.

    Raises `BadInput` without a comfy-kitchen that has the format.
    """
    what = f"{file} is {form.name}, which" if file else f"{form.name}"
    needs = f"{what} needs comfy-kitchen {form.kitchen} or newer (ComfyUI {form.comfyui})"
    try:
        layout = getattr(_kitchen(), form.layout, None)
    except ModuleNotFoundError as error:
        raise BadInput(f"{needs}; {INSTALL}") from error
    if layout is None:
        raise BadInput(f"{needs}, and here is an older one; update it, or take the int8 or fp8 file")
    return layout


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedLayer:
    """A quantised weight `shape` of a file. `names`: kitchen's name of a part -> tensor; `weight`: the numbers.

    `rotation`: columns rotated together, 0 for none. `group`: columns that share a scale, 0 for int8. `whole`: the
    product is of numbers that are cast up, as the file asks.
    """

    form: Format
    shape: tuple[int, int]
    names: Mapping[str, str]
    rotation: int
    group: int = 0
    whole: bool = False

    def read(self, weights: WeightFile, device: torch.device) -> dict[str, Tensor]:
        """Return the parts on a device. Raises `BadInput` for scales that are not finite."""
        parts = {part: weights[name].to(device) for part, name in self.names.items()}
        if parts["scale"].dtype == torch.uint8:
            parts["scale"] = parts["scale"].view(torch.float8_e4m3fn)
        for part, name in self.names.items():
            if part != "weight" and not bool(parts[part].float().isfinite().all()):
                raise BadInput(f"{name} in {weights.path.name} holds NaN or infinity; fetch the file again")
        return parts

    def tensor(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
        """Return the weight as kitchen's tensor, whose products are of `dtype`."""
        options = {"convrot": bool(self.rotation)} if self.form is INT8 else {"group_size": self.group}
        params = layout_of(self.form).Params(
            orig_dtype=dtype,
            orig_shape=self.shape,
            **options,
            **({"convrot_groupsize": self.rotation} if self.rotation else {}),
            **{part: tensor for part, tensor in parts.items() if part != "weight"},
        )
        return _kitchen().QuantizedTensor(parts["weight"], self.form.layout, params)

    def dequantised(self, parts: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weight as numbers of `dtype`."""
        wide: Tensor = self.tensor(parts, dtype).dequantize()
        return wide

    def rows(self, parts: Mapping[str, Tensor], first: int, count: int) -> tuple[QuantisedLayer, dict[str, Tensor]]:
        """Return some rows as a layer of their own, with its parts."""
        whole = self.shape[0]
        some = {
            part: tensor[first : first + count] if tensor.shape[:1] == (whole,) and part != "codebook" else tensor
            for part, tensor in parts.items()
        }
        return replace(self, shape=(some["weight"].shape[0], self.shape[1])), some

    def requantised(self, parts: Mapping[str, Tensor], weight: Tensor, seed: int) -> dict[str, Tensor]:
        """Return the parts of a changed weight, float32, rounded up or down by chance as ComfyUI does."""
        changed = self.tensor(parts, torch.float32).requantize_from_float(weight, stochastic_rounding=seed)
        return _parts_of(self.form, changed._qdata, changed._params)

    def step(self, parts: Mapping[str, Tensor]) -> float:
        """Return the mean distance of neighbouring levels."""
        scale = parts["scale"].float()
        if self.form is INT8:
            return float(scale.mean())
        codebook = parts.get("codebook")
        gap = 1.0 if codebook is None else float(codebook.float().diff().mean())
        return gap * float((scale.mean(1) * parts["s_channel"].float()).mean())


def _parts_of(form: Format, numbers: Tensor, params: Any) -> dict[str, Tensor]:
    named = {part: getattr(params, part) for part in form.parts.values()}
    return {"weight": numbers, **{part: tensor for part, tensor in named.items() if tensor is not None}}


def quantise(weight: Tensor, name: str, form: Format) -> tuple[QuantisedLayer, dict[str, Tensor]]:
    """Quantise `weight`, called `name`, in float32; return what it becomes, with its parts."""
    rows, columns = weight.shape
    layer = layer_of((rows, columns), name, form)
    layout = layout_of(form)
    at_once = max(1, NUMBERS_AT_ONCE // columns)
    options: dict[str, Any] = {"convrot_groupsize": layer.rotation}
    if form is INT8:
        options |= {"per_channel": True, "convrot": True}
    else:  # all rows have the levels that suit rows from all over
        _, params = layout.quantize(weight[:: -(-rows // at_once)].float(), group_size=GROUP, **options)
        options |= {"group_size": GROUP, "codebook_tensor": params.codebook}
    pieces = [_parts_of(form, *layout.quantize(some.float(), **options)) for some in weight.split(at_once)]
    parts = {part: torch.cat([piece[part] for piece in pieces]) for part in pieces[0] if part != "codebook"}
    return layer, parts | {part: piece for part, piece in pieces[0].items() if part == "codebook"}


def layer_of(shape: tuple[int, int], name: str, form: Format) -> QuantisedLayer:
    """Return what a weight of a shape, called `name`, becomes in a format. Raises `BadInput` for other widths."""
    parts = {"weight": name} | {part: f"{name}{ending}" for ending, part in form.parts.items()}
    group = 0 if form is INT8 else GROUP
    return QuantisedLayer(form=form, shape=shape, names=parts, rotation=rotation_of(shape[1]), group=group)


def rotation_of(columns: int) -> int:
    """Return the columns of a weight that are rotated together. Raises `BadInput` if no number divides them."""
    fitting = [size for size in ROTATIONS if columns % size == 0]
    if not fitting:
        raise BadInput(
            f"a weight of {columns} columns cannot be quantised, as {ROTATIONS[-1]} does not divide them; "
            "take the model as it is"
        )
    return fitting[0]


def stored_shapes(layer: QuantisedLayer) -> dict[str, TensorInfo]:
    """Return shape and dtype of each part that `quantise` makes."""
    rows, columns = layer.shape
    if layer.form is INT8:
        return {
            "weight": TensorInfo((rows, columns), torch.int8),
            "scale": TensorInfo((rows, 1), torch.float32),
        }
    return {
        "weight": TensorInfo((rows, columns // 2), torch.int8),
        "scale": TensorInfo((rows, columns // GROUP), torch.float8_e4m3fn),
        "s_channel": TensorInfo((rows,), torch.float32),
        "codebook": TensorInfo((16,), torch.float32),
    }


def mark_of(layer: QuantisedLayer) -> bytes:
    """Return what `comfy_quant` states of a layer, as JSON with spaces up to a multiple of 8 bytes.

    Tensors behind it in a file stay aligned by that.
    """
    stated: dict[str, Any] = {"format": layer.form.stated}
    stated |= {"convrot": True} if layer.form is INT8 else {"group_size": layer.group}
    text = json.dumps(stated | {"convrot_groupsize": layer.rotation}).encode()
    return text.ljust(-(-len(text) // 8) * 8)


def seed_of(name: str) -> int:
    """Return the seed by which ComfyUI rounds a changed weight, from the weight's name."""
    return zlib.crc32(f"diffusion_model.{name}".encode())


# --- reading


def find_layers(weights: WeightFile) -> dict[str, QuantisedLayer]:
    """Return the weights in a format of `FORMATS`, by name.

    Raises `BadInput` for parts that are missing or do not fit, or without a comfy-kitchen that reads them.
    """
    layers = {}
    for name, stated in stated_layers(weights).items():
        form = FORMATS_STATED.get(stated["format"]) if isinstance(stated.get("format"), str) else None
        weight = f"{name}.weight"
        if form is not None and weight in weights:
            layout_of(form, weights.path.name)
            layers[weight] = _layer(weights, weight, form, stated)
    return layers


def unpacked(weights: WeightFile, layers: Mapping[str, QuantisedLayer]) -> WeightFile:
    """Return the file with quantised weights in their true shape, as bfloat16, in which Wan was trained."""
    info = {name: TensorInfo(layer.shape, torch.bfloat16) for name, layer in layers.items()}
    return replace(weights, info={**weights.info, **info})


def _layer(weights: WeightFile, weight: str, form: Format, stated: Mapping[str, Any]) -> QuantisedLayer:
    names = {"weight": weight} | {
        part: f"{weight}{ending}" for ending, part in form.parts.items() if f"{weight}{ending}" in weights
    }
    info = {part: weights.info[name] for part, name in names.items()}
    missing = [ending for ending, part in form.parts.items() if part not in info and part != "codebook"]
    if missing:
        raise BadInput(f"the quantised {weight} has no {weight}{missing[0]}; fetch the file again")
    nested = stated.get("params")
    options = {**(nested if isinstance(nested, dict) else {}), **stated}
    rotated = form is not INT8 or bool(options.get("convrot"))
    rotation = options.get("convrot_groupsize", 256) if rotated else 0
    group = 0 if form is INT8 else options.get("group_size", GROUP)
    shape = _int8_shape(info) if form is INT8 else _grouped_shape(weights, info, group)
    if shape is None or not _divides(rotation, shape[1], optional=form is INT8):
        shapes = ", ".join(f"{part} {dtype_name(i.dtype)} {i.shape}" for part, i in info.items())
        sizes = f"groups of {group!r:.20} and {rotation!r:.20}"
        raise BadInput(f"{weight} is no {form.stated} ({shapes}; {sizes}); fetch the file again")
    whole = bool(options.get("full_precision_matrix_mult"))
    return QuantisedLayer(form=form, shape=shape, names=names, rotation=rotation, group=group, whole=whole)


def _int8_shape(info: Mapping[str, TensorInfo]) -> tuple[int, int] | None:
    weight = info["weight"]
    if weight.dtype != torch.int8 or not _is_matrix(weight.shape):
        return None
    rows, columns = weight.shape
    fits = info["scale"].shape in ((), (1,), (1, 1), (rows, 1))
    return (rows, columns) if fits and _is_scale(info["scale"].dtype) else None


def _grouped_shape(weights: WeightFile, info: Mapping[str, TensorInfo], group: Any) -> tuple[int, int] | None:
    weight = info["weight"]
    scale = info["scale"]
    if not _is_size(group, GROUP // 4) or (GROUP % group and group % GROUP):
        return None
    if weight.dtype != torch.int8 or not _is_matrix(weight.shape) or not _is_matrix(scale.shape):
        return None
    rows = weight.shape[0]
    columns = scale.shape[1] * group
    bits = weight.shape[1] * 8 / columns
    if bits == 6 and not hasattr(layout_of(W4A8), "bits"):
        fault = f"{weights.path.name} is W6A8 (6 bits), which needs comfy-kitchen {SIX_BITS} or newer"
        raise BadInput(f"{fault}; update it, or take the int8 or W4A8 file")
    shapes = {"scale": (rows, columns // group), "s_channel": (rows,), "codebook": (16,)}
    fits = bits in (4, 6) and columns % GROUP == 0 and (bits == 4 or "codebook" not in info)
    fits = fits and all(part.shape == shapes.get(name, part.shape) for name, part in info.items())
    fits = fits and scale.dtype in (torch.float8_e4m3fn, torch.uint8, torch.float32)
    fits = fits and all(_is_scale(info[part].dtype) for part in ("s_channel", "codebook") if part in info)
    return (rows, columns) if fits else None


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and all(0 < size <= LARGEST_SIZE for size in shape)


def _is_scale(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.bfloat16, torch.float16)


def _is_size(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_GROUP


def _divides(rotation: Any, columns: int, *, optional: bool) -> bool:
    """True for a size of a Hadamard matrix, a power of 4, that divides the columns; 0 for none, if `optional`."""
    if not _is_size(rotation, 0):
        return False
    if rotation == 0:
        return optional
    power = rotation.bit_length() - 1
    return bool(rotation >= 4 and rotation == 1 << power and power % 2 == 0 and columns % rotation == 0)


# --- the layer


@torch.library.custom_op("sdvg::quantised_linear", mutates_args=())
def _linear(
    x: Tensor, parts: list[Tensor], bias: Tensor | None, form: str, rotation: int, group: int, whole: bool
) -> Tensor:
    """Multiply by a weight. `parts`: its numbers, then what its format has beside them, in order."""
    kind = FORMATS[form]
    shape = (parts[0].shape[0], x.shape[-1])
    layer = QuantisedLayer(form=kind, shape=shape, names={}, rotation=rotation, group=group)
    names = ("weight", *kind.parts.values())  # of which the last may be missing
    tensor = layer.tensor(dict(zip(names, parts, strict=False)), x.dtype)
    return F.linear(x, tensor.dequantize() if whole else tensor, bias)


@_linear.register_fake
def _(x: Tensor, parts: list[Tensor], *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], parts[0].shape[0]))


class KitchenLinear(nn.Module):
    """A linear layer whose weight is quantised; kitchen multiplies, with inputs rounded to int8 by row."""

    def __init__(self, layer: QuantisedLayer, parts: Mapping[str, Tensor], bias: nn.Parameter) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.shape
        for part in ("weight", "scale", "s_channel", "codebook"):
            self.register_buffer(part, parts.get(part))
        self.bias = bias
        self._stated = (layer.form.name, layer.rotation, layer.group, layer.whole)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias` in the dtype of `x`."""
        result: Tensor = _linear(x, list(self.buffers()), self.bias.to(x.dtype), *self._stated)
        return result
