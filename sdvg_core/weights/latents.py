"""Save and load a video's latents, from which a later run can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..devices.device import dtype_name
from ..engine.plan import Lead
from ..engine.types import hash_tensor
from ..errors import BadInput
from ..files.small_files import parse_json
from ..settings.request import FIRST_KEY, Shot
from .weight_file import WeightFile, open_weights

KEY = "latents"
# One JSON text under one key, because safetensors writes several keys in any order.
METADATA = "sdvg"
# Metadata: number of first latent frames that show a start image, number given as pixels, number of all, and a hash
# of the first one, to recognise a clip that was cut.
START_IMAGE_FRAMES = "start_image_frames"
FROM_PIXELS = "from_pixels"
FRAMES_KEY = "latent_frames"
BEGINS = "begins"
SHOTS = "shots"
"""Metadata: of a film of several shots, or of one with a key, key and first latent frame of each, and how many of
its frames show the picture that it began with."""
LATENT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, eq=False)
class LatentsFile:
    """Latents `b c t h w` in their stored dtype, with metadata."""

    latents: Tensor
    metadata: Mapping[str, Any]


def save_latents(path: Path, latents: Tensor, metadata: Mapping[str, Any]) -> None:
    """Write `latents` (`b c t h w`) and `metadata` (JSON values such as the seed)."""
    text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False)
    path.write_bytes(save({KEY: latents.detach().cpu().contiguous()}, {METADATA: text}))


def load_latents(path: Path) -> LatentsFile:
    """Read latents saved by `save_latents`, or by another program with the same name and layout.

    Raises `BadInput` without a tensor `latents`, and for another shape or dtype, NaN or infinity.
    """
    file = open_weights(path)
    if KEY not in file:
        held = ", ".join(sorted(file)[:4])
        raise BadInput(f"{path.name} holds {held}, no tensor {KEY}; give a run's latents.safetensors")
    shape = file.info[KEY].shape
    dtype = file.info[KEY].dtype
    if len(shape) != 5 or shape[0] != 1 or 0 in shape or dtype not in LATENT_DTYPES:
        kind = f"{dtype_name(dtype)} of the shape {shape}, not one video's"
        raise BadInput(f"the latents in {path.name} are {kind} in float32, bfloat16 or float16; give other ones")
    latents = file[KEY]
    if not bool(torch.isfinite(latents).all()):
        raise BadInput(f"the latents in {path.name} hold NaN or infinity; make the video again")
    return LatentsFile(latents, read_metadata(file))


def read_lead(values: Mapping[str, Any], latents: Tensor) -> Lead:
    """Return the lead of a saved clip from its metadata. `latents`: as saved.

    A clip that was cut at its end keeps its lead. If its first latent frame changed, all frames count as made by
    models. Raises `BadInput` for damaged metadata.
    """
    frames = latents.shape[2]
    image_frames = _count(values, START_IMAGE_FRAMES)
    from_pixels = _count(values, FROM_PIXELS)
    if values.get(FRAMES_KEY, frames) != frames:
        if values.get(BEGINS) != hash_tensor(latents[:, :, :1]):
            return Lead(frames=frames)
        image_frames = min(image_frames, frames)
        from_pixels = min(from_pixels, frames - image_frames)
    return Lead(frames=frames, start_image_frames=image_frames, from_pixels=from_pixels)


def lead_metadata(lead: Lead, latents: Tensor) -> dict[str, int | str]:
    """Return the metadata for the lead of a clip; empty if models made all of it."""
    counts = {START_IMAGE_FRAMES: lead.start_image_frames, FROM_PIXELS: lead.from_pixels}
    begun = {name: count for name, count in counts.items() if count}
    return {**begun, FRAMES_KEY: latents.shape[2], BEGINS: hash_tensor(latents[:, :, :1])} if begun else {}


@dataclass(frozen=True, slots=True)
class SavedShot:
    """A shot in saved latents. `first`: its first latent frame. `start_image_frames`: see `Lead`."""

    shot: Shot
    first: int
    start_image_frames: int = 0


def shots_metadata(shots: Sequence[SavedShot]) -> dict[str, Any]:
    """Return the metadata for the shots of a film; empty for one plain shot."""
    plain = len(shots) == 1 and shots[0].shot.key == FIRST_KEY
    return {} if plain else {SHOTS: [[saved.shot.key, saved.first, saved.start_image_frames] for saved in shots]}


def shots_in(values: Mapping[str, Any], latents: Tensor) -> list[SavedShot]:
    """Return the shots of saved latents from their metadata; of a clip that was cut, those left.

    Raises `BadInput` for damaged metadata.
    """
    entries = values.get(SHOTS, [[FIRST_KEY, 0, 0]])
    try:
        shots = [SavedShot(Shot(key=key), first, image) for key, first, image in entries]
    except (TypeError, ValueError):
        shots = []
    firsts = [saved.first for saved in shots]
    counts = [*firsts, *(saved.start_image_frames for saved in shots)]
    are_counts = all(type(count) is int and count >= 0 for count in counts)
    if not (are_counts and firsts and firsts[0] == 0 and sorted(set(firsts)) == firsts):
        raise BadInput("the clip's shots are damaged metadata; make the clip again")
    return [saved for saved in shots if saved.first < latents.shape[2]]


def _count(values: Mapping[str, Any], name: str) -> int:
    count = values.get(name, 0)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise BadInput(f"{name} is {count!r:.40}, no count of latent frames; make the clip again")
    return count


def read_metadata(file: WeightFile) -> Mapping[str, Any]:
    """Return the metadata saved with the tensors. Raises `BadInput` unless it is a JSON object."""
    try:
        values = parse_json(file.metadata.get(METADATA, "{}"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        fault = f"{file.path.name} has damaged metadata ({METADATA} is not a JSON object)"
        raise BadInput(f"{fault}; make the latents again")
    return values
