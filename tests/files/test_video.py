"""The mp4 writer: what is written is what comes out of any player, however the frames are cut into blocks."""

from fractions import Fraction
from pathlib import Path
from random import Random

import av
import pytest
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from sdvg_core.errors import BadInput
from sdvg_core.files.video import Mp4Writer, check_video_size, to_yuv420, write_mp4, x264_options


def moving_stripes(frames: int, height: int = 32, width: int = 48) -> Tensor:
    ramp = torch.arange(width).expand(frames, 3, height, width) / width
    phase = torch.arange(frames).view(-1, 1, 1, 1) / 10 + torch.arange(3).view(1, 3, 1, 1) / 3
    return 0.5 + 0.5 * torch.sin(6.28 * (ramp + phase))


def decoded(path: Path) -> Tensor:
    """The planes as they were encoded, `(frames, 3/2 h, w)`."""
    with av.open(str(path)) as file:
        return torch.stack([torch.from_numpy(frame.to_ndarray()) for frame in file.decode(video=0)])


def planes(frame: Tensor) -> Tensor:
    """The planes that the encoder is given for an image `c h w`, `(3/2 h, w)`."""
    return torch.from_numpy(to_yuv420(frame, VideoReformatter()).to_ndarray())


def planes_of(frame: Tensor) -> Tensor:
    """Those of Rec. ITU-R BT.709, items 3.2 to 3.5: limited range, chroma the mean of 2x2 pixels, not rounded."""
    red, green, blue = frame
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    chroma = torch.stack([(blue - luma) / 1.8556, (red - luma) / 1.5748])[None]
    found = [16 + 219 * luma, *(128 + 224 * torch.nn.functional.avg_pool2d(chroma, 2)[0])]
    return torch.cat([plane.flatten() for plane in found]).view(-1, frame.shape[-1])


def test_what_is_decoded_is_what_was_written_but_for_compression(tmp_path):
    frames = moving_stripes(13)
    write_mp4(tmp_path / "video.mp4", frames, 16)
    seen, meant = decoded(tmp_path / "video.mp4"), torch.stack([planes(frame) for frame in frames])
    assert seen.shape == (13, 48, 48)
    assert (seen.float() - meant.float()).abs().mean() < 2


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
def test_colours_are_those_of_the_standard_the_file_names(tmp_path, colour):
    """Catches BT.601's matrix under BT.709's label: pure red is then brighter by 18."""
    frames = torch.tensor(colour).view(1, 3, 1, 1).expand(3, 3, 32, 32)
    meant = torch.cat([torch.full((n,), v) for n, v in zip((1024, 256, 256), BARS[colour], strict=True)])
    assert torch.equal(planes(frames[0]).flatten(), meant)
    write_mp4(tmp_path / "video.mp4", frames, 16)
    assert (decoded(tmp_path / "video.mp4").flatten(1).int() - meant).abs().max() <= 1


def test_the_file_says_h264_yuv420p_bt709_and_the_frame_rate(tmp_path):
    write_mp4(tmp_path / "video.mp4", moving_stripes(5), 12.5)
    with av.open(str(tmp_path / "video.mp4")) as file:
        stream = file.streams.video[0]
        codec = stream.codec_context
        assert (codec.name, codec.pix_fmt, stream.average_rate) == ("h264", "yuv420p", Fraction(25, 2))
        assert (codec.colorspace, codec.color_primaries, codec.color_trc, codec.color_range) == (1, 1, 1, 1)
        assert stream.frames == 5


def moving_disc(frames: int, size: int) -> Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    steps = torch.arange(frames).view(-1, 1, 1)
    disc = (x - 0.5) ** 2 + (y - 0.5 - steps / 100) ** 2 < 0.05
    return torch.stack([(x + steps / 40) % 1, (1.3 * y + steps / 60) % 1, disc.float()], dim=1)


def test_the_same_frames_are_the_same_bytes_whatever_lay_in_memory_before(tmp_path):
    """x264's AVX-512 code reads memory that nobody wrote; it is left out, and all other code agrees."""
    frames, draw, seen = moving_disc(105, 64), Random(0), set()
    for _ in range(3):
        junk = [bytearray(b"\xa5" * draw.randrange(1, 400_000)) for _ in range(draw.randrange(20))]
        del junk
        write_mp4(tmp_path / "video.mp4", frames, 16)
        seen.add((tmp_path / "video.mp4").read_bytes())
    assert len(seen) == 1


@pytest.mark.parametrize(("capability", "left"), [("AVX512", "asm=avx2"), ("AVX2", "asm=avx2"), ("DEFAULT", None)])
def test_x264_gets_no_newer_code_than_avx2_and_none_that_the_processor_lacks(monkeypatch, capability, left):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert x264_options().get("x264-params") == left


def test_how_the_frames_are_cut_into_blocks_does_not_show(tmp_path):
    """Catches a flush between blocks, which costs a key frame each, and a version stamp in the file."""
    frames = moving_stripes(21, 64, 96)
    write_mp4(tmp_path / "once.mp4", frames, 16)
    write_mp4(tmp_path / "again.part", frames[None], 16)
    write_mp4(tmp_path / "blocks.mp4", (part for part in frames.split([9, 12])), 16)
    once = decoded(tmp_path / "once.mp4")
    for name in ("again.part", "blocks.mp4"):
        assert once.shape == decoded(tmp_path / name).shape
        assert float((once.float() - decoded(tmp_path / name).float()).abs().mean()) < 0.1
        with av.open(str(tmp_path / name)) as file:
            assert sum(packet.is_keyframe for packet in file.demux(video=0)) == 1
        assert b"Lavf" not in (tmp_path / name).read_bytes()


def test_every_pixel_is_within_a_rounding_of_the_standard_and_clamped():
    """By half a step, in 8 bits. Catches cutting off, which darkens the video, and chroma of one pixel of four."""
    noise = torch.randint(256, (3, 96, 160), generator=torch.Generator().manual_seed(0)) / 255
    difference = planes(noise) - planes_of(noise)
    assert difference.abs().max() < 0.52
    assert difference[:96].mean().abs() < 0.02
    assert difference[96:].mean().abs() < 0.02
    assert torch.equal(planes(3 * noise - 1), planes((3 * noise - 1).clamp(0, 1)))


@pytest.mark.parametrize("height, width", [(31, 48), (32, 47), (16386, 32)])
def test_odd_sizes_and_huge_ones_are_refused(height, width):
    with pytest.raises(BadInput, match=f"cannot take {width}x{height}; choose even sizes"):
        check_video_size(width, height)


@pytest.mark.parametrize("fps", [-1, float("nan")])
def test_no_rate_is_no_video(tmp_path, fps):
    with pytest.raises(BadInput, match=r"give 0\.001 to 1000"):
        Mp4Writer(tmp_path / "video.mp4", fps)
