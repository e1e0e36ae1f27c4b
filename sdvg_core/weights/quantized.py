"""The quantisation of a file; fp8 weights, and a linear layer that stores fp8 and casts it up on use.

int8 and 4 bits are in kitchen.py. Three forms of fp8 are read: plain fp8 without scales; scaled, old form
(`scaled_fp8`, `X.scale_weight`, `X.scale_input`); scaled, new form (`X.weight_scale`, `X.input_scale`, and the
format as comfy_quant.py reads it). Input scales are not read: products in fp8 are torchao's, and it scales each row
by itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..devices.device import capability, dtype_name
from ..errors import BadInput
from .comfy_quant import MARK, stated_layers
from .kitchen import QuantisedLayer
from .weight_file import WeightFile

_Tree = TypeVar("_Tree", bound=nn.Module)
ADA = (8, 9)
"""The first compute capability with products in fp8."""
LEAST_LARGEST = 1e-12
"""What a row's largest value counts as at least: torchao's scale of a row of zeros, a padded text token, is NaN."""
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FP8_FORMATS = ("float8_e4m3fn", "float8_e5m2")
SCALES = ("scale_weight", "weight_scale")
BESIDE_WEIGHTS = (*SCALES, "scale_input", "input_scale", MARK)
BETTER_FILE = "use a bf16, fp16 or fp8 file, or in ComfyUI Load Diffusion Model"


class Fp8Linear(nn.Module):
    """A linear layer that stores its weight in fp8, and casts and scales it on use.

    `weight`: `(rows, columns)` fp8. `scale`: float32, one number or one per row, or None. `bias`: `(rows,)`.
    """

    weight: Tensor
    scale: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: nn.Parameter) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("scale", None if scale is None else scale.float())
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T * scale + bias` in the dtype of `x`."""
        return F.linear(x, dequantized(self.weight, self.scale, x.dtype), self.bias.to(x.dtype))


def multiply_in_fp8(tree: _Tree, device: torch.device) -> _Tree:
    """Let torchao multiply in fp8 in the linear layers of a tree in bfloat16, and move it to a GPU.

    Each row has a scale, of weights for good and of activations in every product. Raises `BadInput` where this
    device or environment has no such product.
    """
    if capability(device) < ADA:
        raise BadInput(
            "fp8_e4m3fn_fast needs an NVIDIA GPU with products in fp8 (RTX 40 or later); take fp8_e4m3fn"
        )
    try:
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
    except ImportError as error:
        raise BadInput("fp8_e4m3fn_fast needs torchao; pip install torchao") from error
    for name, module in list(tree.named_modules()):
        if isinstance(module, Fp8Linear):
            linear = nn.Linear(module.in_features, module.out_features, device="meta")
            linear.weight = nn.Parameter(dequantized(module.weight, module.scale, torch.bfloat16))
            linear.bias = module.bias
            tree.set_submodule(name, linear)
    products = Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow(),
        activation_value_lb=LEAST_LARGEST,
        set_inductor_config=False,
    )
    quantize_(tree, products, device=device)
    return tree.to(device)


def dequantized(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return an fp8 tensor in `dtype`, times its scale (one number, or one per row)."""
    if scale is None:
        return weight.to(dtype)
    # Copy even for an equal dtype, as the next line writes into it. The float32 scale gets axes: a 0-d tensor would
    # be rounded to the weight's dtype before the product.
    wide = weight.to(dtype, copy=True)
    return wide.mul_(scale.float().reshape(-1, *(1,) * (weight.ndim - 1)))


def quantized(weight: Tensor, dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Round a weight `(rows, columns)` to fp8; return it with a new scale of the form of `scale`, or None.

    Without a scale, values are clamped to fp8's range, as in ComfyUI.
    """
    most = torch.finfo(dtype).max
    if scale is not None:
        sizes = weight.float().abs()
        largest = sizes.amax() if scale.numel() == 1 else sizes.amax(dim=1, keepdim=True)
        scale = largest.clamp(min=torch.finfo(torch.float32).tiny * most) / most
        weight = weight / scale
    return weight.clamp(-most, most).to(dtype), scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The quantisation of a file. `label`: for reports; "none" for plain numbers.

    `layers`: weight -> its form in int8 or 4 bits. `scales`: fp8 weight -> name of its scale. `side`: names of
    tensors that describe the quantisation.
    """

    label: str
    layers: Mapping[str, QuantisedLayer] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    side: frozenset[str] = frozenset()


def find_quantisation(
    weights: WeightFile, expected: Collection[str], layers: Mapping[str, QuantisedLayer] = MappingProxyType({})
) -> Quantisation:
    """Detect the quantisation of a file, whose tensors have the model's names.

    `expected`: names of the model's weights. `layers`: those in int8 or 4 bits. Raises `BadInput` for a format that
    is not supported.
    """
    formats = {name: part.get("format") for name, part in stated_layers(weights).items()}
    formats = {name: stated for name, stated in formats.items() if f"{name}.weight" not in layers}
    for layer, stated in formats.items():
        if stated not in FP8_FORMATS:
            raise BadInput(f"{layer} is {stated}, not {' or '.join(FP8_FORMATS)}; {BETTER_FILE}")
    side = frozenset(n for n in weights if n == "scaled_fp8" or n.rpartition(".")[2] in BESIDE_WEIGHTS)
    of_layers = {name for layer in layers.values() for part, name in layer.names.items() if part != "weight"}
    scales = _find_scales(weights, expected, side - of_layers)
    side |= of_layers
    for layer in formats:
        if f"{layer}.weight" in expected and f"{layer}.weight" not in scales:
            raise BadInput(f"the quantised {layer} has no scale; fetch the file again")
    plain = any(name in weights and weights.info[name].dtype in FP8 for name in expected)
    label = "fp8 plain" if plain else "none"
    if scales:
        old = next(iter(scales.values())).endswith(".scale_weight")
        label = f"fp8 scaled, {'old' if old else 'new'} form"
    kinds = sorted({layer.form.name for layer in layers.values()})
    label = " and ".join((*kinds, *([label] if label != "none" or not kinds else [])))
    return Quantisation(label=label, layers=layers, scales=scales, side=side)


def _find_scales(weights: WeightFile, expected: Collection[str], side: Collection[str]) -> dict[str, str]:
    scales: dict[str, str] = {}
    for name in sorted(side):
        layer, _, kind = name.rpartition(".")
        weight = f"{layer}.weight"
        if kind not in SCALES or weight not in expected or weight not in weights:
            continue
        scale = weights.info[name]
        scaled = weights.info[weight]
        rows = math.prod(scaled.shape[:1])  # a file may state a weight without axes
        by_rows = math.prod(scale.shape) == 1 or scale.shape in ((rows,), (rows, 1))
        is_number = scale.dtype.is_floating_point and scale.dtype not in FP8
        if not (by_rows and is_number and scaled.dtype in FP8):
            form = f"{dtype_name(scale.dtype)} {scale.shape} for {dtype_name(scaled.dtype)} {scaled.shape}"
            raise BadInput(f"the scale {name} is {form}, not one number or one a row of fp8; {BETTER_FILE}")
        scales[weight] = name
    return scales
