"""Add the sound of a clip to an mp4 when the video is whole, so that a damaged sound cannot cost the video.

Packets are copied. What an mp4 does not hold is encoded: without loss if it is PCM of 8 bits, else as AAC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.filter import Graph

from .clip import find_sound, open_media, pushed
from .video import MUXER_OPTIONS

COPIED = {
    *("aac", "mp3", "mp3float", "opus", "flac", "alac", "ac3", "eac3"),
    *(f"pcm_{kind}{order}" for kind in ("s16", "s24", "s32", "f32", "f64") for order in ("le", "be")),
}
"""Codecs, by FFmpeg's names of their decoders, that an mp4 can hold and players read there."""
WIDENED = {"pcm_u8": "pcm_s16le", "pcm_s8": "pcm_s16le"}
"""Codecs that an mp4 lacks, each with one that it has, of the same samples."""
LOSSY = "aac"
AAC_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
USUAL_RATE = 48000


@dataclass(frozen=True, slots=True)
class Sound:
    """The sound of a clip. `path`: the clip's file. `start`: time of its first frame in seconds."""

    path: Path
    codec: str
    start: Fraction

    @property
    def note(self) -> str:
        """Say that the sound loses something; empty if it loses nothing."""
        if self.codec in COPIED or self.codec in WIDENED:
            return ""
        return f"The sound of {self.path.name} is encoded as AAC: an mp4 does not hold {self.codec}."


def add_sound(path: Path, sound: Sound) -> str:
    """Add a sound to an mp4, from the clip's first frame on and no longer than the video.

    What an mp4 refuses to hold as it is, such as MP3 of 8 kHz, is encoded. Return a note if that was so, or if the
    sound cannot be read, with the mp4 unchanged; else an empty string.
    """
    joined = path.with_name(f"{path.name}.sound")
    ways = (True, False) if sound.codec in COPIED else (False,)
    for copied in ways:
        try:
            with av.open(str(path)) as video, open_media(sound.path) as clip:
                _join(video, clip, sound, joined, copied=copied)
        except Exception:  # a damaged file can fail in any way
            joined.unlink(missing_ok=True)
            continue
        joined.replace(path)
        if copied == ways[0]:
            return ""
        return f"The sound of {sound.path.name} is encoded as AAC: an mp4 does not hold it as it is."
    return f"The sound of {sound.path.name} is left out: it cannot be read."


def _join(video: Any, clip: Any, sound: Sound, joined: Path, *, copied: bool) -> None:
    """Mux the video stream of one open file and the sound of another, `copied` or encoded, into a third."""
    pictures = video.streams.video[0]
    heard = find_sound(clip)
    end = sound.start + pictures.duration * pictures.time_base
    with av.open(str(joined), "w", format="mp4", options=MUXER_OPTIONS) as file:
        file.metadata.update({key: text for key, text in video.metadata.items() if key == "comment"})
        shown_track = file.add_stream_from_template(pictures)
        heard_track = _copied_track(file, heard) if copied else _encoded_track(file, heard, sound.codec)
        for packet in video.demux(pictures):
            if packet.dts is not None:
                packet.stream = shown_track
                file.mux(packet)
        parts = _copied if copied else _encoded
        for packet in parts(clip, heard, heard_track, sound.start, end):
            packet.stream = heard_track
            file.mux(packet)


def _copied_track(file: Any, heard: Any) -> Any:
    """Add a track for packets that are copied."""
    track = file.add_stream_from_template(heard)
    # Matroska and AVI do not name the layout of PCM, and without a name an mp4 refuses it.
    track.codec_context.layout = _layout(heard)
    return track


def _encoded_track(file: Any, heard: Any, codec: str) -> Any:
    """Add a track for sound that is encoded, by the codec that loses least."""
    encoder = WIDENED.get(codec, LOSSY)
    rate = heard.rate if encoder != LOSSY or heard.rate in AAC_RATES else USUAL_RATE
    return file.add_stream(encoder, rate=rate, layout=_layout(heard))


def _layout(heard: Any) -> str:
    """Return the name of the channels' layout, the usual one for their number if the file names none."""
    layout = heard.codec_context.layout
    unnamed = any(channel.name == "NONE" for channel in layout.channels)
    return f"{layout.nb_channels}c" if unnamed else str(layout.name)


def _copied(clip: Any, heard: Any, track: Any, start: Fraction, end: Fraction) -> Iterator[Any]:
    """Yield the packets of a sound that begin before `end`, in time from `start` on."""
    for packet in clip.demux(heard):
        if packet.dts is not None and packet.pts * packet.time_base < end:
            packet.pts -= round(start / packet.time_base)
            packet.dts -= round(start / packet.time_base)
            yield packet


def _encoded(clip: Any, heard: Any, track: Any, start: Fraction, end: Fraction) -> Iterator[Any]:
    """Yield a sound from `start` to `end`, to the sample, encoded by `track`."""
    trim = _trimmer(heard, end - start)
    after = Fraction(0)
    for frame in clip.decode(heard):
        begin = after if frame.pts is None else frame.pts * frame.time_base
        if begin >= end:
            break
        after = begin + Fraction(frame.samples, frame.sample_rate)
        frame.pts = round((begin - start) * frame.sample_rate)
        frame.time_base = Fraction(1, frame.sample_rate)
        for part in pushed(trim, frame):
            yield from track.encode(part)
    for part in pushed(trim, None):
        yield from track.encode(part)
    yield from track.encode()


def _trimmer(heard: Any, seconds: Fraction) -> Graph:
    """Return a filter that keeps the samples of a sound from time 0 to `seconds`."""
    graph = Graph()
    source = graph.add_abuffer(
        sample_rate=heard.rate,
        format=heard.codec_context.format,
        layout=_layout(heard),
        time_base=Fraction(1, heard.rate),
    )
    trim = graph.add("atrim", f"start_pts=0:end_pts={round(seconds * heard.rate)}")
    graph.link_nodes(source, trim, graph.add("abuffersink"))
    graph.configure()
    return graph
