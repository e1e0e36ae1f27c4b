"""Clips that a film shows as they are, between its shots: their places, their frames and their sound.

No model sees more of a clip than its last frame, with which a shot may begin. They take film time, but no block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from torch import Tensor

from ..errors import BadInput, count
from ..files.footage import RATE, Footage, read_footage
from ..files.sound import PlacedSound, Sound, add_sound, add_sounds
from ..settings.request import Shot, ShownClip, VideoRequest, read_clips, read_shots

PIECE = RATE
"""Frames of a clip that are handed over at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class FilmFootage:
    """Frames of a clip that a film shows as they are, `1 f c h w` in [0, 1]. `name`: of the clip."""

    name: str
    frames: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class FilmClip:
    """A clip of a film, in its size and cut. `file`: its name. `before`: key of the shot that it is shown before.

    That is empty at the film's end. `first`: frame of the file with which it begins. `number`: that of the block it
    is shown before, from 1.
    """

    name: str
    file: str
    footage: Footage
    first: int
    before: str
    number: int

    @property
    def last_frame(self) -> Tensor:
        """The last frame that is shown, `1 1 c h w` in [0, 1]."""
        return self.footage.fill(1, first=self.footage.frames - 1)

    def pieces(self) -> Iterator[FilmFootage]:
        """Yield its frames, a second at a time, as bytes take a quarter of the memory."""
        for first in range(0, self.footage.frames, PIECE):
            frames = self.footage.fill(min(PIECE, self.footage.frames - first), first=first)
            yield FilmFootage(self.name, frames)

    def as_dict(self) -> dict[str, str | int | float]:
        """Return where it is shown, and what of it, as JSON values. `in`, `out`: seconds of the file."""
        return {
            "name": self.name,
            "file": self.file,
            "in": self.first / RATE,
            "out": (self.first + self.footage.frames) / RATE,
            "frames": self.footage.frames,
            "before_block": self.number,
        }


def check_clips(request: VideoRequest) -> None:
    """Raise `BadInput` unless each clip has a line and a file, and the first shot has one start."""
    shown = [clip.name for clip in read_clips(request.shown_clips)]
    named = [clip.name for clip in request.clips]
    if missing := [name for name in shown if name not in named]:
        fault = f"the prompt shows the clip {missing[0]}, which has no file"
        raise BadInput(f"{fault}; add --clip {missing[0][1:]}=FILE, or leave its line out")
    if unused := [name for name in named if name not in shown]:
        fault = f"no line of the prompt shows the clip {unused[0]}"
        raise BadInput(f"{fault}; write '4 clip {unused[0]}:' to show it before block 4, or leave it out")
    origin = read_shots(request.shots)[0].origin
    starts = ("continue_from", "start_image", "restyle")
    if origin and (given := [name for name in starts if getattr(request, name)]):
        other = given[0].replace("_", " ")
        raise BadInput(f"the first shot begins from {origin}, and there is a {other} file; leave one of them out")


def place_clips(request: VideoRequest, shots: Sequence[Shot], stop: int) -> tuple[list[tuple[ShownClip, str]], str]:
    """Return the clips that are shown, each with the key of the shot after it, or nothing; and a note on others.

    `shots`: those that are made. `stop`: number of blocks, with those of a clip that is continued. Raises
    `BadInput` for a clip within a shot, and for a shot or clip with the name of the shot that goes on.
    """
    clips = read_clips(request.shown_clips)
    first = shots[0].key
    if first in (*(shot.key for shot in shots[1:]), *(clip.name for clip in clips)):
        fault = f"the clip to continue is the shot {first}, and the film shows another {first}"
        raise BadInput(f"{fault}; give it another name")
    keys = {shot.start: shot.key for shot in shots} | {stop: ""}
    placed = []
    for clip in clips:
        if clip.start > stop:
            continue
        if clip.start not in keys:
            fault = f"the clip {clip.name} is shown before block {clip.start + 1}, which begins no fresh shot"
            raise BadInput(f"{fault}; write '{clip.start + 1} fresh #k3f: ...' below it, with a key of its own")
        placed.append((clip, keys[clip.start]))
    late = ", ".join(clip.name for clip in clips if clip.start > stop)
    return placed, f"Not shown, as the video ends with block {stop}: the clip {late}." if late else ""


ReadClip = Callable[[str, int, int], tuple[str, Footage]]
"""Function that reads a clip by its name, for a width and a height in pixels; returns the name of its file, too."""


def read_clip_file(request: VideoRequest, name: str, width: int, height: int) -> tuple[str, Footage]:
    """Read a clip of a request in the film's size."""
    path = next(file.path for file in request.clips if file.name == name)
    return path.name, read_footage(path, width, height)


def cut_clip(clip: ShownClip, before: str, file: str, footage: Footage, fps: float) -> FilmClip:
    """Cut a clip to the part that is shown. `before`: key of the shot after it. `fps`: of the video.

    Raises `BadInput` for a part beyond the clip.
    """
    first, stop = clip.span
    if stop is not None and stop > footage.frames:
        length = f"{footage.frames / RATE:g} seconds"
        raise BadInput(f"the clip {clip.name} ends after {length}, and its part is {clip.part}; end it there")
    note = f"The clip {clip.name} is shown as it is. {footage.note}"
    if clip.part:
        note += f" Shown are {count(len(footage.pixels[first:stop]), 'frame')} from {first / RATE:g} s on."
    sound = footage.sound
    if sound and fps != RATE:
        note += f" Its sound is left out: it has {RATE} frames a second, and the video {fps:g}."
        sound = None
    elif sound:
        sound = replace(sound, start=sound.start + Fraction(first, RATE))
    cut = Footage(footage.pixels[first:stop].clone(), note, sound)
    return FilmClip(clip.name, file, cut, first, before, clip.start + 1)


def add_film_sound(
    path: Path, clips: Sequence[FilmClip], other: Sound | None, frames: Mapping[str, int]
) -> tuple[str, ...]:
    """Add the sounds of a film to its mp4; return notes. See `lay_sounds`."""
    if clips:
        placed = lay_sounds(clips, other, frames)
        return add_sounds(path, placed) if placed else ()
    problem = add_sound(path, other) if other else ""
    return (problem,) if problem else ()


def lay_sounds(
    clips: Sequence[FilmClip], other: Sound | None, frames: Mapping[str, int]
) -> tuple[PlacedSound, ...]:
    """Return the sounds of a film at their times. `frames`: of its parts in order, by the name of a shot or clip.

    `other`: the sound of what the shots are made from; it stops where a clip is shown, and goes on after it.
    """
    sounds = {clip.name: clip.footage.sound for clip in clips}
    placed: list[PlacedSound] = []
    at = Fraction(0)
    heard = Fraction(0)
    for name, length in frames.items():
        seconds = Fraction(length, RATE)
        sound = sounds.get(name, other)
        if sound is not None:
            start = sound.start if name in sounds else sound.start + heard
            part = PlacedSound(replace(sound, start=start), at, seconds)
            placed[-1:] = placed[-1].joined(part) if placed else [part]
        heard += 0 if name in sounds else seconds
        at += seconds
    return tuple(placed)
