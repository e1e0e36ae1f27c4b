"""The request for one video, which command line, nodes, reports and Python share, and its small texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BadInput, quoted
from .fields import check_fields, setting
from .route import Budget, Route

# The paper's size in pixels and its length.
DEFAULT_WIDTH = 832
DEFAULT_HEIGHT = 480
DEFAULT_BLOCKS = 9
STEP = 16
"""Pixels; sides are multiples of it: the VAE's stride times the models' patch."""
NO_MODEL = "there is no drafter and no target; give at least one"
TWO_STARTS = "the video has two starts; give a clip, an image or a clip to restyle"
MOST_BLOCKS = 100_000
MOST_BLOCK_LENGTH = 64
MOST_TAKES = 1_000_000
MOST_SEED = 2**64 - 1
STRENGTHS: Mapping[str, int] = {"strong": 1, "medium": 2, "light": 3}
"""Number of first steps that the clip, or the draft that is refined, replaces.

The more, the less noise is on it when denoising begins: of four steps, 6 % of the clip remain under the noise
(strong), 17 %, or 37 % (light).
"""
USUAL_STRENGTH = "medium"
LEAST_SHARE = 0.05
MOST_CONTROL_STRENGTH = 10.0
DIRECTION_LETTERS = ("a", "r", "d", "t")
LETTERS_IN_SHORT = "a (score, keep), r (score, reject), d (keep), t (target)"
ROUTE_DECIDES = "."
DrafterContext = Literal["committed", "own"]
"""The blocks that the drafter continues: those of the video, or its own drafts; these always under `Refine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """The request for one video; the help of each field describes it.

    `width`, `height`: pixels; None for those of the clip to continue, or 832 x 480. `block_length`: latent frames
    of a block, of a video that was drafted for a target; None for those of the models. `directions`: see
    `check_directions`. `takes`: see `read_takes`. `shots`: see `read_shots`, `shown_clips`: see `read_clips`; they
    come from the prompt's lines. `clips`: the files of these. `strength`: `medium`, or `medium,7:0.6` to change it
    from block 7 on. `colour_hold`: see `ColourHold`. Raises `BadInput` for invalid values, and for those that
    exclude each other.
    """

    blocks: int = setting(
        DEFAULT_BLOCKS,
        least=1,
        most=MOST_BLOCKS,
        help="blocks of latent frames to make",
        widget={"max": 4096},
    )
    seed: int = setting(42, least=0, most=MOST_SEED, help="of all noise", widget={})
    width: int | None = setting(None, least=STEP, widget={"default": DEFAULT_WIDTH, "max": 4096, "step": STEP})
    height: int | None = setting(None, least=STEP, widget={"default": DEFAULT_HEIGHT, "max": 4096, "step": STEP})
    fps: float = setting(16.0, least=0.001, most=1000, help="pixel frames a second of the mp4")
    drafter_context: DrafterContext = setting(
        "committed",
        help="the blocks the drafter continues: those of the video or, always with --refine, its own drafts",
        parts=("drafter",),
        widget={"advanced": True},
    )
    route: Route | Budget = setting(Route())
    directions: str = setting(
        "",
        help="one letter per block: . the route decides, t the target makes it, d the draft is kept; a and r "
        "score the draft first, then keep or reject it",
        metavar="LETTERS",
        widget={"optional": True},
    )
    takes: str = setting(
        "",
        help="other noise for single blocks, such as 6:2,8:3 (block 6 take 2, block 8 take 3); the blocks after "
        "one change too",
        widget={"optional": True},
    )
    block_length: int | None = setting(None, least=1, most=MOST_BLOCK_LENGTH)
    shots: str = setting("", of_files=False)
    shown_clips: str = setting("", of_files=False)
    clips: tuple[ClipFile, ...] = setting(
        (),
        flags=("--clip",),
        metavar="NAME=PATH",
        help="a video or a folder of pictures that the prompt's line '12 clip #NAME:' shows before block 12, as it "
        "is and with its sound",
        of_files=False,
    )
    continue_from: Path | None = setting(
        None,
        help="go on from a clip: latents.safetensors, a video, or a folder of pictures (16 a second)",
        metavar="CLIP",
    )
    context_blocks: int | None = setting(
        None,
        least=0,
        most=MOST_BLOCKS,
        help="last blocks of the clip to go on from that the models remember, within their windows; 0 for all",
        metavar="N",
        of_files=False,
    )
    start_image: Path | None = setting(None, help="the video's first frame", metavar="PICTURE")
    restyle: Path | None = setting(
        None, help="remake a video or a folder of pictures by the prompt, or --blocks of it", metavar="CLIP"
    )
    strength: str = setting(
        USUAL_STRENGTH, help=f"of --restyle: {', '.join(STRENGTHS)}, or a number up to 1", needs="restyle"
    )
    colour_hold: float = setting(
        0.0,
        least=0,
        most=1,
        help="pull each block's colours back to those its scene began with, for long clips: 0 to 1",
        widget={"step": 0.05, "advanced": True, "optional": True},
    )
    control: Path | None = setting(
        None,
        help="what every block obeys, for models with VACE modules: depth, scribbles, flow, grey or, with a mask, "
        "what it keeps: a video or a folder of pictures, from the video's first frame on, or --blocks of it",
        metavar="CLIP",
    )
    control_mask: Literal["alpha"] | Path | None = setting(
        None,
        help="white is made, black is kept from --control; a clip or one picture; alpha: that of --control, whose "
        "opaque parts are kept, or, if it has none, that of --restyle, whose opaque parts are made",
        metavar="CLIP",
        needs="control",
    )
    control_strength: float = setting(
        1.0, least=0, most=MOST_CONTROL_STRENGTH, help="0 to 1, or a little above", needs="control"
    )
    control_edge: int = setting(
        0, least=0, most=256, help="over which kept regions fade out", metavar="PIXELS", needs="control_mask"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_directions(self.directions, self.blocks)
        read_takes(self.takes, self.blocks)
        check_names(read_shots(self.shots), read_clips(self.shown_clips))
        names = [clip.name for clip in self.clips]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"two clips have the name {twice[0]}; give each its own")
        read_strengths(self.strength, self.blocks)
        if sum(map(bool, (self.continue_from, self.start_image, self.restyle))) > 1:
            raise BadInput(TWO_STARTS)


def strength_of(usual: str, strengths: Sequence[tuple[int, str]], *, restyles: bool) -> str:
    """Return the `usual` strength and those of prompt lines as text, such as `medium,7:0.6`.

    `strengths`: pairs of block, from 0, and strength. Raises `BadInput` for these if no clip is restyled.
    """
    if strengths and not restyles:
        start = strengths[0][0] + 1
        raise BadInput(f"the prompt has a strength from block {start} on, but no clip is restyled; add a clip")
    return ",".join((usual, *(f"{start + 1}:{strength}" for start, strength in strengths)))


def blocks_in(frames: int) -> int:
    """Return the number of blocks, of three latent frames, closest to a clip of `frames` pixel frames."""
    return max(1, round((frames + 3) / 12))


def check_blocks(blocks: int) -> None:
    """Raise `BadInput` unless a video can have this many blocks."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or not 1 <= blocks <= MOST_BLOCKS:
        raise BadInput(f"a video cannot have {quoted(blocks)} blocks; give 1 to {MOST_BLOCKS} (the paper uses 9)")


def check_directions(letters: str, blocks: int) -> None:
    """Raise `BadInput` unless there is a valid letter for every block of a run, or none at all."""
    if not isinstance(letters, str) or set(letters) - {ROUTE_DECIDES, *DIRECTION_LETTERS}:
        known = f"{ROUTE_DECIDES} (route), {LETTERS_IN_SHORT}"
        # The unknown ones alone: ComfyUI's page sends more letters than were typed.
        unknown = str(letters).translate(dict.fromkeys(map(ord, (ROUTE_DECIDES, *DIRECTION_LETTERS))))
        raise BadInput(f"unknown letters in the directions: {quoted(unknown)}; write per block {known}")
    if letters and len(letters) != blocks:
        problem = f"the {len(letters)} directions {quoted(letters)} are not one for each of the {blocks} blocks"
        raise BadInput(f"{problem}; add or remove some ({ROUTE_DECIDES}: the route decides), or leave them empty")


def read_takes(text: str, blocks: int) -> Mapping[int, int]:
    """Parse takes such as "6:2, 8:3"; return them by index of the block in the run, from 0.

    Raises `BadInput` for other text, and for a block that the run does not have.
    """
    takes: dict[int, int] = {}
    for part in filter(None, re.split(r"[,;\s]+", text)):
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,7})", part)
        if match is None:
            raise BadInput(f"the take is {part!r:.60}; write for example 6:2 (block 6, take 2)")
        number = int(match[1])
        take = int(match[2])
        if not 1 <= number <= blocks:
            raise BadInput(f"the take {part} is of block {number}; choose one of blocks 1 to {blocks}")
        if not 1 <= take <= MOST_TAKES:
            raise BadInput(f"there is no take {part}; choose 1 (the plain one) to {MOST_TAKES}")
        if number - 1 in takes:
            raise BadInput(f"block {number} has two takes, {takes[number - 1]} and {take}; keep one of them")
        takes[number - 1] = take
    return {index: take for index, take in takes.items() if take > 1}


# --- shots that begin afresh: of the blocks before them, they remember nothing

SHOT_KEY = re.compile("#[a-z0-9]{1,12}")
FIRST_KEY = "#0"
"""The key of the shot that a film begins with if its prompt names none."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A shot that begins afresh. `start`: its first block, from 0; blocks of a clip that is continued count too.

    `key`: its name. It names its noise too, so a shot that is moved keeps its latents. `origin`: name of the shot
    or clip whose last frame it begins with; empty for none. Raises `BadInput` for a key of another form.
    """

    start: int = 0
    key: str = FIRST_KEY
    origin: str = ""

    def __post_init__(self) -> None:
        for key in (self.key, *filter(None, [self.origin])):
            if not SHOT_KEY.fullmatch(key):
                raise BadInput(f"a shot's key is {key!r:.40}; write # and 1 to 12 of a-z and 0-9, such as #k3f")

    def __str__(self) -> str:
        origin = f" from {self.origin}" if self.origin else ""
        return f"{self.start + 1}:{self.key}{origin}"


def shots_text(shots: Sequence[Shot]) -> str:
    """Return shots as text, such as `1:#0,4:#k3f`; empty for a film of one plain run."""
    return "" if not shots or tuple(shots) == (Shot(),) else ",".join(map(str, shots))


def read_shots(text: str) -> tuple[Shot, ...]:
    """Parse shots such as `1:#0,4:#k3f from #0` (the key of the first blocks; from block 4 on a shot of its own).

    Raises `BadInput` for other text, and unless the blocks ascend from 1. `check_names` checks the keys.
    """
    shots = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,6}):(#.*?)(?: from (#.*))?", part)
        if match is None:
            raise BadInput(f"the shot is {part!r:.40}; write for example 4:#k3f (from block 4 on)")
        shots.append(Shot(int(match[1]) - 1, match[2], match[3] or ""))
    starts = [shot.start for shot in shots]
    if shots and (starts[0] != 0 or sorted(set(starts)) != starts):
        raise BadInput(f"the shots are {text!r:.60}; sort them, from block 1 on, one for each block at most")
    return tuple(shots) or (Shot(),)


# --- clips that a film shows as they are

CLIP_RATE = 16
"""Frames a second at which a clip is shown and cut."""
CLIP_PART = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)-([0-9]{1,4}(?:\.[0-9]{1,3})?)")


def check_clip_name(name: str) -> None:
    """Raise `BadInput` for a name that no clip can have."""
    if not SHOT_KEY.fullmatch(name):
        raise BadInput(f"a clip's name is {name!r:.40}; write # and 1 to 12 of a-z and 0-9, such as #a")
    if name == FIRST_KEY:
        raise BadInput(f"the clip {FIRST_KEY} has the name of the film's first shot; give it another")


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A clip that a film shows as it is: its `name`, such as `#a`, and its file or folder of pictures.

    Raises `BadInput` for a name of another form.
    """

    name: str
    path: Path

    def __post_init__(self) -> None:
        check_fields(self)
        check_clip_name(self.name)


@dataclass(frozen=True, slots=True)
class ShownClip:
    """A clip that is shown before block `start`, from 0; blocks of a clip that is continued count too.

    `part`: of it, in seconds, such as `1.5-4.0`; empty for all. Raises `BadInput` for a name or part of another
    form.
    """

    start: int
    name: str
    part: str = ""

    def __post_init__(self) -> None:
        check_clip_name(self.name)
        if self.part and not CLIP_PART.fullmatch(self.part):
            raise BadInput(f"the part of clip {self.name} is {self.part!r:.40}; write seconds such as 1.5-4.0")
        first, stop = self.span
        if stop is not None and first >= stop:
            fault = f"the part of clip {self.name} is {self.part}, not a frame of {CLIP_RATE} a second"
            raise BadInput(f"{fault}; write in and out in seconds, such as 1.5-4.0")

    @property
    def span(self) -> tuple[int, int | None]:
        """The frames that are shown: the first one, and the one after the last; None for the clip's end."""
        match = CLIP_PART.fullmatch(self.part)
        if match is None:
            return 0, None
        first, stop = (round(float(seconds) * CLIP_RATE) for seconds in match.groups())
        return first, stop

    def __str__(self) -> str:
        part = f" {self.part}" if self.part else ""
        return f"{self.start + 1}:{self.name}{part}"


def clips_text(clips: Sequence[ShownClip]) -> str:
    """Return clips as text, such as `4:#a 1.5-4.0,4:#b`."""
    return ",".join(map(str, clips))


def read_clips(text: str) -> tuple[ShownClip, ...]:
    """Parse clips such as `4:#a 1.5-4.0,4:#b` (before block 4, #a from 1.5 to 4 seconds, then all of #b).

    Raises `BadInput` for other text, and unless the blocks ascend.
    """
    clips = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,6}):(#\S*)(?: (\S+))?", part)
        if match is None or int(match[1]) < 1:
            raise BadInput(f"the clip is {part!r:.40}; write for example 4:#a (before block 4)")
        clips.append(ShownClip(int(match[1]) - 1, match[2], match[3] or ""))
    if clips != sorted(clips, key=lambda clip: clip.start):
        raise BadInput(f"the clips are {text!r:.60}; sort them by their blocks")
    return tuple(clips)


def check_names(shots: Sequence[Shot], clips: Sequence[ShownClip]) -> None:
    """Raise `BadInput` unless each shot and clip of a film has its own name, and shots begin from earlier ones."""
    keys = [shot.key for shot in shots]
    names = [clip.name for clip in clips]
    if twice := [key for key in keys if keys.count(key) > 1]:
        first = " (the film's first shot has it)" if twice[0] == FIRST_KEY else ""
        raise BadInput(f"two shots have the key {twice[0]}{first}; give each its own")
    if twice := [name for name in names if names.count(name) > 1]:
        fault = f"two lines show the clip {twice[0]}"
        raise BadInput(f"{fault}; give the second one a name of its own, which may have the same file")
    if both := [name for name in names if name in keys]:
        raise BadInput(f"a shot and a clip have the name {both[0]}; give each its own")
    for number, shot in enumerate(shots):
        earlier = [*keys[:number], *(clip.name for clip in clips if clip.start <= shot.start)]
        if shot.origin and shot.origin not in earlier:
            fault = f"shot {shot.key} begins from {shot.origin}, and no shot before it has that key"
            raise BadInput(f"{fault}, nor a clip; name one of {', '.join(earlier) or 'those before it'}")


# --- restyling: a block begins from the clip's latents with noise added. A named strength skips the first steps of
# the schedule, whose predictions the clip replaces; a number scales the noise levels of all steps.


@dataclass(frozen=True, slots=True)
class Strength:
    """Strength of restyling: run the steps after `skip`, with noise levels (unshifted) scaled by `share`."""

    skip: int = 0
    share: float = 1.0


def read_strength(text: str) -> Strength:
    """Return a strength from one of `STRENGTHS`, or a number up to 1. Raises `BadInput` for anything else."""
    if text in STRENGTHS:
        return Strength(skip=STRENGTHS[text])
    try:
        share = float(text)
    except (TypeError, ValueError, OverflowError):
        share = 0.0
    if not LEAST_SHARE <= share <= 1:
        raise BadInput(
            f"{quoted(text, 40)} is not a strength; give {', '.join(STRENGTHS)} or a number from {LEAST_SHARE} to 1"
        )
    return Strength(share=share)


def read_strengths(text: str, blocks: int) -> tuple[Strength, ...]:
    """Return the strength of each block from text such as `medium` or `medium,7:0.6` (0.6 from block 7 on).

    Raises `BadInput` for other text, and for a block that the video does not have.
    """
    usual, *later = text.split(",")
    strengths = [read_strength(usual)] * blocks
    for change in later:
        start, _, strength = change.partition(":")
        if not (re.fullmatch("[0-9]{1,6}", start) and 0 < int(start) <= blocks):
            raise BadInput(f"the strength {change!r:.30} names no block from 1 to {blocks}; write 7:0.6")
        strengths[int(start) - 1 :] = [read_strength(strength)] * (blocks - int(start) + 1)
    return tuple(strengths)


def strength_part(text: str, first: int, stop: int) -> str:
    """Return the part of a text of strengths for the blocks `first` to `stop`, from 0, which then count from 1."""
    usual, *later = text.split(",")
    shifted = []
    for change in later:
        number, _, strength = change.partition(":")
        block = int(number) - 1
        if block <= first:
            usual = strength
        elif block < stop:
            shifted.append(f"{block - first + 1}:{strength}")
    return ",".join((usual, *shifted))


def check_strengths(strengths: Sequence[Strength], schedules: Sequence[Sequence[float]]) -> None:
    """Raise `BadInput` unless models with these timesteps can skip the steps of the strengths.

    All models must continue from the same noise level, so their schedules must agree up to there.
    """
    skip = max((strength.skip for strength in strengths), default=0)
    # Denoising begins at the step after those that are left out, so one more has to agree.
    most = min(len(timesteps) for timesteps in schedules) - 1
    while most and len({tuple(timesteps[: most + 1]) for timesteps in schedules}) > 1:
        most -= 1
    if skip > most:
        words = [word for word, steps in STRENGTHS.items() if steps <= most]
        ways = f"{', '.join(words)} or a number" if words else "a number"
        raise BadInput(f"the models' schedules share {most + 1} steps, too few to leave out {skip}; give {ways}")
