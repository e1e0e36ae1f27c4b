"""The start and the control of a film, from the files of its request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..engine.plan import Lead
from ..errors import BadInput
from ..files.clip import open_clip
from ..files.digest import digest_of_file
from ..files.footage import RATE, Footage, count_frames, read_alpha, read_footage
from ..files.pictures import read_image, reading
from ..files.small_files import LATENTS, REPORT, VIDEO
from ..loading.headers import Headers
from ..report.run_report import read_report
from ..settings.request import Shot, VideoRequest
from ..weights.latents import LatentsFile, SavedShot, load_latents, read_lead, shots_in
from .control import ControlFootage
from .resolve import size_of
from .start import (
    NOTHING,
    ExtendedStart,
    LatentStart,
    PictureStart,
    ReadStart,
    RestyledStart,
    Start,
    pixel_count,
)


@dataclass(frozen=True, slots=True, eq=False)
class FilmStart:
    """What a film's first run begins with.

    `shots`: of the clip that is continued; the last one goes on. `notes`: for the report. `own_latents`: file of
    the latents that are taken in place of the given video, if any.
    """

    start: Start | ReadStart
    shots: Sequence[SavedShot] = (SavedShot(Shot(), 0),)
    notes: tuple[str, ...] = ()
    own_latents: Path | None = None


def start_from_files(request: VideoRequest, headers: Headers) -> FilmStart:
    """Return the start from the files of a request."""
    clip = request.continue_from
    if clip is None:
        return FilmStart(_start_in_pixels(request))
    if clip.suffix.lower() == ".safetensors":
        file = load_latents(clip)
        shots = shots_in(file.metadata, file.latents)
        start = start_after(shots[-1], file.latents.float(), read_lead(file.metadata, file.latents))
        of_shots = (
            f"The clip has {len(shots)} shots: the last one, {shots[-1].shot.key}, goes on, and is shown alone."
        )
        return FilmStart(start, shots, (of_shots,) if shots[1:] else ())
    beside = clip.with_name(LATENTS)
    if not (beside.is_file() and clip.with_name(REPORT).is_file()):
        return FilmStart(_start_in_pixels(request))
    try:
        file = load_latents(beside)
        shots = shots_in(file.metadata, file.latents)
        lead = read_lead(file.metadata, file.latents)
        problem = _why_not(clip, file, lead, request, headers)
    except BadInput as error:
        problem = str(error)
    if problem:
        note = f"{clip.name} goes on from its pixels, not from the {LATENTS} beside it: {problem}."
        return FilmStart(_start_in_pixels(request), notes=(note,))
    lead = replace(lead, from_pixels=lead.frames - lead.start_image_frames)
    note = f"{clip.name} goes on from the {LATENTS} beside it, of which it was made. The route begins anew."
    return FilmStart(LatentStart(file.latents.float(), lead), shots, (note,), beside)


def _why_not(clip: Path, file: LatentsFile, lead: Lead, request: VideoRequest, headers: Headers) -> str:
    """Return why a video goes on from its pixels, and not from the latents beside it; empty if from these.

    `file`, `lead`: of the latents. Raises `BadInput` for a report or a video that cannot be read.
    """
    report = read_report(clip.with_name(REPORT))
    digests = [digest_of_file(clip), digest_of_file(clip.with_name(LATENTS))]
    if [report.files.get(name) for name in (VIDEO, LATENTS)] != digests:
        return f"by {REPORT} they do not belong together"
    if report.clip_frames or shots_in(file.metadata, file.latents)[1:]:
        return "they are of a film, and its last shot alone would go on"
    if report.fps != RATE:
        return f"it has {report.fps:g} frames a second, not {RATE}"
    with reading(clip), open_clip(clip) as opened:
        if opened.sound_codec:
            return "it has sound"
    vae = headers.vae
    _, channels, frames, height, width = file.latents.shape
    if channels != vae.latent_channels:
        return "they are of another VAE"
    size = width * vae.spatial_stride, height * vae.spatial_stride
    if size != size_of(request, headers, NOTHING):
        return "the new video has another size; add --size {}x{} for these".format(*size)
    held = vae.temporal_stride * max(lead.start_image_frames - 1, 0)
    if count_frames(clip) != pixel_count(frames, vae.temporal_stride) - held:
        return "they hold the first frame of a clip that it begins with"
    if frames < max(model.block_frames for model in headers.models.values()):
        return "it is shorter than a block"
    return ""


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
