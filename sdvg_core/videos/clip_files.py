"""The start and the control of a film, from the files of its request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..engine.plan import Lead
from ..errors import BadInput
from ..files.footage import Footage, read_alpha, read_footage
from ..files.pictures import read_image
from ..settings.request import Shot, VideoRequest
from ..weights.latents import SavedShot, load_latents, read_lead, shots_in
from .control import ControlFootage
from .start import (
    NOTHING,
    ExtendedStart,
    LatentStart,
    PictureStart,
    ReadStart,
    RestyledStart,
    Start,
)


def start_from_files(request: VideoRequest) -> tuple[Start | ReadStart, list[SavedShot]]:
    """Return the start from the files of a request, and the shots of the clip. Of a film, it is the last shot."""
    clip = request.continue_from
    if clip and clip.suffix.lower() == ".safetensors":
        file = load_latents(clip)
        shots = shots_in(file.metadata, file.latents)
        return start_after(shots[-1], file.latents.float(), read_lead(file.metadata, file.latents)), shots
    return _start_in_pixels(request), [SavedShot(Shot(), 0)]


def start_after(last: SavedShot, latents: Tensor, lead: Lead) -> LatentStart:
    """Return the start that goes on with the last shot of saved latents `b c t h w`. `lead`: of the first shot."""
    if last.first == 0:
        return LatentStart(latents, lead)
    latents = latents[:, :, last.first :]
    frames = latents.shape[2]
    return LatentStart(latents, Lead(frames=frames, start_image_frames=min(last.start_image_frames, frames)))


def _start_in_pixels(request: VideoRequest) -> Start | ReadStart:
    if clip := request.continue_from:
        return lambda width, height: ExtendedStart(read_footage(clip, width, height))
    if picture := request.start_image:
        return lambda width, height: PictureStart(*read_image(picture, width, height))
    if restyled := request.restyle:
        return lambda width, height: RestyledStart(read_footage(restyled, width, height), request.strength)
    return NOTHING


def control_from_files(request: VideoRequest, width: int, height: int) -> ControlFootage:
    """Read the control of a request, with its mask, in the film's size."""
    assert request.control is not None
    return ControlFootage(
        footage=read_footage(request.control, width, height),
        mask=_mask(request, request.control, width, height),
        strength=request.control_strength,
        edge=request.control_edge,
    )


def _mask(request: VideoRequest, control: Path, width: int, height: int) -> Footage | None:
    """Read the mask of a control. Raises `BadInput` if its alpha is asked for and no clip has one."""
    if request.control_mask is None:
        return None
    if isinstance(request.control_mask, Path):
        return read_footage(request.control_mask, width, height)
    if kept := read_alpha(control, width, height):
        return replace(kept, pixels=255 - kept.pixels, note=f"{kept.note} What is opaque is kept.")
    if request.restyle and (made := read_alpha(request.restyle, width, height)):
        return replace(made, note=f"{made.note} What is opaque is made.")
    clips = " and ".join(path.name for path in (control, request.restyle) if path)
    raise BadInput(f"{clips} has no alpha, or is opaque everywhere; give a clip with alpha, or a mask")
