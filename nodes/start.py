"""SDVG Start: choose a picture, a clip to extend or a clip to restyle as the start of a video."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from comfy_api.latest import Input, InputImpl, Types, io
from torch import Tensor

from ..sdvg_core.errors import BadInput, count, see
from ..sdvg_core.files.footage import RATE, newest_at, time_stamps
from ..sdvg_core.files.pictures import reading
from ..sdvg_core.settings.request import STRENGTHS, USUAL_STRENGTH
from .host.sockets import PICTURE, RESTYLE, ClipValue, StartSocket, StartValue
from .schema import NOT_WIRED, PICTURES, are_pictures, check_option, known_inputs_only, node_schema, shown

CLIP_SLOTS = [f"clip{number}" for number in range(1, 9)]
"""Names of the inputs for clips, by which lines of a prompt show them, such as `4 clip #clip1:`."""
NO_CLIPS: Mapping[str, Input.Video] = MappingProxyType({})
NO_IMAGES = torch.zeros(0, 1, 1, 3)
BY_NUMBER = "by number"
EXTEND = "extend"


class StartNode(io.ComfyNode):
    """Passes a picture or a clip to the sampler."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        strength = io.Combo.Input("strength", options=[*STRENGTHS, BY_NUMBER], default=USUAL_STRENGTH)
        remembered = io.Int.Input("context_blocks", default=0, min=0, max=4096, advanced=True, optional=True)
        amount = io.Float.Input("amount", default=0.6, min=0.05, max=1.0, step=0.05, advanced=True, optional=True)
        return node_schema(
            node_id="SDVGStart",
            search_aliases=["video to video", "vid2vid", "image to video", "extend video", "restyle"],
            inputs=[
                io.DynamicCombo.Input(
                    "use_as",
                    options=[
                        io.DynamicCombo.Option(PICTURE, []),
                        io.DynamicCombo.Option(EXTEND, [remembered]),
                        io.DynamicCombo.Option(RESTYLE, [strength, amount]),
                    ],
                ),
                io.Video.Input("video", optional=True),
                io.Image.Input("images", optional=True),
                io.Autogrow.Input(
                    "clips",
                    optional=True,
                    template=io.Autogrow.TemplateNames(
                        io.Video.Input("clip", optional=True), names=CLIP_SLOTS, min=0
                    ),
                ),
            ],
            outputs=[StartSocket.Output(display_name="start"), io.Audio.Output(display_name="audio")],
        )

    @classmethod
    def validate_inputs(
        cls,
        use_as: object = None,
        video: object = NOT_WIRED,
        images: object = NOT_WIRED,
        clips: Mapping[str, object] = NO_CLIPS,
    ) -> bool:
        """Raise `BadInput` unless one source is wired in, or clips alone.

        ComfyUI passes `use_as` and `clips` even if they are not named.
        """
        _check_one(video is not NOT_WIRED, images is not NOT_WIRED, clips=bool(clips))
        return True

    @classmethod
    @known_inputs_only
    def execute(
        cls,
        use_as: dict[str, Any] | None = None,
        video: Input.Video | None = None,
        images: Tensor | None = None,
        clips: Mapping[str, Input.Video] = NO_CLIPS,
    ) -> io.NodeOutput:
        """Return the clip at 16 frames a second, in its own size, and the matching audio, or None without audio."""
        _check_one(video is not None, images is not None, clips=bool(clips))
        use_as = check_option(use_as, "use_as", (PICTURE, EXTEND, RESTYLE))
        how = use_as["use_as"]
        strength = use_as.get("strength", "")
        taken = ""
        sound = None
        if video is not None and how == PICTURE:
            _stamps_of(video)
            images = _components_of(video).images[:1]
        elif video is not None:
            images, sound, taken = _frames_of(video)
        images = NO_IMAGES if images is None else images
        _check_amount(use_as)
        strength = str(use_as["amount"]) if strength == BY_NUMBER else strength
        between = {name: clip_of(clip) for name, clip in clips.items()}
        remembered = use_as.get("context_blocks", 0)
        return io.NodeOutput(StartValue(images, how, strength, taken, sound, between, remembered), sound)


def clip_of(video: Input.Video) -> ClipValue:
    """Return a VIDEO at 16 frames a second, with its sound."""
    images, sound, taken = _frames_of(video)
    return ClipValue(images, taken, sound)


def _check_one(video: bool, images: bool, *, clips: bool) -> None:
    """Raise `BadInput` unless one source is wired in, or none beside `clips`."""
    if video and images:
        raise BadInput("SDVG Start has images and a video; wire in one of them")
    if not (video or images or clips):
        raise BadInput("SDVG Start has neither images nor a video; wire in one of them")


def _check_amount(use_as: Mapping[str, Any]) -> None:
    if use_as.get("strength") == BY_NUMBER and use_as.get("amount") is None:
        raise BadInput(f"the strength is {BY_NUMBER!r}, but there is no number; set use_as.amount, such as 0.6")


def _components_of(video: Input.Video) -> Types.VideoComponents:
    """Return the components of a VIDEO, which may come from any pack. Raises `BadInput` if they are invalid."""
    with _reading(video):
        parts = video.get_components()
    if not are_pictures(parts.images):
        raise BadInput(f"the video's frames are {shown(parts.images)}, not {PICTURES}; take another video")
    if not 0 < parts.frame_rate < inf:
        raise BadInput(f"the video has {parts.frame_rate} frames a second; give it a rate above 0")
    sound = parts.audio
    if sound is not None and not _is_sound(sound):
        raise BadInput(f"the video's sound is {shown(sound)}, not an AUDIO; change that wire")
    return parts


def _is_sound(sound: Any) -> bool:
    """True if it is an AUDIO: a waveform `b channels samples` and a sample rate."""
    if not (isinstance(sound, dict) and {"waveform", "sample_rate"} <= sound.keys()):
        return False
    wave, rate = sound["waveform"], sound["sample_rate"]
    return isinstance(wave, Tensor) and wave.dim() == 3 and isinstance(rate, int | float) and rate > 0


def _frames_of(video: Input.Video) -> tuple[Tensor, Input.Audio | None, str]:
    """Return the frames of a VIDEO at 16 a second, their audio, and what the video had.

    Time stamps count, if there are any.
    """
    stamps = _stamps_of(video)
    parts = _components_of(video)
    rate = Fraction(parts.frame_rate)
    times = [number / rate for number in range(len(parts.images))]
    taken = f"{count(len(parts.images), 'frame')} at {float(rate):.4g}/s"
    if stamps and len(stamps) == len(parts.images):
        times = stamps
    if parts.alpha is not None:
        taken = f"{taken} without alpha"
    images = parts.images[newest_at(times, 1 / rate, "the video")]
    sound = parts.audio
    if sound is not None:
        end = round(len(images) / RATE * sound["sample_rate"])
        sound = {**sound, "waveform": sound["waveform"][..., :end]}
    return images, sound, taken


def _stamps_of(video: Input.Video) -> list[Fraction]:
    """Return the time stamps of a file's frames in seconds; an empty list for a VIDEO that is not a file.

    Raises `BadInput` for a damaged file, and for HDR colours: ComfyUI does not convert them, neither from a file
    nor, since 0.34, from Create Video.
    """
    if isinstance(video, InputImpl.VideoFromFile):
        with _reading(video):
            return time_stamps(video.get_stream_source(), *video.get_active_trim_window())
    if hasattr(video, "get_color_space") and (space := video.get_color_space()).startswith("HDR"):
        raise BadInput(f"the video is in {space}, which is not read; convert it to sRGB" + see("Colours are wrong"))
    return []


@contextmanager
def _reading(video: Input.Video) -> Iterator[None]:
    """Turn any error of a damaged file into `BadInput`; those of another pack's VIDEO are its own."""
    if not isinstance(video, InputImpl.VideoFromFile):
        yield
        return
    source = video.get_stream_source()
    path = Path(source) if isinstance(source, str) else Path("the video")
    with reading(path, cure="give a clip that plays, such as an mp4"):
        yield
