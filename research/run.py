"""Compute everything a study still lacks, and save it row by row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from sdvg_core.errors import BadInput
from sdvg_core.plan.request import PlanRequest
from sdvg_core.workers.news import Failed, Heard, News

from .costs import Weights, pass_weights
from .protocol import Configuration
from .store import BLOCK_KEY, GAINS, JUDGED, ROW_KEY, ROWS, JsonLines, Record
from .unit import Unit, pack
from .worker import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study covers: every prompt with every seed in every configuration.

    `gains`: also measure what the target would have gained on each of the `blocks` of the anchor-only video.
    `judged`: also score each of its drafts as the full VAE and as the judge show it.
    `weights`: the cost of each kind of pass, in target blocks (see `costs`). `classes`: the class of each prompt
    that has one.
    """

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    configurations: tuple[Configuration, ...]
    blocks: int
    gains: bool = True
    judged: bool = False
    weights: Weights = field(default_factory=lambda: pass_weights(PlanRequest()))
    classes: Mapping[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[tuple[str, int], ...]:
        """Every prompt with every seed; the rows of one pair differ only by the route."""
        return tuple((prompt, seed) for prompt in self.prompts for seed in self.seeds)


class Notebook:
    """The records in a study's folder."""

    def __init__(self, folder: Path) -> None:
        self.rows = JsonLines(folder / ROWS, ROW_KEY)
        self.gains = JsonLines(folder / GAINS, BLOCK_KEY)
        self.judged = JsonLines(folder / JUDGED, BLOCK_KEY)

    def add(self, found: Found) -> None:
        """Save a record."""
        {ROWS: self.rows, GAINS: self.gains, JUDGED: self.judged}[found.file].add(found.record)

    def missing(self, plan: Plan) -> list[tuple[str, int, tuple[Configuration, ...], bool, bool]]:
        """For every incomplete pair, return prompt, seed, missing configurations, and which of its blocks are.

        The last two say whether gains are missing, and scores by the judge.
        """
        found = []
        for prompt, seed in plan.pairs:
            wanted = tuple(c for c in plan.configurations if (c.name, prompt, seed) not in self.rows.records)
            gains = plan.gains and self._lacks(self.gains, plan, prompt, seed)
            judged = plan.judged and self._lacks(self.judged, plan, prompt, seed)
            if wanted or gains or judged:
                found.append((prompt, seed, wanted, gains, judged))
        return found

    @staticmethod
    def _lacks(lines: JsonLines, plan: Plan, prompt: str, seed: int) -> bool:
        return any((prompt, seed, block) not in lines.records for block in range(1, plan.blocks))

    def rows_of(self, plan: Plan) -> list[Record]:
        """Return the rows that the plan asks for, in its order."""
        keys = ((c.name, *pair) for c in plan.configurations for pair in plan.pairs)
        return [self.rows.records[key] for key in keys if key in self.rows.records]

    def gains_of(self, plan: Plan) -> list[Record]:
        """Return the gains of the plan's pairs, in its order."""
        return self._of_blocks(self.gains, plan)

    def judged_of(self, plan: Plan) -> list[Record]:
        """Return the drafts' scores by both decoders, in the plan's order."""
        return self._of_blocks(self.judged, plan)

    @staticmethod
    def _of_blocks(lines: JsonLines, plan: Plan) -> list[Record]:
        keys = ((*pair, block) for pair in plan.pairs for block in range(1, plan.blocks))
        return [lines.records[key] for key in keys if key in lines.records]


def fill(
    notebook: Notebook,
    plan: Plan,
    embeddings_of: Callable[[Iterable[str]], Mapping[str, Tensor]],
    work: Callable[[Sequence[Unit]], Iterable[News[Unit]]],
    say: Callable[[str], None],
) -> None:
    """Compute what is missing. If nothing is, load nothing.

    `embeddings_of`: encodes prompts. `work`: computes the records of units. `say`: receives lines of progress.
    Raises `BadInput` if no worker can finish a unit.
    """
    missing = notebook.missing(plan)
    if not missing:
        return
    embeddings = embeddings_of(dict.fromkeys(prompt for prompt, *_ in missing))
    units = [
        Unit(
            prompt=prompt,
            seed=seed,
            embedding=pack(embeddings[prompt]),
            configurations=wanted,
            gains=gains,
            judged=judged,
        )
        for prompt, seed, wanted, gains, judged in missing
    ]
    began, done = time.monotonic(), 0
    for news in work(units):
        unit = news.task
        if isinstance(news, Heard):
            notebook.add(news.said)
            continue
        if isinstance(news, Failed):
            _take_note(news, say)
            continue
        done += 1
        left = (time.monotonic() - began) / done * (len(units) - done)
        say(
            f"{done}/{len(units)}  {len(unit.configurations)} rows of {unit.prompt!r}, seed {unit.seed}; "
            f"{_minutes(left)} left"
        )


def _take_note(failed: Failed[Unit], say: Callable[[str], None]) -> None:
    what = f"{failed.task.prompt!r}, seed {failed.task.seed}"
    if failed.again:
        say(f"{what}: {failed.reason}; it is tried once more")
        return
    raise BadInput(
        f"no worker finished {what}: {failed.reason}; all rows so far are kept: call the study again, with fewer "
        "--workers if memory was short"
    )


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"
