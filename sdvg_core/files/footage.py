"""Read a video or a folder of pictures as pixel frames, cropped to the size of the video to make."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import BadInput
from .pictures import Picture, check_picture_size, note_on, pictures_in, pictures_of, reading
from .small_files import check_regular

RATE = 16
"""Pixel frames a second that the models were trained at."""
MOST_FRAMES = 2000
# Playlists and the like would open other files, or addresses.
OPENED = {
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,ogg",
    "protocol_whitelist": "file",
}
ROUNDING = Fraction(2, 1000)
BT709, UNSTATED, HD_ROWS = 1, 2, 720


@dataclass(frozen=True, slots=True, eq=False)
class Footage:
    """A clip as pixel frames `f 3 h w`, 16 a second: bytes, or in [0, 1]. `note`: what was done to it, in words."""

    pixels: Tensor
    note: str

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
    shown: list[Tensor] = []
    with reading(path):
        for frame, times in _held(path):
            hd = frame.colorspace == BT709 or (frame.colorspace == UNSTATED and frame.height >= HD_ROWS)
            matrix = "ITU709" if hd else "ITU601"
            # Without a destination, PyAV before 17 takes the matrix of old television for every source.
            picture = frame.reformat(format="rgb24", src_colorspace=matrix, dst_colorspace="DEFAULT").to_image()
            upright = picture.rotate(frame.rotation, expand=True)
            fitted = ImageOps.fit(upright, (width, height), Image.Resampling.LANCZOS)
            shown += [torch.from_numpy(np.array(fitted)).permute(2, 0, 1).contiguous()] * times
        alpha = any(part.is_alpha for part in frame.format.components)
        size = f"{upright.width}x{upright.height}" + (" without its alpha" if alpha else "")
    note = f"{path.name}: {size}, taken as {len(shown)} frames at {RATE} a second in {width}x{height}."
    return Footage(torch.stack(shown), note)


def count_frames(path: Path) -> int:
    """Return how many frames `read_footage` would. Raises `BadInput` as that does."""
    if (files := pictures_in(path)) is not None:
        return sum(times for _, times in _held_pictures(files, path.name))
    with reading(path):
        return sum(times for _, times in _held(path))


def time_stamps(source: Any, start: float, seconds: float) -> list[Fraction]:
    """Return when the frames in a part of a video are shown, as its packets say. 0 `seconds`: to its end."""
    with av.open(source) as file:
        stream = file.streams.video[0]
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
    for picture, times in _held_pictures(files, name):
        pixels, lost = picture.fitted(width, height)
        shown += [pixels] * times
        alpha = alpha or lost
        count += 1
    taken = f"{count} pictures, taken as {len(shown)} frames at {RATE} a second" if count > 1 else "a picture"
    return Footage(torch.stack(shown), note_on(name, taken, alpha, width, height))


def _held_pictures(files: Sequence[Path], name: str) -> Iterator[tuple[Picture, int]]:
    """Yield each picture of some files, and at how many of the moments 0, 1/16, 2/16 ... s it is the newest."""
    end, done = Fraction(0), 0
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


def _held(path: Path) -> Iterator[tuple[av.VideoFrame, int]]:
    """Yield each frame of a video that is the newest at one of the moments 0, 1/16, 2/16 ... s, and at how many."""
    check_regular(path)
    with av.open(str(path), options=OPENED) as file:
        stream = file.streams.video[0]
        step = 1 / stream.average_rate if stream.average_rate else Fraction(1, RATE)
        held, start, at, done = None, Fraction(0), Fraction(0), 0
        for frame in file.decode(stream):
            check_picture_size(frame.width, frame.height, path)
            start = frame.pts * frame.time_base if held is None else start
            at = frame.pts * frame.time_base - start
            until = _moments(at)
            _check_length(max(until, 1), path.name)
            if held is not None and until > done:
                yield held, until - done
                done = until
            held = frame
        until = _last_moment(at, step)
        _check_length(until if held else 0, path.name)
        if held is not None and until > done:
            yield held, until - done


def _last_moment(at: Fraction, step: Fraction) -> int:
    return max(_moments(at + step), math.floor((at + ROUNDING) * RATE) + 1)


def _moments(seconds: Fraction) -> int:
    """Return how many of the moments 0, 1/16, 2/16 ... s are before that one. Many files round to milliseconds."""
    return max(math.ceil((seconds - ROUNDING) * RATE), 0)
