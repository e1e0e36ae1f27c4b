"""A video as a few small pictures, side by side in one JPEG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import BadInput, first_line

WIDTH, HIGHEST = 160, 320
"""Of one picture, in pixels; smaller videos keep their size."""
MOST_FRAMES, MOST_PIXELS = 20_000, 40_000_000
"""Of a video that is read: twenty minutes at 16 frames a second, and a large photograph per frame."""
CODEC = "h264"
ATTEMPTS = ((24, 70), (24, 50), (16, 50), (12, 40), (8, 30), (4, 30), (1, 30))
"""How many pictures, and their JPEG quality, until the file is small enough; the last attempt stands."""

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnails:
    """Small pictures of a video: `jpeg` has them side by side, each `width` x `height` pixels.

    `frames`: which pixel frame of the video each one shows. `of`: how many pixel frames the video has.
    """

    jpeg: bytes
    width: int
    height: int
    frames: tuple[int, ...]
    of: int


def read_thumbnails(path: Path, most_bytes: int) -> Thumbnails:
    """Return pictures of an mp4 from its first frame to its last, in about `most_bytes` or less.

    Raises `BadInput` if the file cannot be read, is not H.264, or is absurdly large.
    """
    try:
        # The format is given, so that no other of FFmpeg's readers ever sees the file.
        with av.open(str(path), format="mp4") as container:
            pictures, of = _thinned(_small_frames(container, path.name), 2 * ATTEMPTS[0][0])
    except BadInput:
        raise
    except Exception as error:  # a damaged video can fail in any way
        # FFmpeg's own messages end with the file's whole path.
        why = getattr(error, "strerror", None) or first_line(error)
        raise BadInput(f"the pictures of {path.name} cannot be read ({why}); make the video again") from error
    if not pictures:
        raise BadInput(f"{path.name} must have at least one frame, but has none; make the video again")
    for most, quality in ATTEMPTS:
        chosen = _evenly(pictures, most)
        jpeg = _side_by_side([picture for _, picture in chosen], quality)
        if len(jpeg) <= most_bytes:
            break
    height, width = chosen[0][1].shape[:2]
    return Thumbnails(jpeg=jpeg, width=width, height=height, frames=tuple(n for n, _ in chosen), of=of)


def _small_frames(container: av.container.InputContainer, name: str) -> Iterator[Picture]:
    """Yield every pixel frame of an open video, `h w c` and small."""
    stream = container.streams.video[0]
    codec = stream.codec_context
    if codec.name != CODEC or not 0 < codec.width * codec.height <= MOST_PIXELS:
        raise BadInput(
            f"a video is H.264 of at most {MOST_PIXELS // 1_000_000} million pixels, but {name} is {codec.name}, "
            f"{codec.width}x{codec.height}; give a video that sdvg wrote"
        )
    scale = min(1.0, WIDTH / codec.width, HIGHEST / codec.height)
    width, height = (max(1, round(side * scale)) for side in (codec.width, codec.height))
    for number, frame in enumerate(container.decode(stream)):
        if number == MOST_FRAMES:
            raise BadInput(
                f"pictures are made of at most {MOST_FRAMES} frames, but {name} has more; make shorter videos"
            )
        yield frame.reformat(width, height, "rgb24", src_colorspace="ITU709", interpolation="AREA").to_ndarray()


def _thinned(frames: Iterable[Picture], most: int) -> tuple[list[tuple[int, Picture]], int]:
    """Return at most `most` frames at equal distances, each with its number, and how many there were."""
    kept: list[tuple[int, Picture]] = []
    step, of = 1, 0
    for of, frame in enumerate(frames, 1):
        if (of - 1) % step == 0:
            kept.append((of - 1, frame))
        if len(kept) > most:
            kept, step = kept[::2], 2 * step
    return kept, of


def _evenly(pictures: list[tuple[int, Picture]], most: int) -> list[tuple[int, Picture]]:
    count = min(most, len(pictures))
    return [pictures[i * len(pictures) // count] for i in range(count)]


def _side_by_side(pictures: list[Picture], quality: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.concatenate(pictures, axis=1)).save(file, "JPEG", quality=quality)
    return file.getvalue()
