"""Copy the sound of a clip into the video made from it, packet by packet, without encoding it again.

It is copied when the video is whole, not while it is encoded, so that a damaged sound cannot cost the video.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from .clip import OPENED, find_sound
from .video import MUXER_OPTIONS

CODECS = ("aac", "mp3", "mp3float", "opus", "flac", "alac", "ac3", "eac3", "pcm_s16le", "pcm_s24le")
"""Codecs that an mp4 can hold."""


@dataclass(frozen=True, slots=True)
class Sound:
    """The sound of a clip. `path`: the clip's file. `start`: time of its first frame in seconds."""

    path: Path
    codec: str
    start: Fraction


def add_sound(path: Path, sound: Sound) -> str:
    """Add a sound to an mp4, from the clip's first frame on and no longer than the video.

    Return a note if it cannot be copied, with the mp4 unchanged; else an empty string.
    """
    joined = path.with_name(f"{path.name}.sound")
    try:
        with av.open(str(path)) as video, av.open(str(sound.path), options=OPENED) as clip:
            _join(video, clip, sound.start, joined)
    except Exception:  # a damaged file can fail in any way
        joined.unlink(missing_ok=True)
        return f"The sound of {sound.path.name} is left out: it cannot be copied."
    joined.replace(path)
    return ""


def _join(video: Any, clip: Any, start: Fraction, joined: Path) -> None:
    """Mux the video stream of one open file and the sound of another into a third."""
    pictures = video.streams.video[0]
    heard = find_sound(clip)
    end = start + pictures.duration * pictures.time_base
    with av.open(str(joined), "w", format="mp4", options=MUXER_OPTIONS) as file:
        file.metadata.update({key: text for key, text in video.metadata.items() if key == "comment"})
        shown_track = file.add_stream_from_template(pictures)
        heard_track = file.add_stream_from_template(heard)
        for packet in video.demux(pictures):
            if packet.dts is not None:
                packet.stream = shown_track
                file.mux(packet)
        for packet in clip.demux(heard):
            if packet.dts is not None and packet.pts * packet.time_base < end:
                packet.pts -= round(start / packet.time_base)
                packet.dts -= round(start / packet.time_base)
                packet.stream = heard_track
                file.mux(packet)
