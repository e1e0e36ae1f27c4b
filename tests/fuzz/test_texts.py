"""Formats that users write: what is legal is read as it was meant, and anything else is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdvg_core.cli import make_parser
from sdvg_core.errors import BadInput
from sdvg_core.settings.load import split_strength
from sdvg_core.settings.request import (
    DIRECTION_LETTERS,
    LEAST_SHARE,
    MOST_BLOCKS,
    MOST_TAKES,
    STRENGTHS,
    Shot,
    ShownClip,
    check_directions,
    clips_text,
    read_clips,
    read_shots,
    read_strength,
    read_strengths,
    read_takes,
)
from sdvg_core.settings.schedules import get_schedule
from sdvg_core.text.prompt_files import read_prompt_list
from sdvg_core.text.prompts import clean_prompt, read_prompt, read_video_prompt

from .answers import answer, spoken_badly

BLOCKS = 9
NUMBERS = st.integers(1, BLOCKS)
"""Of blocks."""
LATER = st.lists(st.integers(2, BLOCKS), unique=True).map(sorted)
"""Blocks at which something changes."""
SHARES = st.floats(LEAST_SHARE, 1).map(str)
WORDS = st.lists(st.sampled_from(("fox", "sea,", "5", "at", "12:30", "snow;", "狐", "é")), min_size=1).map(" ".join)
ODD = st.sampled_from(
    ("\0", "\r", "\u2028", "\x1b[2J", "\ud800", "²", "٣", "½", "\uff1a", "nan", "inf", "-1", "1e999", "0x10", "1_0")
)


@dataclass(frozen=True)
class Format:
    """A format. `parts`: a pattern of its parts, which `between` joins. `read`: returns, or raises `BadInput`."""

    parts: str
    between: str
    read: Callable[[str], object]


FORMATS = {
    "takes": Format("[0-9]{1,2}:[0-9]{1,3}", ",", lambda text: read_takes(text, BLOCKS)),
    "strengths": Format("([0-9]:)?(medium|light|0\\.[0-9])", ",", lambda text: read_strengths(text, BLOCKS)),
    "schedule": Format("[0-9]{1,3}(\\.[0-9])?", ",", get_schedule),
    "directions": Format("[.adrt]{1,9}", "", lambda text: check_directions(text, BLOCKS)),
    "prompt": Format("[0-9]{0,2}( cut)?( strength 0\\.[0-9])?:? ?[a-c]{0,2}", "\n", read_video_prompt),
    "shots in a prompt": Format(
        "[0-9]? (clip #[a-c]( [0-9]-[0-9])?|fresh #[a-c]( from #[a-c])?): ?[a-c]?", "\n", read_video_prompt
    ),
    "shots": Format("[0-9]:#[a-c]( from #[a-c])?", ",", read_shots),
    "clips": Format("[0-9]:#[a-c]( [0-9](\\.[0-9])?-[0-9])?", ",", read_clips),
    "first blocks": Format("(\\[first [0-9]{1,2}(\\.5)?\\] )?[a-c]", " ", read_video_prompt),
    "a LoRA": Format("[a-c.]{1,3}|[0-9.]{1,3}", ":", split_strength),
}


def texts(form: Format) -> st.SearchStrategy[str]:
    """Draw text that has the parts of a format, some of them, or none."""
    parts = st.from_regex(form.parts, fullmatch=True)
    some = parts | ODD | st.text(max_size=5)
    return (st.lists(parts, max_size=4) | st.lists(some, max_size=8)).map(form.between.join) | st.text()


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_text_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Catches: an error of Python's, or a refusal without fault, remedy or printable letters."""
    form = FORMATS[name]
    text = data.draw(texts(form))
    result = answer(lambda: form.read(text))
    if isinstance(result, BadInput):
        assert spoken_badly(str(result)) == ""


DIGITS = "9" * 5000
LONG = (
    DIGITS,
    f"{DIGITS}:{DIGITS}",
    f"medium,{DIGITS}:0.5",
    "a" * 50_000,
    "1:2," * 10_000,
    "1,2," * 10_000,
    "\n" * 50_000,
)


@pytest.mark.parametrize("text", LONG, ids=[text[:8] for text in LONG])
@pytest.mark.parametrize("name", FORMATS)
def test_long_text_is_read_or_refused(name: str, text: str) -> None:
    """Catches: numbers that are too long for Python, and a refusal that repeats all of the text."""
    result = answer(lambda: FORMATS[name].read(text))
    if isinstance(result, BadInput):
        assert spoken_badly(str(result)) == ""


@given(takes=st.dictionaries(NUMBERS, st.integers(1, MOST_TAKES)), between=st.sampled_from((",", " ", "; ", "\n")))
def test_takes_are_read_by_block(takes: dict[int, int], between: str) -> None:
    """Catches: a take of the block beside it, one that is lost, a plain one that counts as another video."""
    text = between.join(f"{block}:{take}" for block, take in takes.items())
    assert read_takes(text, BLOCKS) == {block - 1: take for block, take in takes.items() if take > 1}


@given(data=st.data(), usual=st.sampled_from(list(STRENGTHS)), starts=LATER)
def test_strengths_hold_from_their_block_on(data: st.DataObject, usual: str, starts: list[int]) -> None:
    """Catches: a strength of its block alone, or from the next one on."""
    changes = {start: data.draw(SHARES) for start in starts}
    expected = []
    strength = usual
    for block in range(1, BLOCKS + 1):
        strength = changes.get(block, strength)
        expected.append(read_strength(strength))
    text = ",".join([usual, *(f"{start}:{share}" for start, share in changes.items())])
    assert read_strengths(text, BLOCKS) == tuple(expected)


@given(timesteps=st.lists(st.floats(0, 1000), min_size=1, max_size=20, unique=True))
def test_falling_timesteps_are_a_schedule(timesteps: list[float]) -> None:
    """Catches: steps that are rounded, sorted or lost."""
    falling = sorted(timesteps, reverse=True)
    assert [step.timestep for step in get_schedule(",".join(map(str, falling)))] == falling


@given(timesteps=st.lists(st.floats(0, 1000), min_size=2, max_size=5))
def test_rising_timesteps_are_refused(timesteps: list[float]) -> None:
    """Catches: steps put in order unasked, or one step twice."""
    rising = sorted(timesteps)
    with pytest.raises(BadInput):
        get_schedule(",".join(map(str, rising)))


@given(letters=st.text([".", *DIRECTION_LETTERS], min_size=1, max_size=BLOCKS), blocks=NUMBERS)
def test_directions_need_a_letter_for_each_block(letters: str, blocks: int) -> None:
    if len(letters) == blocks:
        check_directions(letters, blocks)
        return
    with pytest.raises(BadInput):
        check_directions(letters, blocks)


@given(width=st.integers(1, 10**6), height=st.integers(1, 10**6))
def test_size_is_width_and_height(width: int, height: int) -> None:
    """Catches: width and height swapped."""
    options = make_parser(["generate"]).parse_args(["generate", "--prompt", "x", "--size", f"{width}x{height}"])
    assert (options.width, options.height) == (width, height)


@dataclass(frozen=True)
class Line:
    """A line of a prompt, from a block on."""

    prompt: str
    begins: str
    strength: str

    def written(self, start: int) -> str:
        """Return the line as a user writes it; of a fresh shot, with a key that is its block's alone."""
        begins = {"": "", "cut": " cut", "fresh": f" fresh #k{start}"}[self.begins]
        strength = f" strength {self.strength}" if self.strength else ""
        return f"{start}{begins}{strength}: {self.prompt}"


LINES = st.builds(Line, WORDS, st.sampled_from(("", "cut", "fresh")), st.just("") | SHARES)
PARTS = st.tuples(st.integers(0, 159_000), st.integers(63, 800_000)).map(
    lambda span: f"{span[0] / 1000}-{(span[0] + span[1]) / 1000}"
)
"""Seconds in and out, at least a frame."""


def shown(name: str, place: tuple[int, str]) -> ShownClip:
    """Return a clip by its name, its block and its part."""
    return ShownClip(place[0], name, place[1])


CLIPS = st.dictionaries(
    st.from_regex("#[a-z0-9]{1,12}", fullmatch=True).filter(lambda name: name != "#0"),
    st.tuples(st.integers(0, BLOCKS) | st.just(MOST_BLOCKS - 1), st.just("") | PARTS),
    max_size=4,
).map(lambda named: sorted(starmap(shown, named.items()), key=lambda clip: clip.start))


@given(begins=WORDS, lines=st.dictionaries(st.integers(2, 10**5), LINES, max_size=5))
@example(begins="12:30 at sea", lines={5: Line("a 16:9 film", begins="cut", strength="0.5")})
def test_lines_change_the_prompt_from_their_block(begins: str, lines: dict[int, Line]) -> None:
    """Catches: a line of the block beside it, a cut, shot or strength lost, a time of day taken for a block."""
    changes = sorted(lines.items())
    text = "\n".join([begins, *(line.written(start) for start, line in changes)])
    prompt = read_prompt(text)
    assert prompt.entries == ((0, begins), *((start - 1, line.prompt) for start, line in changes))
    assert prompt.strengths == tuple((start - 1, line.strength) for start, line in changes if line.strength)
    assert prompt.cuts == tuple(start - 1 for start, line in changes if line.begins == "cut")
    fresh = [start for start, line in changes if line.begins == "fresh"]
    assert prompt.shots == (Shot(), *(Shot(start - 1, f"#k{start}") for start in fresh))


@given(clips=CLIPS, text=WORDS)
def test_clips_are_shown_before_their_blocks(clips: list[ShownClip], text: str) -> None:
    """From lines, and from the text of a request. Catches: a part that is rounded, a clip lost or out of order."""
    lines = [f"{clip.start + 1} clip {clip.name}{' ' if clip.part else ''}{clip.part}:" for clip in clips]
    assert read_prompt("\n".join([*lines, f"1: {text}"])).clips == tuple(clips)
    assert read_prompt("\n".join([text, *lines])).entries == ((0, text),)
    assert read_clips(clips_text(clips)) == tuple(clips)


@given(count=st.integers(1, 99999), text=WORDS)
def test_prompt_states_its_first_blocks(count: int, text: str) -> None:
    prompt = read_video_prompt(f"[first {count}] {text}")
    assert (prompt.first, prompt.texts) == (count, (text,))


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompts") / "prompts.txt"


@given(prompts=st.lists(WORDS, min_size=1), between=st.sampled_from(("\n", "\r\n", "\n\n# note\n")))
def test_file_has_a_prompt_on_each_line(prompt_file: Path, prompts: list[str], between: str) -> None:
    """Catches: a prompt that is lost, and a note that becomes a video."""
    prompt_file.write_bytes(between.join(prompts).encode())
    assert [prompt.texts for prompt in read_prompt_list(prompt_file)] == [(text,) for text in prompts]


@given(text=st.text() | st.lists(ODD | WORDS).map(" ".join))
def test_clean_prompt_is_words_and_blanks(text: str) -> None:
    """Catches: letters that a tokenizer cannot take, and blanks that it would count."""
    cleaned = answer(lambda: clean_prompt(read_video_prompt(text).texts[0]))
    if isinstance(cleaned, str):
        assert cleaned.encode()
        assert cleaned == " ".join(cleaned.split())
