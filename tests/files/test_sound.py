"""The sound of a clip: copied as it is where an mp4 holds it, else encoded, in time; what is lost is said."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from sdvg_core.files.footage import read_footage
from sdvg_core.files.sound import PlacedSound, Sound, add_sound, add_sounds
from sdvg_core.files.video import Mp4Writer, write_mp4
from tests.support.sounds import channels, heard, tone
from tests.support.thinned import every_pair


def joined(clip: Path, frames: int = 24) -> tuple[Sound, Path]:
    """Write a video with the sound of a clip."""
    sound = read_footage(clip, 32, 32).sound
    assert sound is not None
    video = clip.with_name("made.mp4")
    write_mp4(video, torch.zeros(frames, 3, 32, 32), fps=16)
    assert add_sound(video, sound) == ""
    return sound, video


@pytest.mark.parametrize(
    ("codec", "container", "first", "frames"),
    [
        ("aac", "mp4", 0, 24),
        ("aac", "mp4", 0, 64),
        ("aac", "mkv", 1.5, 64),
        ("aac", "ts", 1.5, 24),
        ("libopus", "webm", 0, 64),
        ("pcm_s16le", "mov", 0, 24),
    ],
)
def test_sound_of_a_clip_is_copied_in_time(codec, container, first, frames, tmp_path):
    """Sample for sample, by every container; it is cut, or silence follows.

    Catches: another encoding, a shift, sound after the last frame.
    """
    clip = tone(tmp_path / f"clip.{container}", codec, first=first)
    sound = read_footage(clip, 32, 32).sound
    with Mp4Writer(tmp_path / "made.mp4", 16, "a comment") as video:
        video.add(torch.rand(frames, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    silent = read_footage(tmp_path / "made.mp4", 32, 32)
    assert add_sound(tmp_path / "made.mp4", sound) == ""
    original = heard(clip)
    copy = heard(tmp_path / "made.mp4")
    # Matroska's time stamps are milliseconds, and a decoder needs some packets to agree with itself.
    middle = copy[4800:52800]
    shifts = [shift for shift in range(-48, 49) if np.array_equal(middle, original[4800 + shift : 52800 + shift])]
    assert len(shifts) == 1
    assert len(copy) / 48000 == pytest.approx(min(frames, 40) / 16, abs=0.045)
    assert torch.equal(read_footage(tmp_path / "made.mp4", 32, 32).pixels, silent.pixels)
    with av.open(str(tmp_path / "made.mp4")) as file:
        assert file.metadata["comment"] == "a comment"
        assert file.streams.video[0].codec_context.colorspace == 1
        assert file.streams.video[0].average_rate == 16


def test_damaged_sound_is_left_out(tmp_path):
    """FLAC that ends within its header. Catches: a finished video that is lost for its sound; a loss unsaid."""
    clip = tone(tmp_path / "clip.mkv", "flac")
    sound = read_footage(clip, 32, 32).sound
    write_mp4(tmp_path / "made.mp4", torch.zeros(24, 3, 32, 32), fps=16)
    before = (tmp_path / "made.mp4").read_bytes()
    clip.write_bytes(clip.read_bytes()[:200])
    note = add_sound(tmp_path / "made.mp4", sound)
    assert "clip.mkv is left out" in note
    assert (tmp_path / "made.mp4").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mkv", "made.mp4"]


def test_clip_without_sound_gives_none(tmp_path):
    write_mp4(tmp_path / "mute.mp4", torch.zeros(2, 3, 32, 32), fps=16)
    assert read_footage(tmp_path / "mute.mp4", 32, 32).sound is None


PCM = ("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_u8")


@every_pair("codec,container,layout", PCM, ("mkv", "avi", "mov"), ("mono", "stereo", "5.1"))
def test_pcm_reaches_the_video_sample_for_sample(codec, container, layout, tmp_path):
    """Catches: PCM left out where its file names no layout; channels exchanged; bits lost; a note of a loss."""
    clip = tone(tmp_path / f"clip.{container}", codec, layout=layout)
    sound, video = joined(clip)
    original = channels(clip)
    copy = channels(video)
    assert len(copy) == len(original) == {"mono": 1, "stereo": 2, "5.1": 6}[layout]
    assert len(copy[0]) == pytest.approx(72000, abs=1024)
    assert np.array_equal(copy, original[:, : len(copy[0])])
    assert sound.note == ""
    with av.open(str(video)) as file:
        assert file.streams.audio[0].codec_context.name == ("pcm_s16le" if codec == "pcm_u8" else codec)


@pytest.mark.parametrize("rate", [8000, 11025])
def test_mp3_that_an_mp4_refuses_is_encoded(rate, tmp_path):
    """Catches: a sound that is copied elsewhere, left out as one that cannot be read."""
    clip = tone(tmp_path / "clip.mkv", "libmp3lame", layout="mono", rate=rate)
    sound = read_footage(clip, 32, 32).sound
    video = tmp_path / "made.mp4"
    write_mp4(video, torch.zeros(24, 3, 32, 32), fps=16)
    assert "encoded as AAC" in add_sound(video, sound)
    with av.open(str(video)) as file:
        assert file.streams.audio[0].codec_context.name == "aac"


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("avi", "pcm_mulaw", 48000),
        ("mov", "pcm_alaw", 8000),
        ("avi", "pcm_mulaw", 11111),
        ("avi", "adpcm_ima_wav", 44100),
        ("mkv", "vorbis", 48000),
        ("wmv", "wmav2", 44100),
        ("mpg", "mp2", 48000),
    ],
)
def test_other_sound_is_encoded_in_time(container, codec, rate, tmp_path):
    """Catches: silence; another rate; a shift by the encoder's delay; half of the channels; a loss unsaid."""
    clip = tone(tmp_path / f"clip.{container}", codec, layout="stereo", rate=rate)
    sound, video = joined(clip, 64)
    assert "is encoded as AAC" in sound.note
    assert codec in sound.note
    with av.open(str(video)) as file:
        assert file.streams.audio[0].codec_context.name == "aac"
        assert file.streams.audio[0].rate == (48000 if rate == 11111 else rate), "AAC has no rate of 11111"
    original = channels(clip, rate=48000)
    copy = channels(video, rate=48000)
    assert len(copy[0]) == pytest.approx(len(original[0]), abs=48000 * 1024 / rate), "whole packets of AAC"
    delay = min(range(-300, 301), key=lambda shift: error(copy, original, shift))
    assert abs(delay) <= 48, "a millisecond, as time stamps may be rounded"
    assert error(copy, original, delay) < 0.1


def error(copy: np.ndarray, original: np.ndarray, shift: int) -> float:
    """Return the difference of every seventh sample in the middle of two sounds, as a share of the second.

    `shift`: of the second, in samples.
    """
    middle = original[:, 12000 + shift : 60000 + shift : 7]
    return float(np.abs(copy[:, 12000:60000:7] - middle).mean() / np.abs(middle).mean())


def test_parts_that_begin_between_samples_meet(tmp_path):
    """At 44,100 a second, a frame has 2756.25. Catches: lengths rounded each by itself, which loses the sound."""
    clip = tone(tmp_path / "clip.avi", "pcm_s16le", rate=44100)
    sound = read_footage(clip, 32, 32).sound
    video = tmp_path / "made.mp4"
    write_mp4(video, torch.zeros(19, 3, 32, 32), fps=16)
    begins = [Fraction(frames, 16) for frames in (0, 3, 9, 19)]
    parts = [PlacedSound(replace(sound, start=sound.start + at), at, end - at) for at, end in pairwise(begins)]
    assert add_sounds(video, parts) == ()
    copy = channels(video)[0]
    assert len(copy) == round(19 / 16 * 44100)
    assert np.array_equal(copy, channels(clip)[0][: len(copy)])
