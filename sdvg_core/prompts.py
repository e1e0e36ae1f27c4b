"""What each block is to show. A prompt belongs to a block, not to a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch import Tensor

from .errors import BadInput
from .types import Condition


@dataclass(frozen=True, slots=True)
class PromptSchedule:
    """Prompts, each with the index of the block from which it holds: `((0, "a calm sea"), (4, "a storm"))`.

    People, and the files they write, count blocks from 1.
    """

    entries: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        if not self.entries or any(not text.strip() for _, text in self.entries):
            raise BadInput("expected a prompt, but it is empty; describe what the video is to show")
        starts = [start for start, _ in self.entries]
        if starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
            raise BadInput(
                f"expected prompts from block 1 on, in rising order, but they begin at blocks "
                f"{', '.join(str(start + 1) for start in starts)}; number the first one 1 and sort the rest"
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """The prompts in order."""
        return tuple(text for _, text in self.entries)

    def conditions(self, embeddings: Mapping[str, Tensor], gate_text: str | None = None) -> Conditions:
        """Return the conditions of the blocks, given the embedding of every text; made once, so they are shared."""
        return Conditions(
            tuple((start, Condition(embeddings[text], text, gate_text or text)) for start, text in self.entries)
        )


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a clip, by block number."""

    entries: tuple[tuple[int, Condition], ...]

    def __call__(self, index: int) -> Condition:
        """Return the condition of block `index`."""
        return next(condition for start, condition in reversed(self.entries) if start <= index)


def one_prompt(text: str) -> PromptSchedule:
    """Return the schedule that shows one prompt throughout."""
    return PromptSchedule(((0, text.strip()),))


def read_prompt_list(path: Path) -> tuple[PromptSchedule, ...]:
    """Read a file of prompts, one video per line; empty lines are left out."""
    lines = [line.strip() for line in _read_text(path).splitlines() if line.strip()]
    if not lines:
        raise BadInput(f"expected prompts in {path.name}, one per line, but it is empty; write at least one")
    return tuple(one_prompt(line) for line in lines)


def read_prompt_schedule(path: Path) -> PromptSchedule:
    """Read a file of prompts for one video, a line each: the block (from 1) it holds from, a colon, the prompt."""
    entries = []
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"\s*(\d{1,6})\s*:\s*(\S.*)", line)
        if match is None:
            raise BadInput(
                f"expected a block number, a colon and a prompt, but line {number} of {path.name} is "
                f"{line[:60]!r}; write for example '4: the storm begins'"
            )
        entries.append((int(match[1]) - 1, match[2].strip()))
    return PromptSchedule(tuple(entries))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"expected a UTF-8 text file of prompts, but {path.name} cannot be read ({error}); check the file"
        ) from error
