"""The mp4 writer: what is written is what comes out of any player, however the frames are cut into blocks."""

import time
from fractions import Fraction
from pathlib import Path
from random import Random
from threading import Event, Thread, Timer
from typing import Any

import av
import pytest
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from sdvg_core.errors import BadInput
from sdvg_core.files.video import Mp4Writer, check_video_size, to_rgb, to_yuv420, write_mp4, x264_options


def moving_stripes(frames: int, height: int = 32, width: int = 48) -> Tensor:
    ramp = torch.arange(width).expand(frames, 3, height, width) / width
    phase = torch.arange(frames).view(-1, 1, 1, 1) / 10 + torch.arange(3).view(1, 3, 1, 1) / 3
    return 0.5 + 0.5 * torch.sin(6.28 * (ramp + phase))


def decode(path: Path) -> Tensor:
    """Return the planes as they were encoded, `(frames, 3/2 h, w)`."""
    with av.open(str(path)) as file:
        return torch.stack([torch.from_numpy(frame.to_ndarray()) for frame in file.decode(video=0)])


def planes(frame: Tensor) -> Tensor:
    """Return the planes that the encoder is given for an image `c h w`, `(3/2 h, w)`."""
    return torch.from_numpy(to_yuv420(to_rgb(frame[None])[0], VideoReformatter()).to_ndarray())


def planes_of(frame: Tensor) -> Tensor:
    """Return those of Rec. ITU-R BT.709, items 3.2 to 3.5: limited range, means of 2x2 for chroma, not rounded."""
    red, green, blue = frame
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    chroma = torch.stack([(blue - luma) / 1.8556, (red - luma) / 1.5748])[None]
    limited = [16 + 219 * luma, *(128 + 224 * torch.nn.functional.avg_pool2d(chroma, 2)[0])]
    return torch.cat([plane.flatten() for plane in limited]).view(-1, frame.shape[-1])


def test_decoded_planes_are_those_written(tmp_path):
    frames = moving_stripes(13)
    write_mp4(tmp_path / "video.mp4", frames, 16)
    """But for compression."""
    decoded = decode(tmp_path / "video.mp4")
    expected = torch.stack([planes(frame) for frame in frames])
    assert decoded.shape == (13, 48, 48)
    assert (decoded.float() - expected.float()).abs().mean() < 2


# Y, Cb and Cr of the colour bars at 100 %, from Rec. ITU-R BT.709's 8-bit quantisation.
BARS = {
    (1, 1, 1): (235, 128, 128),
    (1, 1, 0): (219, 16, 138),
    (0, 1, 1): (188, 154, 16),
    (0, 1, 0): (173, 42, 26),
    (1, 0, 1): (78, 214, 230),
    (1, 0, 0): (63, 102, 240),
    (0, 0, 1): (32, 240, 118),
    (0, 0, 0): (16, 128, 128),
}


@pytest.mark.parametrize("colour", BARS)
def test_colours_are_those_of_the_labelled_standard(tmp_path, colour):
    """Catches BT.601's matrix under BT.709's label: pure red is then brighter by 18."""
    frames = torch.tensor(colour).view(1, 3, 1, 1).expand(3, 3, 32, 32)
    luma, blue, red = BARS[colour]
    expected = torch.tensor([luma] * 1024 + [blue] * 256 + [red] * 256)
    assert torch.equal(planes(frames[0]).flatten(), expected)
    write_mp4(tmp_path / "video.mp4", frames, 16)
    assert (decode(tmp_path / "video.mp4").flatten(1).int() - expected).abs().max() <= 1


def test_file_states_codec_colours_and_frame_rate(tmp_path):
    write_mp4(tmp_path / "video.mp4", moving_stripes(5), 12.5)
    with av.open(str(tmp_path / "video.mp4")) as file:
        stream = file.streams.video[0]
        codec = stream.codec_context
        assert (codec.name, codec.pix_fmt, stream.average_rate) == ("h264", "yuv420p", Fraction(25, 2))
        assert (codec.colorspace, codec.color_primaries, codec.color_trc, codec.color_range) == (1, 1, 1, 1)
        assert stream.frames == 5


@pytest.mark.parametrize("fps", [0.5, 12.5, 16, 23.976, 24000 / 1001, 29.97, 59.94, 120])
def test_every_usual_rate_is_kept(fps, tmp_path):
    """Catches: a rate of television that is rounded to another fraction, so that sound runs away from it."""
    write_mp4(tmp_path / "video.mp4", moving_stripes(5), fps)
    with av.open(str(tmp_path / "video.mp4")) as file:
        assert float(file.streams.video[0].average_rate) == pytest.approx(fps, rel=1e-9)


def moving_disc(frames: int, size: int) -> Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    steps = torch.arange(frames).view(-1, 1, 1)
    disc = (x - 0.5) ** 2 + (y - 0.5 - steps / 100) ** 2 < 0.05
    return torch.stack([(x + steps / 40) % 1, (1.3 * y + steps / 60) % 1, disc.float()], dim=1)


def test_same_frames_give_the_same_bytes(tmp_path):
    """Catches: AVX-512 code of x264, which reads what lay in memory before."""
    frames = moving_disc(105, 64)
    draw = Random(0)
    contents = set()
    for _ in range(3):
        junk = [bytearray(b"\xa5" * draw.randrange(1, 400_000)) for _ in range(draw.randrange(20))]
        del junk
        write_mp4(tmp_path / "video.mp4", frames, 16)
        contents.add((tmp_path / "video.mp4").read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize(("capability", "code"), [("AVX512", "asm=avx2"), ("AVX2", "asm=avx2"), ("DEFAULT", None)])
def test_x264_uses_no_newer_code_than_avx2(monkeypatch, capability, code):
    """And none that the processor lacks."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert x264_options().get("x264-params") == code


def test_blocks_leave_no_trace_in_the_video(tmp_path):
    """Catches a flush between blocks, which costs a key frame each, and a version stamp in the file."""
    frames = moving_stripes(21, 64, 96)
    write_mp4(tmp_path / "once.mp4", frames, 16)
    write_mp4(tmp_path / "again.part", frames[None], 16)
    write_mp4(tmp_path / "blocks.mp4", (part for part in frames.split([9, 12])), 16)
    once = decode(tmp_path / "once.mp4")
    for name in ("again.part", "blocks.mp4"):
        other = decode(tmp_path / name)
        assert once.shape == other.shape
        assert float((once.float() - other.float()).abs().mean()) < 0.1
        with av.open(str(tmp_path / name)) as file:
            assert sum(packet.is_keyframe for packet in file.demux(video=0)) == 1
        assert b"Lavf" not in (tmp_path / name).read_bytes()


def test_pixels_are_within_rounding_of_the_standard():
    """By half a step, in 8 bits. Catches cutting off, which darkens the video, and chroma of one pixel of four."""
    noise = torch.randint(256, (3, 96, 160), generator=torch.Generator().manual_seed(0)) / 255
    difference = planes(noise) - planes_of(noise)
    assert difference.abs().max() < 0.52
    assert difference[:96].mean().abs() < 0.02
    assert difference[96:].mean().abs() < 0.02
    assert torch.equal(planes(3 * noise - 1), planes((3 * noise - 1).clamp(0, 1)))


@pytest.mark.parametrize("height, width", [(31, 48), (32, 47), (16386, 32)])
def test_odd_and_huge_sizes_are_refused(height, width):
    with pytest.raises(BadInput, match=f"cannot take {width}x{height}; choose even sizes"):
        check_video_size(width, height)


class SlowStream:
    """Take a frame only when free to, and note which came: an encoder."""

    def __init__(self, writer: Mp4Writer, monkeypatch) -> None:
        self.packets: list[int] = []
        self.free = Event()
        self.fault: Exception | None = None
        monkeypatch.setattr(writer, "_open", lambda height, width: None)
        writer._container = self
        writer._stream = self

    def encode(self, frame: Any = None) -> int:
        assert self.free.wait(60)
        if self.fault and frame:
            raise self.fault
        return -1 if frame is None else int(frame.to_ndarray()[0, 0])

    def mux(self, packet: int) -> None:
        self.packets.append(packet)

    def close(self) -> None:
        self.packets.append(-2)


def write_blocks(writer: Mp4Writer, count: int) -> None:
    with writer:
        for level in range(count):
            writer.add(grey(level))


def grey(level: int) -> Tensor:
    return torch.full((1, 3, 16, 16), level / 255)


def test_full_queue_makes_the_loop_wait(tmp_path, monkeypatch):
    """Catches encoding in the loop, and a queue without a bound."""
    writer = Mp4Writer(tmp_path / "video.mp4", 16)
    slow = SlowStream(writer, monkeypatch)
    writer.__enter__()
    for level in (100, 110, 120):  # one with the encoder, two that wait
        writer.add(grey(level))
    assert slow.packets == []
    waits = Thread(target=writer.add, args=(grey(130),))
    waits.start()
    waits.join(0.3)
    assert waits.is_alive(), "a full queue makes the loop wait"
    slow.free.set()
    waits.join(60)
    writer.__exit__(None, None, None)
    *levels, flush, close = slow.packets
    assert (flush, close) == (-1, -2)
    assert len(levels) == 4
    assert levels == sorted(levels)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (OSError(28, "No space left on device"), OSError, "No space left"),
        (RuntimeError("x264 gave up"), BadInput, "x264 gave up"),
    ],
)
def test_fault_of_the_encoder_ends_the_run(tmp_path, monkeypatch, capfd, fault, kind, words):
    """At the next block or at the end. Catches a thread that dies unseen, keeps the loop waiting, or prints."""
    for blocks in (1, 9):
        writer = Mp4Writer(tmp_path / "video.mp4", 16)
        slow = SlowStream(writer, monkeypatch)
        slow.fault = fault
        slow.free.set()
        with pytest.raises(kind, match=words):
            write_blocks(writer, blocks)
        assert not writer._thread.is_alive()
    assert capfd.readouterr() == ("", "")


def test_interrupted_writer_leaves_no_thread(tmp_path, monkeypatch):
    writer = Mp4Writer(tmp_path / "video.mp4", 16)
    slow = SlowStream(writer, monkeypatch)

    def interrupted() -> None:
        with writer:
            writer.add(grey(100).expand(5, -1, -1, -1))
            Timer(0.2, slow.free.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not writer._thread.is_alive()
    assert len(slow.packets) <= 2


def test_interrupt_while_opening_is_passed_on(tmp_path, monkeypatch):
    """Catches the end of a `with` that waits for a thread which was never started, and hides the interrupt."""
    opens = Mp4Writer._open

    def interrupted(writer, height, width):
        opens(writer, height, width)
        raise KeyboardInterrupt

    monkeypatch.setattr(Mp4Writer, "_open", interrupted)
    with pytest.raises(KeyboardInterrupt), Mp4Writer(tmp_path / "video.mp4", 16) as writer:
        writer.add(torch.zeros(1, 3, 32, 32))
    assert not writer._thread.is_alive()


def frames_in(path):
    """Return how many frames a player finds; none while the file has no fragment yet."""
    try:
        with av.open(str(path)) as container:
            return sum(1 for _ in container.decode(video=0))
    except (FileNotFoundError, av.error.InvalidDataError):
        return 0


def test_growing_video_can_be_played_before_its_end(tmp_path):
    """Catches: a file whose index is written at the end, which no player can follow."""
    path = tmp_path / "live.mp4"
    with Mp4Writer(path, 16.0, growing=True) as video:
        for _ in range(3):
            video.add(torch.rand(12, 3, 32, 32))
        for _ in range(6000):
            if frames_in(path) >= 12:
                break
            time.sleep(0.01)
        assert frames_in(path) >= 12
    assert frames_in(path) == 36
