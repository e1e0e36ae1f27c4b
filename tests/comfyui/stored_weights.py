"""Weights of a tiny model as ComfyUI's files store them."""

from functools import partial

import torch


def fp8(weights):
    return {n: w.to(torch.float8_e4m3fn) if w.ndim == 2 else w for n, w in weights.items()}


def bf16(weights):
    return {n: w.bfloat16() for n, w in weights.items()}


def scaled(name, dtype, weights):
    """Quantised with a scale for each weight, in the form that ComfyUI repackages models in."""
    out = dict(weights)
    most = 127 if dtype == torch.int8 else 448
    for key, w in weights.items():
        if w.ndim == 2 and key.startswith("blocks."):
            scale = w.abs().max() / most
            out[key] = (w / scale).round().to(dtype) if dtype == torch.int8 else (w / scale).to(dtype)
            layer = key.removesuffix(".weight")
            out[f"{layer}.weight_scale"] = scale
            stated = f'{{"format": "{name}"}}'.encode()
            out[f"{layer}.comfy_quant"] = torch.tensor(list(stated), dtype=torch.uint8)
    return out


scaled_fp8 = partial(scaled, "float8_e4m3fn", torch.float8_e4m3fn)
int8 = partial(scaled, "int8_tensorwise", torch.int8)
STORED = {"float32": dict, "fp8": fp8, "scaled fp8": scaled_fp8, "int8": int8, "bf16": bf16}
