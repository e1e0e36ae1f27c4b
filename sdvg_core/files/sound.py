"""Add the sound of clips to an mp4 when the video is whole, so that a damaged sound cannot cost the video.

Packets of one sound are copied. What an mp4 does not hold is encoded: without loss if it is PCM of 8 bits, else as
AAC. Several sounds, or parts of one, make one track: of their PCM if they agree in it, else AAC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
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
USUAL_LAYOUT = "stereo"


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


@dataclass(frozen=True, slots=True)
class PlacedSound:
    """A part of a sound, from its `start` on, in a video. `at`, `seconds`: begin there and length, in seconds."""

    sound: Sound
    at: Fraction
    seconds: Fraction

    def joined(self, part: PlacedSound) -> list[PlacedSound]:
        """Return this part and the next one, as one if the sound goes on."""
        goes_on = replace(self.sound, start=self.sound.start + self.seconds)
        if part.sound != goes_on or part.at != self.at + self.seconds:
            return [self, part]
        return [replace(self, seconds=self.seconds + part.seconds)]


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
                _join_one(video, clip, sound, joined, copied=copied)
        except Exception:  # a damaged file can fail in any way
            joined.unlink(missing_ok=True)
            continue
        joined.replace(path)
        if copied == ways[0]:
            return ""
        return f"The sound of {sound.path.name} is encoded as AAC: an mp4 does not hold it as it is."
    return f"The sound of {sound.path.name} is left out: it cannot be read."


def _join_one(video: Any, clip: Any, sound: Sound, joined: Path, *, copied: bool) -> None:
    """Mux the video stream of one open file and the sound of another, `copied` or encoded, into a third."""
    pictures = video.streams.video[0]
    heard = find_sound(clip)
    end = sound.start + pictures.duration * pictures.time_base
    parts = _copied if copied else _encoded
    _join(
        video,
        joined,
        lambda file: _copied_track(file, heard) if copied else _encoded_track(file, heard, sound.codec),
        lambda track: parts(clip, heard, track, sound.start, end),
    )


def _join(
    video: Any, joined: Path, add_track: Callable[[Any], Any], packets: Callable[[Any], Iterator[Any]]
) -> None:
    """Mux the video stream of an open file and a sound into another. `packets`: of the track that is added."""
    pictures = video.streams.video[0]
    with av.open(str(joined), "w", format="mp4", options=MUXER_OPTIONS) as file:
        file.metadata.update({key: text for key, text in video.metadata.items() if key == "comment"})
        shown_track = file.add_stream_from_template(pictures)
        heard_track = add_track(file)
        for packet in video.demux(pictures):
            if packet.dts is not None:
                packet.stream = shown_track
                file.mux(packet)
        for packet in packets(heard_track):
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
    return _graph(heard, "atrim", f"start_pts=0:end_pts={round(seconds * heard.rate)}")


def _graph(heard: Any, name: str, options: str) -> Graph:
    """Return a filter of a sound."""
    graph = Graph()
    source = graph.add_abuffer(
        sample_rate=heard.rate,
        format=heard.codec_context.format,
        layout=_layout(heard),
        time_base=Fraction(1, heard.rate),
    )
    graph.link_nodes(source, graph.add(name, options), graph.add("abuffersink"))
    graph.configure()
    return graph


# --- several sounds, as one track

CHUNK = 1 << 16
"""Samples that are encoded at a time."""
LEAD_IN = Fraction(1, 10)
"""Seconds of a sound before its part, so that its filters have begun."""
NAMED_LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}


@dataclass(frozen=True, slots=True)
class Track:
    """A track of several sounds. `codec`: its encoder. `layout`: of its channels."""

    codec: str
    rate: int
    layout: str


def add_sounds(path: Path, parts: Sequence[PlacedSound]) -> tuple[str, ...]:
    """Add sounds to an mp4 at their times, to the sample, with silence between them.

    Return notes on sounds that are encoded as AAC, and on those that cannot be read.
    """
    tracks: dict[Path, Track] = {}
    damaged: dict[Path, None] = {}
    for file in dict.fromkeys(part.sound.path for part in parts):
        try:
            tracks[file] = _track_of(file)
        except Exception:  # a damaged file can fail in any way
            damaged[file] = None
    waves: list[tuple[PlacedSound, Any]] = []
    track = _common_track(list(tracks.values())) if tracks else Track(LOSSY, USUAL_RATE, USUAL_LAYOUT)
    for part in parts:
        try:
            waves += [(part, _wave(part, track))] if part.sound.path in tracks else []
        except Exception:
            damaged[part.sound.path] = None
    notes = [f"The sound of {file.name} is left out: it cannot be read." for file in damaged]
    if not waves:
        return tuple(notes)
    names = ", ".join(dict.fromkeys(part.sound.path.name for part, _ in waves))
    joined = path.with_name(f"{path.name}.sound")
    try:
        with av.open(str(path)) as video:
            _join(
                video,
                joined,
                lambda file: file.add_stream(track.codec, rate=track.rate, layout=track.layout),
                lambda added: _laid(waves, track, added),
            )
    except Exception:  # as of a damaged file: the video is whole without it
        joined.unlink(missing_ok=True)
        return (*notes, f"The sound of {names} is left out: it cannot be encoded as {track.codec}.")
    joined.replace(path)
    if track.codec == LOSSY:
        kind = f"AAC ({track.layout}, {track.rate} Hz)"
        notes.append(f"The sound of {names} is encoded as {kind}, to be at its time in the film.")
    return tuple(notes)


def _track_of(path: Path) -> Track:
    """Return the track that loses nothing of a sound, or least."""
    with open_media(path) as clip:
        heard = find_sound(clip)
        codec = WIDENED.get(heard.codec_context.name, heard.codec_context.name)
        layout = _layout(heard)
        usual = NAMED_LAYOUTS.get(heard.codec_context.layout.nb_channels, USUAL_LAYOUT)
        is_pcm = codec in COPIED and codec.startswith("pcm_")
        return Track(codec if is_pcm else LOSSY, heard.rate, usual if layout.endswith("c") else layout)


def _common_track(tracks: Sequence[Track]) -> Track:
    """Return the track for several sounds."""
    if len(set(tracks)) == 1 and tracks[0].codec != LOSSY:
        return tracks[0]
    rates = {track.rate for track in tracks}
    layouts = {track.layout for track in tracks}
    rate = tracks[0].rate if len(rates) == 1 and tracks[0].rate in AAC_RATES else USUAL_RATE
    return Track(LOSSY, rate, tracks[0].layout if len(layouts) == 1 else USUAL_LAYOUT)


def _wave(part: PlacedSound, track: Track) -> Any:
    """Return the samples of a part as `channels samples`, with silence where the sound has none.

    A sound of one channel goes to all.
    """
    form = _planar(track)
    samples = round((part.at + part.seconds) * track.rate) - round(part.at * track.rate)
    channels = av.AudioLayout(track.layout).nb_channels
    wave = np.zeros((channels, samples), av.AudioFrame(form, track.layout, 1).to_ndarray().dtype)
    with open_media(part.sound.path) as clip:
        heard = find_sound(clip)
        graph = _converter(heard, track, form)
        for frame in chain(_heard_frames(clip, heard, part), [None]):
            for changed in pushed(graph, frame):
                first = round(changed.pts * changed.time_base * track.rate)
                levels = changed.to_ndarray()[:, max(-first, 0) :]
                begin = max(first, 0)
                levels = levels[:, : max(samples - begin, 0)]
                wave[:, begin : begin + levels.shape[1]] = levels
    return wave


def _heard_frames(clip: Any, heard: Any, part: PlacedSound) -> Iterator[Any]:
    """Yield the frames of a sound that a part has, in time from its begin on."""
    start = part.sound.start
    after = Fraction(0)
    for frame in clip.decode(heard):
        begin = after if frame.pts is None else frame.pts * frame.time_base
        after = begin + Fraction(frame.samples, frame.sample_rate)
        if begin >= start + part.seconds:
            return
        if after > start - LEAD_IN:
            frame.pts = round((begin - start) * frame.sample_rate)
            frame.time_base = Fraction(1, frame.sample_rate)
            yield frame


def _converter(heard: Any, track: Track, form: str) -> Graph:
    """Return a filter that brings a sound to a track's rate and channels; a single channel stays one."""
    # FFmpeg would spread one channel over two at 0.7 of its loudness.
    layout = "mono" if heard.codec_context.layout.nb_channels == 1 else track.layout
    kept = f"sample_fmts={form}:sample_rates={track.rate}:channel_layouts={layout}"
    return _graph(heard, "aformat", kept)


def _planar(track: Track) -> str:
    """Return the format of a track's samples, channel by channel."""
    formats = av.codec.Codec(track.codec, "w").audio_formats
    assert formats
    return str(formats[0].planar.name)


def _laid(waves: Sequence[tuple[PlacedSound, Any]], track: Track, added: Any) -> Iterator[Any]:
    """Yield the packets of samples at their times, with silence between them. `added`: the track in the mp4."""
    done = 0
    for part, wave in waves:
        begin = round(part.at * track.rate)
        silence = np.zeros((len(wave), begin - done), wave.dtype)
        for samples in (silence, wave):
            for first in range(0, samples.shape[1], CHUNK):
                chunk = np.ascontiguousarray(samples[:, first : first + CHUNK])
                frame = av.AudioFrame.from_ndarray(chunk, format=_planar(track), layout=track.layout)
                frame.sample_rate = track.rate
                frame.pts = done
                frame.time_base = Fraction(1, track.rate)
                done += chunk.shape[1]
                yield from added.encode(frame)
    yield from added.encode()
