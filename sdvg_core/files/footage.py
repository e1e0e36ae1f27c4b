"""Read a video or a folder of pictures as pixel frames, 16 a second, cropped to the size of the video to make."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import av
import torch
from torch import Tensor

from ..errors import BadInput
from ..settings.request import CLIP_RATE
from .clip import Clip, check_colours, open_clip
from .pictures import Picture, cropped, picture_note, pictures_in, pictures_of, reading
from .sound import Sound

_T = TypeVar("_T")
RATE = CLIP_RATE
"""Pixel frames a second of the models' training clips."""
MOST_FOOTAGE_FRAMES = 2000
OPAQUE = 255
ROUNDING = Fraction(2, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class Footage:
    """A clip as pixel frames `f 3 h w`, 16 a second, as bytes or in [0, 1]. `note`: on how it was read."""

    pixels: Tensor
    note: str
    sound: Sound | None = None

    @property
    def frames(self) -> int:
        """Number of pixel frames."""
        return len(self.pixels)

    def part(self, first: int, until: int | None) -> Footage:
        """Return the frames `first` to `until`; at least the last frame. The note is the whole's.

        So is the sound, which the part with the first frame has.
        """
        sound = None if first else self.sound
        return Footage(self.pixels[min(first, self.frames - 1) : until], self.note, sound)

    def fill(self, frames: int, *, first: int = 0) -> Tensor:
        """Return frames `1 f 3 h w` in [0, 1] from index `first` on; beyond the ends, repeat the end frames."""
        pixels = self.pixels[(first + torch.arange(frames)).clamp(0, self.frames - 1)]
        return (pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float())[None]


def read_footage(path: Path, width: int, height: int) -> Footage:
    """Read a clip by its time stamps, with frames cropped at the centre and scaled to `width` x `height`.

    Raises `BadInput` if it cannot be read, or has more than `MOST_FOOTAGE_FRAMES` at 16 a second.
    """
    if (files := pictures_in(path)) is not None:
        return _read_pictures(files, path.name, width, height)
    pixels, clip = _taken(path, lambda clip, frame: cropped(clip.picture(frame), (width, height)))
    note = f"{path.name}: {clip.note}, taken as {len(pixels)} frames at {RATE} a second in {width}x{height}."
    sound = Sound(path, clip.sound_codec, clip.start) if clip.sound_codec else None
    return Footage(torch.stack(pixels), note, sound)


def read_alpha(path: Path, width: int, height: int) -> Footage | None:
    """Read the alpha of a clip as bytes `f 1 h w`, at the moments of `read_footage`; None if all of it is opaque.

    Raises `BadInput` like `read_footage`.
    """
    size = (width, height)
    levels: list[Tensor] = []
    if (files := pictures_in(path)) is not None:
        for picture, times in _newest_pictures(files, path.name):
            levels += [picture.alpha(size)] * times
    else:
        levels, _ = _taken(path, lambda clip, frame: cropped(clip.alpha(frame), size), alpha=True)
    pixels = torch.stack(levels)
    opaque = bool((pixels == OPAQUE).all())
    return None if opaque else Footage(pixels, f"is the alpha of {path.name}.")


def count_frames(path: Path) -> int:
    """Return the number of frames that `read_footage` reads. Raises `BadInput` like it."""
    if (files := pictures_in(path)) is not None:
        return sum(times for _, times in _newest_pictures(files, path.name))
    moments, _ = _taken(path, lambda clip, frame: None)
    return len(moments)


def time_stamps(source: Any, start: float, seconds: float) -> list[Fraction]:
    """Return the time stamps of the packets in a part of a video, in seconds. `seconds`: length, 0 for the rest.

    Raises `BadInput` without a video stream and like `check_colours`, and errors of FFmpeg.
    """
    with av.open(source) as file:
        if not file.streams.video:
            raise BadInput("the file holds no video; give an mp4, webm or mov")
        stream = file.streams.video[0]
        check_colours(stream, "the video")
        moments = sorted(packet.pts for packet in file.demux(stream) if packet.pts is not None)
        first, end = (int(at / stream.time_base) for at in (start, start + seconds))
        return [at * stream.time_base for at in moments if first <= at and (at < end or not seconds)]


def newest_at(times: Sequence[Fraction], step: Fraction, name: str) -> list[int]:
    """Return the index of the newest frame at 0, 1/16, 2/16 ... s, as `read_footage` samples them.

    `times`: time stamps of the frames. `step`: duration of the last one. `name`: of the clip, for errors.
    """
    until = _last_moment(times[-1] - times[0], step) if times else 0
    _check_length(until, name)
    return [bisect_right(times, times[0] + Fraction(moment, RATE) + ROUNDING) - 1 for moment in range(until)]


def _read_pictures(files: Sequence[Path], name: str, width: int, height: int) -> Footage:
    shown: list[Tensor] = []
    alpha = False
    count = 0
    for picture, times in _newest_pictures(files, name):
        pixels, lost = picture.fitted(width, height)
        shown += [pixels] * times
        alpha = alpha or lost
        count += 1
    taken = f"{count} pictures, taken as {len(shown)} frames at {RATE} a second" if count > 1 else "a picture"
    return Footage(torch.stack(shown), picture_note(name, taken, alpha, width, height))


def _newest_pictures(files: Sequence[Path], name: str) -> Iterator[tuple[Picture, int]]:
    """Yield the pictures of files, each with the number of moments 0, 1/16 ... s at which it is the newest."""
    end = Fraction(0)
    done = 0
    for picture in chain.from_iterable(map(pictures_of, files)):
        end += picture.seconds or Fraction(1, RATE)
        until = _moments(end)
        _check_length(until, name)
        yield picture, until - done
        done = until
    _check_length(done, name)


def _check_length(frames: int, name: str) -> None:
    if not 0 < frames <= MOST_FOOTAGE_FRAMES:
        raise BadInput(f"{name} has {frames} frames at {RATE} a second; give a clip of 1 to {MOST_FOOTAGE_FRAMES}")


def _taken(
    path: Path, take: Callable[[Clip, Any], _T], *, counted: bool = False, alpha: bool = False
) -> tuple[list[_T], Clip]:
    """Apply `take` to the newest frame at each of the moments 0, 1/16, 2/16 ... s; return the results and the clip.

    `counted`: use the average rate instead of time stamps, wrong in AVI with B-frames. `alpha`: decode it too.
    """
    with reading(path), open_clip(path, alpha=alpha) as clip:
        try:
            moments: list[_T] = []
            for frame, times in _newest_frames(clip, counted):
                moments += [take(clip, frame)] * times
        except _TimeGoesBack:
            return _taken(path, take, counted=True, alpha=alpha)
        return moments, clip


class _TimeGoesBack(Exception):
    """A frame is shown before the previous one, or has no time stamp."""


def _newest_frames(clip: Clip, counted: bool) -> Iterator[tuple[Any, int]]:
    """Yield the frames that are the newest at any moment 0, 1/16, 2/16 ... s, each with its number of moments."""
    step = 1 / Fraction(clip.stream.average_rate or RATE)
    if counted:
        clip.remark(f"counted as {float(1 / step):.4g} a second for want of good time stamps")
    newest = None
    at = Fraction(0)
    done = 0
    for number, frame in enumerate(clip.frames()):
        if frame.pts is None and not counted:
            raise _TimeGoesBack
        time = number * step if counted else frame.pts * frame.time_base
        if newest is None:
            clip.start = time
        if time < clip.start + at:
            raise _TimeGoesBack
        at = time - clip.start
        until = _moments(at)
        _check_length(max(until, 1), clip.path.name)
        if newest is not None and until > done:
            yield newest, until - done
            done = until
        newest = frame
    until = _last_moment(at, step)
    _check_length(until if newest else 0, clip.path.name)
    if newest is not None and until > done:
        yield newest, until - done


def _last_moment(at: Fraction, step: Fraction) -> int:
    return max(_moments(at + step), math.floor((at + ROUNDING) * RATE) + 1)


def _moments(seconds: Fraction) -> int:
    """Return the number of moments 0, 1/16, 2/16 ... s before `seconds`, allowing for stamps in milliseconds."""
    return max(math.ceil((seconds - ROUNDING) * RATE), 0)
