"""Two ways to name the weights of the Wan 2.1 VAE: the original release's (ComfyUI's too) and diffusers'.

The module trees differ in two ways. The original keeps the blocks of each half in one flat list, while diffusers
groups the decoder's by resolution. And the layers of a residual block have numbers in the original and names in
diffusers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ..checkpoints.weights import is_layer_number

T = TypeVar("T")

# Loaders that wrap the VAE in another module save it under one of these prefixes.
WRAPPERS = ("model.", "first_stage_model.", "vae.")

# original -> diffusers, the same in both halves
_ENDS = {
    "conv1": "conv_in",
    "middle.0": "mid_block.resnets.0",
    "middle.1": "mid_block.attentions.0",
    "middle.2": "mid_block.resnets.1",
    "head.0": "norm_out",
    "head.2": "conv_out",
}
# original -> diffusers, inside a residual block
_RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}


def is_original(names: Iterable[str]) -> bool:
    """Whether weights carry the original release's names."""
    return any(name.startswith(("encoder.downsamples.", "decoder.upsamples.")) for name in names)


def is_diffusers(names: Iterable[str]) -> bool:
    """Whether weights carry diffusers' names for a Wan-like VAE (other diffusers VAEs share the prefixes)."""
    return any(name.startswith(("encoder.down_blocks.", "decoder.up_blocks.")) for name in names)


def without_wrapper(name: str) -> str:
    """Drop the prefix of the module that held the VAE when it was saved."""
    return next((name[len(wrapper) :] for wrapper in WRAPPERS if name.startswith(wrapper)), name)


def original_to_diffusers(names: Iterable[str]) -> Callable[[str], str]:
    """Return the renaming from original to diffusers names for the VAE whose weights have these `names`."""
    names = list(names)
    stage = _first_resampler(names) + 1
    units = _units(count_entries(names, "encoder.downsamples"), count_entries(names, "decoder.upsamples"), stage)
    return lambda name: _rename(name, units, _RESIDUAL)


def wan_vae_to_original(weights: Mapping[str, T]) -> dict[str, T]:
    """Return weights with diffusers' names (`AutoencoderKLWan.state_dict()`) under the original release's names."""
    stage = count_entries(weights, "decoder.up_blocks.0.resnets") + 1
    stages = count_entries(weights, "decoder.up_blocks")
    units = _units(count_entries(weights, "encoder.down_blocks"), stages * stage - 1, stage)
    back, residual = _inverse(units), _inverse(_RESIDUAL)
    return {_rename(name, back, residual): tensor for name, tensor in weights.items()}


def _units(encoder_blocks: int, decoder_blocks: int, stage: int) -> dict[str, str]:
    """Original -> diffusers for every unit of the tree; a decoder `stage` is residual blocks and a resampler."""
    units = {"conv1": "quant_conv", "conv2": "post_quant_conv"}
    for half in ("encoder", "decoder"):
        units |= {f"{half}.{old}": f"{half}.{new}" for old, new in _ENDS.items()}
    for n in range(encoder_blocks):
        units[f"encoder.downsamples.{n}"] = f"encoder.down_blocks.{n}"
    for n in range(decoder_blocks):
        level, place = divmod(n, stage)
        block = "upsamplers.0" if place == stage - 1 else f"resnets.{place}"
        units[f"decoder.upsamples.{n}"] = f"decoder.up_blocks.{level}.{block}"
    return units


def _rename(name: str, units: Mapping[str, str], residual: Mapping[str, str]) -> str:
    """Rename the unit a weight belongs to and the layer inside it; names outside the tree stay unchanged."""
    parts = name.split(".")
    for cut in range(1, len(parts)):
        unit = units.get(".".join(parts[:cut]))
        if unit is not None:
            layer, leaf = ".".join(parts[cut:-1]), parts[-1]
            return ".".join(part for part in (unit, residual.get(layer, layer), leaf) if part)
    return name


def count_entries(names: Iterable[str], listed: str) -> int:
    """Return how many entries the module list `listed` has."""
    prefix = listed + "."
    entries = {name[len(prefix) :].partition(".")[0] for name in names if name.startswith(prefix)}
    return max((int(entry) + 1 for entry in entries if is_layer_number(entry)), default=0)


def _first_resampler(names: Iterable[str]) -> int:
    """The number of the decoder's first resampler; before it come the residual blocks of one resolution."""
    found = (re.match(r"decoder\.upsamples\.([0-9]{1,2})\.resample\.", name) for name in names)
    return min((int(match.group(1)) for match in found if match), default=0)


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}
