"""What a file states about its quantisation, in ComfyUI's form: by layer, in tensors or in the metadata.

`X.comfy_quant` holds JSON as bytes beside the weight of layer X; older files have all layers in one metadata key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..devices.device import dtype_name
from ..errors import BadInput
from ..files.small_files import parse_json
from .weight_file import WeightFile

MARK = "comfy_quant"
METADATA_KEY = "_quantization_metadata"
LONGEST_MARK = 4096
FOREIGN_ENDINGS: Mapping[str, str] = {
    "weight._data": "quanto",
    "weight._scale": "quanto",
    "int8_weight": "TurboDiffusion's int8",
    "qweight": "4 bits for nunchaku",
    "wscales": "4 bits for nunchaku",
    "weight.quant_map": "4 bits of bitsandbytes (nf4)",
    "weight.absmax": "4 bits of bitsandbytes (nf4)",
    "weight.SCB": "int8 of bitsandbytes",
    "weight_scale_inv": "fp8 in blocks",
}
"""End of a tensor's name -> the quantisation that it belongs to, of those that are not read."""


def check_foreign(name: str, tensors: Iterable[str]) -> None:
    """Raise `BadInput` if the tensors of a file are quantised in a form that is not read. `name`: the file's."""
    for tensor in tensors:
        for ending, form in FOREIGN_ENDINGS.items():
            if tensor.endswith(f".{ending}"):
                remedy = "take the bf16 or fp8 file, or make an int8 one of the bf16 file by convert"
                raise BadInput(f"{name} is quantised as {form}, which is not read; {remedy}")


def stated_layers(weights: WeightFile) -> dict[str, Mapping[str, Any]]:
    """Return what a file states about its quantised layers, by the model's names.

    Raises `BadInput` for what is no JSON object.
    """
    layers: dict[str, Mapping[str, Any]] = {}
    for name in weights:
        layer = name.removesuffix(f".{MARK}")
        if layer != name:
            layers[layer] = _json(_bytes(weights, name), name)
    if METADATA_KEY in weights.metadata:
        ours = {source: name for name, source in weights.names.items()}
        listed = _json(weights.metadata[METADATA_KEY], METADATA_KEY).get("layers")
        for name, stated in listed.items() if isinstance(listed, dict) else ():
            layer = ours.get(f"{name}.weight", str(name)).removesuffix(".weight")
            layers[layer] = stated if isinstance(stated, dict) else {"format": stated}
    return layers


def _bytes(weights: WeightFile, name: str) -> bytes:
    info = weights.info[name]
    if info.dtype != torch.uint8 or math.prod(info.shape) > LONGEST_MARK:
        kind = f"{dtype_name(info.dtype)} of the shape {info.shape}"
        raise BadInput(f"{name} is {kind}, not JSON of at most {LONGEST_MARK} bytes; fetch the file again")
    return bytes(weights[name].flatten().tolist())


def _json(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise BadInput(f"{where} is no JSON object ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise BadInput(f"{where} is no JSON object ({value!r:.60}); fetch the file again")
    return value
