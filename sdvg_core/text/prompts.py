"""Parse and check prompts, and assign them to a clip's blocks: a prompt belongs to a block, not to a run."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from ..engine.types import Condition
from ..errors import BadInput, count
from ..settings.request import (
    Shot,
    ShownClip,
    VideoRequest,
    check_names,
    clips_text,
    read_clips,
    read_shots,
    read_strength,
    shots_text,
    strength_of,
)

EMPTY = "the prompt is empty; describe what the video should show"
LONGEST_PROMPT = 20_000
# Control characters except tabs and line breaks, and lone surrogates.
NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# With a digit right after the colon it is a ratio or a time of day.
PROMPT_LINE = re.compile(
    r"[ \t]*(?P<block>[0-9]{1,6})"
    r"(?:[ \t]+clip[ \t]+(?P<clip>#[^\s:]*)(?:[ \t]+(?P<part>[0-9][^\s:]*))?"
    r"|(?P<cut>[ \t]+cut)?"
    r"(?:[ \t]+fresh[ \t]+(?P<shot>#[^\s:]*)(?:[ \t]+from[ \t]+(?P<origin>#[^\s:]*))?)?"
    r"(?:[ \t]+strength[ \t]+(?P<strength>\S+?))?)"
    r"[ \t]*:(?![0-9])[ \t]*(?P<prompt>.*)"
)
"""A line for a block: its number from 1, an optional cut, fresh shot or strength, and a prompt; or a clip."""
FIRST_STRENGTH = re.compile(r"(?is)\s*\[first[ \t]+([-+]?[0-9][0-9.,]*)\](.*)")
"""Start of a video's prompt: the number of first blocks by the target."""
ALMOST = re.compile(
    r"(?i)[ \t]*(?:\[first\b.*|[-+\u2212]?\d+(?:[.,]\d+)?"
    r"(?:[ \t]+clip[ \t]+#.*|(?:[ \t]*|[ \t]+(?:cut|fresh|clip|strength)\b[^:\uff1a]*)[:\uff1a](?!\d).*))"
)
"""A line that is nearly one of these: another number, digits of another script, a full-width colon."""


@dataclass(frozen=True, slots=True)
class PromptSchedule:
    """Prompts with their first blocks, from 0: `((0, "a calm sea"), (4, "a storm"))`.

    `strengths`: of restyling, with their first blocks. `cuts`: blocks that begin a new scene. `shots`: those that
    begin afresh, the first one with block 0. `clips`: those shown as they are. `first`: number of first blocks by
    the target, if the prompt states it, else 0. `seed`: of its video, if its file states one. Raises `BadInput`
    unless blocks ascend from 0.
    """

    entries: tuple[tuple[int, str], ...]
    strengths: tuple[tuple[int, str], ...] = ()
    cuts: tuple[int, ...] = ()
    shots: tuple[Shot, ...] = (Shot(),)
    clips: tuple[ShownClip, ...] = ()
    first: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.entries:
            raise BadInput(EMPTY)
        for _, text in self.entries:
            check_prompt(text)
        if self.starts[0] != 0:
            later = self.starts[0] + 1
            raise BadInput(f"the first block has no prompt; write one before that of block {later}, or as block 1")
        if any(b <= a for a, b in pairwise(self.starts)):
            blocks = ", ".join(str(start + 1) for start in self.starts)
            raise BadInput(f"the prompts start at blocks {blocks:.40}; sort them, and give each block one")
        check_names(read_shots(shots_text(self.shots)), read_clips(clips_text(self.clips)))

    @property
    def changes(self) -> bool:
        """True if the prompt or a strength changes within the video, a shot has a key, or a clip is shown."""
        return len(self.entries) > 1 or bool(self.strengths or self.clips or shots_text(self.shots))

    @property
    def starts(self) -> tuple[int, ...]:
        """The first block of each prompt."""
        return tuple(start for start, _ in self.entries)

    @property
    def texts(self) -> tuple[str, ...]:
        """The prompts in order."""
        return tuple(text for _, text in self.entries)

    def conditions(self, embeddings: Mapping[str, Tensor]) -> Conditions:
        """Return the conditions of the blocks. `embeddings`: by text."""
        return Conditions(
            tuple((start, Condition(embeddings[text], text, start in self.cuts)) for start, text in self.entries)
        )


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a clip, with their first blocks, from 0."""

    entries: tuple[tuple[int, Condition], ...]

    def __call__(self, index: int) -> Condition:
        """Return the condition of block `index`."""
        return next(condition for start, condition in reversed(self.entries) if start <= index)


def one_prompt(text: str) -> PromptSchedule:
    """Return a schedule with one prompt. Raises `BadInput` for an invalid one."""
    check_prompt(text)
    return PromptSchedule(((0, text.strip()),))


def read_prompt(text: str) -> PromptSchedule:
    """Parse a prompt with lines that change it from a block on.

    Examples: `5: a storm`, `7 strength 0.6: a lake`, `12 cut: a harbour` (a new scene), `15 fresh #k3f: a bridge`
    (a shot that remembers nothing of those before it), `18 fresh #a from #k3f: ...` (it begins with that shot's
    last frame), `18 clip #b 1.5-4.0:` (before block 18, a clip from 1.5 to 4 seconds). Other lines belong to the
    prompt before them. A line with a strength may have no prompt. Raises `BadInput` for an invalid line.
    """
    if not isinstance(text, str):
        raise BadInput(EMPTY)
    lines: list[str] = []
    parts: list[tuple[int, str, list[str]]] = [(0, "", lines)]
    clips: list[tuple[ShownClip, list[str]]] = []
    cuts = []
    fresh: dict[int, Shot] = {}
    for line in text_lines(text):
        match = PROMPT_LINE.fullmatch(line)
        if match is None:
            lines.append(line)
            continue
        start = int(match["block"]) - 1
        if start < 0:
            raise BadInput(f"the line {line.strip()!r:.60} is of block 0, but the first one is 1; number it again")
        lines = [match["prompt"]]
        if match["clip"]:
            clips.append((ShownClip(start, match["clip"], match["part"] or ""), lines))
            continue
        parts.append((start, match["strength"] or "", lines))
        cuts += [start] if match["cut"] else []
        if match["shot"]:
            fresh[start] = Shot(start, match["shot"], match["origin"] or "")
    for clip, below in clips:
        if "".join(below).strip():
            fault = f"the line of clip {clip.name} has a text, and a clip is shown as it is"
            raise BadInput(f"{fault}; write the text as a line of its own, such as '4 fresh #k3f: a storm'")
    texts = [(start, strength, "\n".join(lines).strip()) for start, strength, lines in parts]
    for start, strength, prompt in texts[1:]:
        if strength:
            read_strength(strength)
        if start in cuts and start in fresh:
            raise BadInput(f"block {start + 1} is cut and fresh; a fresh shot needs no cut, so leave that out")
        if not prompt and (start in cuts or start in fresh or not strength):
            raise BadInput(f"the line of block {start + 1} says nothing; write for example '4: the storm begins'")
    strengths = tuple((start, strength) for start, strength, _ in texts if strength)
    entries = tuple((start, prompt) for start, _, prompt in texts if prompt)
    shots = tuple(({0: Shot()} | fresh).values())
    return PromptSchedule(entries, strengths, tuple(cuts), shots, tuple(clip for clip, _ in clips))


def prompt_lines(prompt: PromptSchedule) -> str:
    """Return a schedule as the lines of a prompt file, which `read_prompt` reads; texts on one line each.

    Clips are left out, as a schedule does not know their files.
    """
    texts = dict(prompt.entries)
    strengths = dict(prompt.strengths)
    keys = {shot.start: shot for shot in prompt.shots if shot != Shot()}
    lines = []
    for start in sorted({*texts, *strengths}):
        words = [str(start + 1)]
        words += ["cut"] if start in prompt.cuts else []
        if shot := keys.get(start):
            words.append(f"fresh {shot.key}" + (f" from {shot.origin}" if shot.origin else ""))
        words += [f"strength {strengths[start]}"] if start in strengths else []
        lines.append(f"{' '.join(words)}: {' '.join(texts.get(start, '').split())}".rstrip())
    return "\n".join(lines) + "\n"


def check_prompt(text: str) -> None:
    """Raise `BadInput` for an empty, too long or unprintable prompt; line breaks and tabs are allowed."""
    if not isinstance(text, str) or not text.strip():
        raise BadInput(EMPTY)
    if len(text) > LONGEST_PROMPT:
        size = f"{len(text)} characters, over {LONGEST_PROMPT}"
        raise BadInput(f"the prompt has {size}; shorten it: 512 tokens are read")
    odd = NO_TEXT.search(text)
    if odd is not None:
        code = f"U+{ord(odd[0]):04X}"
        raise BadInput(f"character {odd.start() + 1} of the prompt is the control character {code}; remove it")


def read_video_prompt(text: str) -> PromptSchedule:
    """Parse the prompt of one video like `read_prompt`, with an optional `[first 5]`."""
    match = FIRST_STRENGTH.fullmatch(text)
    if match is None:
        return read_prompt(text)
    if not re.fullmatch("0*[1-9][0-9]{0,4}", match[1]):
        raise BadInput(f"the line {text!r:.40} states {match[1]:.20} first blocks; give a count from 1 on")
    return replace(read_prompt(match[2]), first=int(match[1]))


def notes_on_starts(starts: Iterable[int], new: range) -> tuple[str, ...]:
    """Return notes on the blocks at which prompts start: which are not shown, and how they count after a clip.

    `new`: the blocks that are made. All count from 0, a continued clip's first.
    """
    starts = sorted(starts)
    ends = f"the video ends with block {new.stop}"
    notes = [f"The prompt from block {start + 1} on is not shown: {ends}." for start in starts if start >= new.stop]
    shown = [f"block {start + 1} is new block {start + 1 - new.start}" for start in starts if start in new]
    if new.start and shown:
        notes.append(f"Prompts count the clip's {count(new.start, 'block')} too: {', '.join(shown)}.")
    return tuple(notes)


def taken_as_text(texts: Iterable[str]) -> tuple[str, ...]:
    """Return a note if a line of any prompt is nearly a direction, without the prompt's words."""
    if any(ALMOST.fullmatch(line) for text in texts for line in text_lines(text)):
        return (
            "A line of a prompt begins nearly as '5:' or '[first 5]' do, and is taken as text: "
            "write the number as 1, 2, 3 ..., then ':' and a blank.",
        )
    return ()


def text_lines(text: str) -> list[str]:
    """Split at line breaks only; `splitlines` would split at other characters of a prompt too."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def clean_prompt(prompt: str) -> str:
    """Clean a prompt for the tokenizer as in Wan's code: ftfy, HTML entities, blanks.

    Raises `BadInput` if nothing is left, or if ftfy is needed and not installed.
    """
    # ftfy repairs mojibake, look-alike characters and control codes; printable ASCII has none.
    if not (prompt.isascii() and all(c.isprintable() or c.isspace() for c in prompt)):
        try:
            import ftfy
        except ImportError as error:
            fault = "a prompt beyond ASCII needs the package ftfy"
            raise BadInput(f"{fault}; pip install ftfy, or write ASCII") from error
        prompt = str(ftfy.fix_text(prompt))
    text = " ".join(html.unescape(html.unescape(prompt)).split())
    if not text:
        raise BadInput(EMPTY)
    return text


def with_prompt_lines(request: VideoRequest, prompt: PromptSchedule) -> VideoRequest:
    """Return the request with the strengths, shots and clips from the lines of its prompt."""
    if prompt.strengths:
        strength = strength_of(request.strength, prompt.strengths, restyles=bool(request.restyle))
        request = replace(request, strength=strength)
    shots = shots_text(prompt.shots) or request.shots
    return replace(request, shots=shots, shown_clips=clips_text(prompt.clips) or request.shown_clips)
