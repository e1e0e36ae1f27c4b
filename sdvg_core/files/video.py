"""Write pixel frames to an mp4 block by block, so that a long video is never whole in memory."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Any

import av
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from ..errors import BadInput, first_line

# CRF 18 as for the paper's videos. The number of threads changes x264's bytes, so it must not depend on the
# machine. Players assume left chroma location unless the file states another.
X264_OPTIONS = {"crf": "18", "preset": "medium", "chroma_sample_location": "center"}
THREADS = 4
WAITING = 2
"""Most blocks that wait for the encoder; then the models wait."""
# Keep the muxer's version out of the file.
MUXER_OPTIONS = {"fflags": "+bitexact"}
GROWING = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "flush_packets": "1"}
FRAGMENT = 12
"""Frames of a fragment: a block of three latent frames."""
# ISO/IEC 23091-2: 1 is BT.709 for primaries, transfer and matrix. PyAV's value for limited range.
BT709 = 1
LIMITED_RANGE = 1
# swscale flags: area (chroma is the mean of four pixels) and accurate rounding.
AREA = 0x20 | 0x40000
PLANES = {"format": "yuv420p", "dst_colorspace": "ITU709", "dst_color_range": "MPEG", "interpolation": AREA}

LONGEST_SIDE = 16384
"""Largest side in pixels that x264 accepts."""


def check_video_size(width: int, height: int) -> None:
    """Raise `BadInput` for a picture that H.264 cannot hold."""
    if width % 2 or height % 2 or max(width, height) > LONGEST_SIDE:
        raise BadInput(f"H.264 cannot take {width}x{height}; choose even sizes up to {LONGEST_SIDE}")


class Mp4Writer:
    """Writes H.264 video: yuv420p, CRF 18, BT.709. Encodes in a thread, so that models need not wait.

    The same frames give the same bytes on x86-64 (`x264_options`); other processors were not tried. Use it in a
    `with` block, whose end waits for the last frame. After an exception the file is closed but unusable, so write
    to a staged path (`outputs.staged_video`).
    """

    def __init__(self, path: Path, fps: float, comment: str | None = None, *, growing: bool = False) -> None:
        """Prepare to write to `path`, `fps` pixel frames per second. `comment`: for the file's metadata.

        `growing`: in fragments, so that a player follows the file while it is written.
        """
        self._comment = comment
        self._growing = growing
        self._rate = Fraction(fps).limit_denominator(1001)
        self._path = path
        self._container: Any = None
        self._stream: Any = None
        self._reformatter = VideoReformatter()
        self._queue: Queue[Tensor | None] = Queue(WAITING)
        self._thread = Thread(target=self._encode_all, name="mp4", daemon=True)
        self._fault: Exception | None = None
        self._given_up = False

    def __enter__(self) -> Mp4Writer:
        self._thread.start()
        return self

    def add(self, frames: Tensor) -> None:
        """Append frames `f c h w` or `1 f c h w`, RGB in [0, 1], all of one size that `check_video_size` allows.

        Raises `OSError` or `BadInput` if the encoder failed on earlier frames.
        """
        if self._container is None:
            self._open(*frames.shape[-2:])
        self._raise_fault()
        self._queue.put(to_rgb(frames.flatten(0, -4)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up = kind is not None
        self._queue.put(None)
        self._thread.join()
        if kind is None:
            self._raise_fault()

    def _raise_fault(self) -> None:
        if isinstance(self._fault, OSError | MemoryError):
            raise self._fault
        if self._fault:
            fault = f"the encoder of the video failed ({first_line(self._fault)})"
            raise BadInput(f"{fault}; the finished blocks are kept; the same command goes on") from self._fault

    def _encode_all(self) -> None:
        """Encode the queue in order. After an error, keep emptying it, so that no caller blocks."""
        for frames in iter(self._queue.get, None):
            try:
                self._encode(frames)
            except Exception as error:
                self._fault = self._fault or error
        if self._container is None:
            return
        try:
            if not (self._fault or self._given_up):
                self._container.mux(self._stream.encode())
            self._container.close()
        except Exception as error:
            self._fault = self._fault or error

    def _encode(self, frames: Tensor) -> None:
        for image in frames.cpu():  # waits for the GPU in this thread
            if self._fault or self._given_up:
                return
            self._container.mux(self._stream.encode(to_yuv420(image, self._reformatter)))

    def _open(self, height: int, width: int) -> None:
        muxer = MUXER_OPTIONS | (GROWING if self._growing else {})
        encoder = x264_options() | ({"tune": "zerolatency"} if self._growing else {})
        self._container = av.open(str(self._path), "w", format="mp4", options=muxer)
        if self._comment:
            self._container.metadata["comment"] = self._comment
        self._stream = self._container.add_stream("libx264", rate=self._rate, options=encoder)
        self._stream.width = width
        self._stream.height = height
        self._stream.pix_fmt = "yuv420p"
        codec = self._stream.codec_context
        codec.thread_count = THREADS
        if self._growing:
            codec.gop_size = FRAGMENT
        codec.color_primaries = BT709
        codec.color_trc = BT709
        codec.colorspace = BT709
        codec.color_range = LIMITED_RANGE


def x264_options() -> dict[str, str]:
    """Return the encoder's options, without AVX-512 code, which reads uninitialised memory.

    With it, x264's look-ahead (mbtree) is not reproducible, and pixels differ by up to 40 of 255. AVX2 and older
    code agree bit for bit (lab/benchmarks/LOG.md).
    """
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return {**X264_OPTIONS, "x264-params": "asm=avx2"}
    return dict(X264_OPTIONS)


def write_mp4(path: Path, frames: Tensor | Iterable[Tensor], fps: float) -> None:
    """Write a whole video. `frames`: `f c h w` or `1 f c h w` in [0, 1], one tensor or several in order."""
    with Mp4Writer(path, fps) as video:
        for part in [frames] if isinstance(frames, Tensor) else frames:
            video.add(part)


def to_rgb(frames: Tensor) -> Tensor:
    """Convert frames `f c h w` in [0, 1] to bytes `f h w c`, on their device."""
    return frames.detach().float().clamp(0, 1).mul_(255).round_().byte().movedim(1, -1).contiguous()


def to_yuv420(image: Tensor, reformatter: Any) -> Any:
    """Convert an RGB image `h w c` in bytes, of even size, to a frame for the encoder (BT.709, limited range)."""
    return reformatter.reformat(av.VideoFrame.from_ndarray(image.numpy(), format="rgb24"), **PLANES)
