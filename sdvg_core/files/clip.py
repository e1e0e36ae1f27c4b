"""Decode a video file to upright RGB pictures: stream, colours, interlacing, pixel aspect, rotation.

FFmpeg converts colours. With these flags and 16 bits, RGB is right to a fiftieth of a level of 255, while PyAV's
defaults lose a level at every reading. FFmpeg's `scale` filter was not used: it ignores the chroma location.

HDR is refused. PyAV's FFmpeg has no `zscale` and no `libplacebo`, and the curve of swscale's perceptual intent is
neither BT.2390's nor BT.2446's: it shows reference white of 203 cd/m2 as level 155 of 255, and BT.2390 as 198.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.filter import Graph
from av.stream import Disposition
from PIL import Image, ImageOps

from ..errors import BadInput, see
from .pictures import check_picture_size
from .small_files import check_regular
from .video import BT709, LIMITED_RANGE

# Only containers: playlists could open other files or URLs.
OPENED = {
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,ogg,"
    "mxf,mpeg,mpegvideo,asf,flv,dv,yuv4mpegpipe",
    "protocol_whitelist": "file",
}
CONTAINERS = "an mp4, mov, webm, mkv, avi, mpg, vob, mxf, wmv, flv or ts"
# swscale flags: bicubic, full chroma interpolation, accurate rounding.
EXACT = 0x4 | 0x2000 | 0x40000
# ISO/IEC 23091-2. Matrix 0 is RGB; missing ones are not linear, or unknown to swscale.
MATRICES = (0, 1, 2, 4, 5, 6, 7, 9)
UNSTATED_COLOUR = 2
BT601 = 5
HD_ROWS = 720
"""Rows from which a picture without a stated matrix counts as BT.709."""
FULL_RANGE = 2
CURVES = {8: "linear light", 9: "logarithmic light", 10: "logarithmic light", 16: "HDR (PQ)", 18: "HDR (HLG)"}
ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
WIDE = {9: "BT.2020", 11: "DCI-P3", 12: "Display P3"}


class Clip:
    """An open video. `start`: time of its first frame in seconds. `sound_codec`: None without sound."""

    def __init__(self, file: Any, path: Path, *, alpha: bool = False) -> None:
        """Find the video stream (not a cover picture). `alpha`: decode it too.

        Raises `BadInput` if there is no video, and for HDR.
        """
        streams = [stream for stream in file.streams.video if not stream.disposition & Disposition.attached_pic]
        if not streams:
            raise BadInput(f"{path.name} holds no video; give an mp4, webm or mov")
        best = file.streams.best("video")
        self.path = path
        self.stream = max(streams, key=lambda stream: (_is_decodable(stream), stream.frames != 1, stream is best))
        check_colours(self.stream, path.name)
        self.start = Fraction(0)
        sound = find_sound(file)
        self.sound_codec: str | None = sound and sound.codec_context.name
        self._file = file
        self._size = ""
        self._remarks: list[str] = []
        self._decoder = _alpha_decoder(self.stream.codec_context) if alpha else None
        self._aspect: Fraction = self.stream.sample_aspect_ratio or Fraction(1)
        if wide := WIDE.get(self.stream.codec_context.color_primaries):
            self.remark(f"its {wide} primaries taken as BT.709's")
        if self.stream.metadata.get("alpha_mode") == "1":
            self.remark("without its alpha")

    @property
    def note(self) -> str:
        """The size of the pictures, and remarks on conversions and losses."""
        return ", ".join([self._size, *self._remarks])

    def remark(self, text: str) -> None:
        """Add a remark to the note, once."""
        if text not in self._remarks:
            self._remarks.append(text)

    def frames(self) -> Iterator[Any]:
        """Yield the frames, deinterlaced. Raises `BadInput` for one that is too large or narrow."""
        graph: Graph | None = None
        shape: tuple[int, int, str] | None = None
        for frame in chain(self._decoded(), [None]):
            if graph is not None and (frame is None or _shape(frame) != shape):
                yield from pushed(graph, None)
                graph = None
            if frame is None:
                return
            check_picture_size(max(frame.width, self._width(frame)), frame.height, self.path)
            if _has_alpha(frame):
                self.remark("without its alpha")
            if graph is None and frame.interlaced_frame:
                self.remark("deinterlaced")
                graph = _deinterlacer(frame)
                shape = _shape(frame)
            yield from [frame] if graph is None else pushed(graph, frame)

    def _decoded(self) -> Iterator[Any]:
        """Yield the frames of the file; without the last one if the file is cut off within it."""
        for packet, following in pairwise(chain(self._file.demux(self.stream), [None])):
            if packet.is_corrupt and following is not None and following.size == 0:
                self.remark("read to where it is cut off")
            else:
                yield from self._frames_of(packet)

    def _frames_of(self, packet: Any) -> Iterator[Any]:
        """Yield the frames of a packet."""
        if self._decoder is None:
            yield from packet.decode()
        else:
            for frame in self._decoder.decode(packet if packet.size else None):
                frame.time_base = self.stream.time_base
                yield frame

    def picture(self, frame: Any) -> Image.Image:
        """Convert a frame to an upright 8-bit RGB picture of square pixels, right to half a level."""
        unstated = BT709 if frame.height >= HD_ROWS else BT601
        levels = frame.reformat(
            width=self._width(frame),
            format="gbrp16le",
            src_colorspace=unstated if frame.colorspace == UNSTATED_COLOUR else frame.colorspace,
            # Without a destination, PyAV before 17 uses the BT.601 matrix for every source.
            dst_colorspace="DEFAULT",
            src_color_range=frame.color_range,
            interpolation=EXACT,
        ).to_ndarray()
        black, white = _black_and_white(frame)
        pixels = (levels.astype(np.float32) - black) * (255 / (white - black))
        upright = _upright(Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)), frame)
        self._size = f"{upright.width}x{upright.height}"
        return upright

    def alpha(self, frame: Any) -> Image.Image:
        """Return the alpha of a frame as an upright grey picture of square pixels: white where it is opaque."""
        width = self._width(frame)
        if not _has_alpha(frame):
            return _upright(Image.new("L", (width, frame.height), 255), frame)
        levels = frame.reformat(width=width, format="rgba", interpolation=EXACT).to_ndarray()
        return _upright(Image.fromarray(levels[:, :, 3]), frame)

    def _width(self, frame: Any) -> int:
        """Return the width of a frame in square pixels."""
        return round(int(frame.width) * self._aspect)


@contextmanager
def open_clip(path: Path, *, alpha: bool = False) -> Iterator[Clip]:
    """Open a video file. `alpha`: decode it too.

    Raises `BadInput` like `Clip` and for another container, and errors of FFmpeg.
    """
    check_regular(path)
    try:
        file = open_media(path)
    except av.FFmpegError as error:
        if error.errno != errno.EINVAL:
            raise
        raise BadInput(f"{path.name} is in a container that is not read; give {CONTAINERS}") from error
    with file:
        yield Clip(file, path, alpha=alpha)


def open_media(path: Path) -> Any:
    """Open a file if it is one of our containers. Raises errors of FFmpeg, for another container `EINVAL`."""
    # As options of the streams too, they crash PyAV 16 where streams are found late: MPG, VOB, FLV.
    return av.open(str(path), container_options=OPENED)


def find_sound(file: Any) -> Any:
    """Return the best audio stream of an open file, or None if there is none that FFmpeg can decode."""
    stream = file.streams.best("audio")
    return stream if stream and stream.codec_context else None


def check_colours(stream: Any, name: str) -> None:
    """Raise `BadInput` for HDR, for colours that swscale cannot convert to RGB, and for an unknown codec."""
    if not _is_decodable(stream):
        raise BadInput(f"{name} has a codec that FFmpeg does not know; convert it to H.264")
    codec = stream.codec_context
    kind = CURVES.get(codec.color_trc)
    if codec.colorspace not in MATRICES:
        kind = f"colour matrix {codec.colorspace}"
    if kind:
        raise BadInput(f"{name} is in {kind}, which is not read; convert it to BT.709" + see("Colours are wrong"))


def _is_decodable(stream: Any) -> bool:
    """True if FFmpeg knows the codec of a stream."""
    return stream.codec_context is not None


def _black_and_white(frame: Any) -> tuple[int, int]:
    """Return the levels of black and white after FFmpeg's conversion of a frame to 16-bit RGB."""
    # FFmpeg treats grey as full range, and shifts bits: 1023 of 10 bits becomes 65472.
    grey = frame.format.name.startswith("gray")
    if grey and frame.color_range == LIMITED_RANGE:
        return 16 << 8, 235 << 8
    if grey or frame.format.is_rgb or frame.color_range == FULL_RANGE:
        bits = max(frame.format.components[0].bits, 8)
        return 0, (2**bits - 1) << (16 - bits)
    return 0, 255 << 8


def _upright(picture: Image.Image, frame: Any) -> Image.Image:
    """Turn the picture of a frame as it is to be shown."""
    rotation = frame.rotation
    if _is_mirrored(frame):
        picture = ImageOps.mirror(picture)
        rotation += 180
    return picture.rotate(rotation, expand=True)


def _is_mirrored(frame: Any) -> bool:
    """True if the display matrix mirrors a frame, which `rotation` does not tell."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return False
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].astype(float)
    return bool(a * d < b * c)


def _has_alpha(frame: Any) -> bool:
    """True if the format of a frame has alpha."""
    return any(part.is_alpha for part in frame.format.components)


def _alpha_decoder(codec: Any) -> Any:
    """Return a decoder that reads the alpha of WebM, or None if the usual one does: FFmpeg's own leaves it out."""
    if codec.name not in ALPHA_DECODERS:
        return None
    decoder = av.CodecContext.create(ALPHA_DECODERS[codec.name], "r")
    decoder.extradata = codec.extradata
    return decoder


def _shape(frame: Any) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


def _deinterlacer(frame: Any) -> Graph:
    graph = Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
    )
    graph.link_nodes(source, graph.add("bwdif", "mode=send_frame:deint=interlaced"), graph.add("buffersink"))
    graph.configure()
    return graph


def pushed(graph: Graph, frame: Any) -> Iterator[Any]:
    """Push a frame into a filter graph, None to flush it, and yield the frames that come out."""
    graph.push(frame)
    with suppress(av.BlockingIOError, av.EOFError):
        while True:
            yield graph.pull()
