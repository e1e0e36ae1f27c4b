"""Read a video or a folder of pictures as pixel frames, cropped to the size of the video to make."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import BadInput
from .clip import Clip, check_colours, open_clip
from .pictures import Picture, note_on, pictures_in, pictures_of, reading
from .sound import Sound

T = TypeVar("T")
RATE = 16
"""Pixel frames a second that the models were trained at."""
MOST_FRAMES = 2000
ROUNDING = Fraction(2, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class Footage:
    """A clip as pixel frames `f 3 h w`, 16 a second: bytes, or in [0, 1]. `note`: what was done to it."""

    pixels: Tensor
    note: str
    sound: Sound | None = None

    @property
    def frames(self) -> int:
        """How many pixel frames there are."""
        return len(self.pixels)

    def fill(self, frames: int, *, first: int = 0) -> Tensor:
        """Return `frames` of them from number `first` on, `1 f 3 h w` in [0, 1]; those at the ends are repeated."""
        taken = self.pixels[(first + torch.arange(frames)).clamp(0, self.frames - 1)]
        return (taken.float() / 255 if taken.dtype == torch.uint8 else taken.float())[None]


def read_footage(path: Path, width: int, height: int) -> Footage:
    """Read a clip by its time stamps, each frame cropped in the middle and resized to fill `width` x `height`.

    Raises `BadInput` if there is no clip, or if it is longer than `MOST_FRAMES` at 16 a second.
    """
    if (files := pictures_in(path)) is not None:
        return _read_pictures(files, path.name, width, height)
    pixels, clip = _taken(path, partial(_fitted, size=(width, height)))
    note = f"{path.name}: {clip.note}, taken as {len(pixels)} frames at {RATE} a second in {width}x{height}."
    sound = Sound(path, clip.sound_codec, clip.start) if clip.sound_codec else None
    return Footage(torch.stack(pixels), note, sound)


def count_frames(path: Path) -> int:
    """Return how many frames `read_footage` would. Raises `BadInput` as that does."""
    if (files := pictures_in(path)) is not None:
        return sum(times for _, times in _newest_pictures(files, path.name))
    moments, _ = _taken(path, lambda clip, frame: None)
    return len(moments)


def time_stamps(source: Any, start: float, seconds: float) -> list[Fraction]:
    """Return when the frames in a part of a video are shown, as its packets say. 0 `seconds`: to its end."""
    with av.open(source) as file:
        stream = file.streams.video[0]
        check_colours(stream, "the video")
        moments = sorted(packet.pts for packet in file.demux(stream) if packet.pts is not None)
        first, end = (int(at / stream.time_base) for at in (start, start + seconds))
        return [at * stream.time_base for at in moments if first <= at and (at < end or not seconds)]


def newest_at(times: Sequence[Fraction], step: Fraction, name: str) -> list[int]:
    """Return which of some frames is the newest at 0, 1/16, 2/16 ... s, as `read_footage` takes them.

    `times`: when each is shown, counted from the first one's; `step`: how long the last is.
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
    return Footage(torch.stack(shown), note_on(name, taken, alpha, width, height))


def _newest_pictures(files: Sequence[Path], name: str) -> Iterator[tuple[Picture, int]]:
    """Yield each picture of some files, and at how many of the moments 0, 1/16, 2/16 ... s it is the newest."""
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
    if not 0 < frames <= MOST_FRAMES:
        raise BadInput(f"{name} has {frames} frames at {RATE} a second; give a clip of 1 to {MOST_FRAMES}")


def _taken(path: Path, take: Callable[[Clip, Any], T], *, counted: bool = False) -> tuple[list[T], Clip]:
    """Return what `take` makes of the newest frame at each of the moments 0, 1/16, 2/16 ... s; and the clip.

    `counted`: by its average rate, not its time stamps, which AVI with B-frames gets wrong.
    """
    with reading(path), open_clip(path) as clip:
        try:
            moments: list[T] = []
            for frame, times in _newest_frames(clip, counted):
                moments += [take(clip, frame)] * times
        except _TimeGoesBack:
            return _taken(path, take, counted=True)
        return moments, clip


class _TimeGoesBack(Exception):
    """A frame is shown before the previous one, or has no time stamp."""


def _fitted(clip: Clip, frame: Any, size: tuple[int, int]) -> Tensor:
    """Return a frame's pixels, `3 h w` bytes, cropped in the middle."""
    fitted = ImageOps.fit(clip.picture(frame), size, Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1).contiguous()


def _newest_frames(clip: Clip, counted: bool) -> Iterator[tuple[Any, int]]:
    """Yield each frame of a video that is the newest at one of the moments 0, 1/16, 2/16 ... s, and at how many."""
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
    """Return how many of the moments 0, 1/16, 2/16 ... s are before `seconds`. Many files round to milliseconds."""
    return max(math.ceil((seconds - ROUNDING) * RATE), 0)
