"""Read a picture, a video or a folder of pictures as pixel frames, cropped to the size of the video to make."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import BadInput, first_line
from .small_files import check_regular

# Pillow knows dozens more formats. One of them runs an interpreter, and others are barely maintained.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MOST_PIXELS, LONGEST_SIDE = 40_000_000, 100


def read_image(path: Path, width: int, height: int) -> Tensor:
    """Read a picture, cropped in the middle and resized to fill `width` x `height`: `1 1 3 h w` in [0, 1].

    Raises `BadInput` if the file is missing, not a picture, or absurdly large.
    """
    with _reading(path, " as a picture", "use a PNG or JPEG"), warnings.catch_warnings():
        check_regular(path)
        # Pillow only warns about a picture that unpacks to gigabytes; we refuse it.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=FORMATS) as picture:
            check_picture_size(*picture.size, path)
            ImageOps.exif_transpose(picture, in_place=True)
            upright = picture.convert("RGB") if picture.mode != "RGB" else picture
            fitted = ImageOps.fit(upright, (width, height), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.asarray(fitted, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1)[None, None].contiguous()


def check_picture_size(width: int, height: int, path: Path) -> None:
    """Raise `BadInput` for a picture that is absurdly large or narrow."""
    if not 0 < width * height <= MOST_PIXELS or max(width, height) > LONGEST_SIDE * min(width, height):
        most = f"{MOST_PIXELS // 1_000_000} million, no side over {LONGEST_SIDE} times the other"
        raise BadInput(f"{path.name} has {width} x {height} pixels; give at most {most}")


RATE = 16
"""Pixel frames a second that the models were trained at."""
MOST_FRAMES = 2000
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
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
    if (pictures := _pictures(path)) is not None:
        _check_length(len(pictures), path.name)
        pixels = [(read_image(one, width, height)[0, 0] * 255).round().byte() for one in pictures]
        note = f"{path.name}: {len(pictures)} pictures, taken as {RATE} a second, cropped to {width}x{height}."
        return Footage(torch.stack(pixels), note)
    shown: list[Tensor] = []
    with _reading(path):
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
    if (pictures := _pictures(path)) is not None:
        return len(pictures)
    with _reading(path):
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


def _pictures(path: Path) -> list[Path] | None:
    found = sorted(one for one in (path.iterdir() if path.is_dir() else [path]) if one.suffix.lower() in SUFFIXES)
    return found if found or path.is_dir() else None


def _check_length(frames: int, name: str) -> None:
    if not 0 < frames <= MOST_FRAMES:
        raise BadInput(f"{name} has {frames} frames at {RATE} a second; give a clip of 1 to {MOST_FRAMES}")


@contextmanager
def _reading(path: Path, what: str = "", cure: str = "give an mp4, webm or mov") -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise BadInput(f"{path.name} cannot be read{what} ({first_line(error)}); {cure}") from error


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
