"""Clips with sound, and what is heard in a file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np


def greys(count: int, size: int = 32) -> list[Any]:
    """Return frames of which number n is grey of 10 n."""
    levels = [np.full((size, size, 3), 10 * number % 250, np.uint8) for number in range(count)]
    return [av.VideoFrame.from_ndarray(level, format="rgb24").reformat(format="yuv420p") for level in levels]


CHANNELS = {"mono": 1, "stereo": 2, "5.1": 6}
SAMPLES = 1024


def tone(
    path: Path, codec: str = "aac", frames: int = 40, first: float = 0, *, layout: str = "mono", rate: int = 48000
) -> Path:
    """Write a clip of 16 frames a second with a tone that rises and grows; both begin `first` seconds late.

    Channel n is 1 / n as loud as the first.
    """
    encoder = {".webm": "libvpx-vp9", ".wmv": "wmv2", ".mpg": "mpeg2video"}.get(path.suffix, "libx264")
    pace = 25 if path.suffix == ".mpg" else 16
    with av.open(str(path), "w") as file:
        video: Any = file.add_stream(encoder, rate=pace)
        video.width = 32
        video.height = 32
        video.pix_fmt = "yuv420p"
        sound: Any = file.add_stream(codec, rate=rate, layout=layout, options={"strict": "experimental"})
        sound.codec_context.bit_rate = 128_000
        packets = []
        for number, frame in enumerate(greys(frames * pace // 16)):
            frame.pts = round(pace * first) + number
            frame.time_base = Fraction(1, pace)
            packets += video.encode(frame)
        packets += video.encode()
        samples = np.arange(rate * frames // 16)
        seconds = samples / rate
        wave = np.sin(2 * np.pi * (200 + 400 * seconds) * seconds) * samples / len(samples)
        levels = (wave[:, None] * 30000 / np.arange(1, CHANNELS[layout] + 1)).astype(np.int16)
        for begin in range(0, len(levels), SAMPLES):
            packed = np.ascontiguousarray(levels[begin : begin + SAMPLES]).reshape(1, -1)
            part = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
            part.sample_rate = rate
            part.pts = round(rate * first) + begin
            part.time_base = Fraction(1, rate)
            packets += sound.encode(part)
        packets += sound.encode()
        file.mux(sorted(packets, key=lambda packet: packet.dts * packet.time_base))
    return path


def heard(path: Path) -> np.ndarray:
    """Return a file's samples from its first frame on; none of these begins later."""
    with av.open(str(path)) as file:
        first = next(frame.time for frame in file.decode(video=0))
    with av.open(str(path)) as file:
        parts = list(file.decode(audio=0))
    samples = np.concatenate([part.to_ndarray().reshape(1, -1) for part in parts], axis=1)[0]
    shown: np.ndarray = samples[round((first - parts[0].time) * 48000) :]
    return shown


def channels(path: Path, rate: int | None = None) -> np.ndarray:
    """Return a file's samples from its first frame on, in 64 bits, a row for each channel.

    `rate`: to which they are resampled; None for the file's own.
    """
    with av.open(str(path)) as file:
        first = next(frame.time for frame in file.decode(video=0))
    with av.open(str(path)) as file:
        stream = file.streams.audio[0]
        layout = stream.codec_context.layout
        if layout.channels[0].name == "NONE":
            layout = f"{layout.nb_channels}c"
        resampler = av.AudioResampler(format="dblp", layout=layout, rate=rate or stream.rate)
        frames = list(file.decode(stream))
        late = first - frames[0].time
        parts = [part for frame in [*frames, None] for part in resampler.resample(frame)]
    cut = round(late * parts[0].sample_rate)
    silence = np.zeros((parts[0].layout.nb_channels, max(-cut, 0)))
    return np.concatenate([silence, *(part.to_ndarray() for part in parts)], axis=1)[:, max(cut, 0) :]
