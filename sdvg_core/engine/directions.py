"""What the user decides block by block: which model makes a block, and which take of it.

People count the blocks of a run from 1, as the squares of its strip are numbered. A clip that the run continues
does not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ..errors import BadInput
from .router import ROUTER_DECIDES, SCRIPT_LETTERS, RouterConfig

LETTERS = {ROUTER_DECIDES: "the router decides", **SCRIPT_LETTERS}
MOST_TAKES = 1_000_000
LONGEST_TAKES = 1_000_000


def check_directions(letters: str, blocks: int) -> None:
    """Raise `BadInput` unless there is one of `LETTERS` for every block of a run, or none at all."""
    if not isinstance(letters, str) or set(letters) - set(LETTERS):
        raise BadInput(
            f"directions use only the letters {' '.join(LETTERS)}, but are {letters!r:.60}; write one per block "
            f"({', '.join(f'{letter}: {what}' for letter, what in LETTERS.items())})"
        )
    if letters and len(letters) != blocks:
        raise BadInput(
            f"directions need one letter for each of the {blocks} blocks, but {letters!r:.60} has {len(letters)}; "
            f"add or remove some ({ROUTER_DECIDES} leaves a block to the router), or leave them empty"
        )


def direct(router: RouterConfig, letters: str, blocks: int, first: int) -> RouterConfig:
    """Return the router with the directions for a run of `blocks` blocks, from block `first` of the clip on."""
    check_directions(letters, blocks)
    return replace(router, directions=ROUTER_DECIDES * first + letters) if letters.strip(".") else router


def read_takes(text: str, blocks: int) -> Mapping[int, int]:
    """Return the takes written in `text`, such as "6:2, 8:3", by the block's place in the run, counted from 0.

    Raises `BadInput` for anything else, and for a block the run does not have.
    """
    if not isinstance(text, str) or len(text) > LONGEST_TAKES:
        raise BadInput(f"takes must be text such as 6:2 (block 6, take 2), but are {text!r:.60}; correct them")
    takes: dict[int, int] = {}
    for part in filter(None, re.split(r"[,;\s]+", text)):
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,7})", part)
        if match is None:
            raise BadInput(f"a take is written as 6:2 (block 6, take 2), but got {part!r:.60}; correct it")
        number, take = int(match[1]), int(match[2])
        if not 1 <= number <= blocks:
            raise BadInput(
                f"the take {part} is of block {number}, but the run has blocks 1 to {blocks}; correct it"
            )
        if not 1 <= take <= MOST_TAKES:
            raise BadInput(f"takes are numbered from 1 to {MOST_TAKES}, but got {part}; 1 is the plain one")
        if number - 1 in takes:
            raise BadInput(f"block {number} is given two takes, {takes[number - 1]} and {take}; keep one of them")
        takes[number - 1] = take
    return {place: take for place, take in takes.items() if take > 1}
