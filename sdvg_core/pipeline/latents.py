"""A video's latents as a file, from which a later run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..checkpoints.weights import WeightFile, open_weights
from ..errors import BadInput
from ..files.small_files import parse_json

KEY = "latents"
# One JSON text under one name: safetensors writes several names in any order, and the bytes should not vary.
METADATA = "sdvg"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, eq=False)
class SavedLatents:
    """Latents `b c t h w` as they were saved, in their own dtype, and what was noted beside them."""

    latents: Tensor
    metadata: Mapping[str, Any]


def save_latents(path: Path, latents: Tensor, metadata: Mapping[str, Any]) -> None:
    """Write `latents` (`b c t h w`) and `metadata`, JSON values such as the seed and the block size."""
    text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False)
    path.write_bytes(save({KEY: latents.detach().cpu().contiguous()}, {METADATA: text}))


def load_latents(path: Path) -> SavedLatents:
    """Read latents that were saved here, or by anyone under the same name and layout.

    Raises `BadInput` if the file holds no tensor `latents`, or one of another shape or dtype, or one with NaN or
    infinity.
    """
    file = open_weights(path)
    if KEY not in file:
        held = ", ".join(sorted(file)[:4])
        raise BadInput(
            f"expected a tensor named {KEY} in {path.name}, but it holds {held}; give a run's latents.safetensors"
        )
    shape, dtype = file.info[KEY].shape, file.info[KEY].dtype
    if len(shape) != 5 or shape[0] != 1 or 0 in shape:
        raise BadInput(
            f"expected latents of shape (1, channels, latent frames, height, width) in {path.name}, but they are "
            f"{shape}; give the latents of one video"
        )
    if dtype not in DTYPES:
        raise BadInput(
            f"expected latents as float32, bfloat16 or float16 in {path.name}, but they are {dtype}; convert them"
        )
    latents = file[KEY]
    if not bool(torch.isfinite(latents).all()):
        raise BadInput(
            f"expected finite latents in {path.name}, but some are NaN or infinity; make the video again"
        )
    return SavedLatents(latents, _metadata(file))


def _metadata(file: WeightFile) -> Mapping[str, Any]:
    try:
        values = parse_json(file.metadata.get(METADATA, "{}"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise BadInput(
            f"expected the metadata {METADATA} of {file.path.name} as a JSON object, but it is none; "
            "use the file as it was written"
        )
    return values
