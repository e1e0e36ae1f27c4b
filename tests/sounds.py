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


def tone(path: Path, codec: str = "aac", frames: int = 40, first: float = 0) -> Path:
    """Write a clip of 16 frames a second with a tone that grows; both begin `first` seconds late."""
    with av.open(str(path), "w") as file:
        video: Any = file.add_stream("libx264" if path.suffix != ".webm" else "libvpx-vp9", rate=16)
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        sound: Any = file.add_stream(codec, rate=48000, layout="mono")
        for number, frame in enumerate(greys(frames)):
            frame.pts, frame.time_base = round(16 * first) + number, Fraction(1, 16)
            file.mux(video.encode(frame))
        file.mux(video.encode())
        samples = np.arange(48000 * frames // 16)
        wave = np.sin(samples * 2 * np.pi * 440 / 48000) * samples / len(samples)
        part = av.AudioFrame.from_ndarray((wave * 30000).astype(np.int16)[None], format="s16", layout="mono")
        part.sample_rate, part.pts, part.time_base = 48000, round(48000 * first), Fraction(1, 48000)
        file.mux(sound.encode(part))
        file.mux(sound.encode())
    return path


def heard(path: Path) -> np.ndarray:
    """Return a file's samples from its first frame on; none of these begins later."""
    with av.open(str(path)) as file:
        first = next(frame.time for frame in file.decode(video=0))
    with av.open(str(path)) as file:
        parts = list(file.decode(audio=0))
    samples = np.concatenate([part.to_ndarray().reshape(1, -1) for part in parts], axis=1)[0]
    return samples[round((first - parts[0].time) * 48000) :]
