"""Compute everything a study still lacks, and save it row by row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ..plan.request import PlanRequest
from .costs import Weights, pass_weights
from .protocol import Configuration
from .store import GAIN_KEY, GAINS, ROW_KEY, ROWS, JsonLines, Record
from .unit import Unit, pack
from .workers import Finished, Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study covers: every prompt with every seed in every configuration.

    `gains`: also measure what the target would have gained on each of the `blocks` of the anchor-only video.
    `weights`: the cost of each kind of pass, in target blocks (see `costs`). `classes`: the class of each prompt
    that has one.
    """

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    configurations: tuple[Configuration, ...]
    blocks: int
    gains: bool = True
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
        self.gains = JsonLines(folder / GAINS, GAIN_KEY)

    def add(self, found: Found) -> None:
        """Save a record."""
        {ROWS: self.rows, GAINS: self.gains}[found.file].add(found.record)

    def missing(self, plan: Plan) -> list[tuple[str, int, tuple[Configuration, ...], bool]]:
        """For every incomplete pair, return prompt, seed, missing configurations, and whether gains are missing."""
        found = []
        for prompt, seed in plan.pairs:
            wanted = tuple(c for c in plan.configurations if (c.name, prompt, seed) not in self.rows.records)
            known = sum((prompt, seed, block) in self.gains.records for block in range(1, plan.blocks))
            gains = plan.gains and known < plan.blocks - 1
            if wanted or gains:
                found.append((prompt, seed, wanted, gains))
        return found

    def rows_of(self, plan: Plan) -> list[Record]:
        """Return the rows that the plan asks for, in its order."""
        keys = ((c.name, *pair) for c in plan.configurations for pair in plan.pairs)
        return [self.rows.records[key] for key in keys if key in self.rows.records]

    def gains_of(self, plan: Plan) -> list[Record]:
        """Return the gains of the plan's pairs, in its order."""
        keys = ((*pair, block) for pair in plan.pairs for block in range(1, plan.blocks))
        return [self.gains.records[key] for key in keys if key in self.gains.records]


def fill(
    notebook: Notebook,
    plan: Plan,
    embeddings_of: Callable[[Iterable[str]], Mapping[str, Tensor]],
    work: Callable[[Sequence[Unit]], Iterable[Found | Finished]],
    say: Callable[[str], None],
) -> None:
    """Compute what is missing. If nothing is, load nothing.

    `embeddings_of`: encodes prompts. `work`: computes the records of units. `say`: receives lines of progress.
    """
    missing = notebook.missing(plan)
    if not missing:
        return
    embeddings = embeddings_of(dict.fromkeys(prompt for prompt, *_ in missing))
    units = [
        Unit(prompt=prompt, seed=seed, embedding=pack(embeddings[prompt]), configurations=wanted, gains=gains)
        for prompt, seed, wanted, gains in missing
    ]
    began, done = time.monotonic(), 0
    for news in work(units):
        if isinstance(news, Found):
            notebook.add(news)
            continue
        done += 1
        left = (time.monotonic() - began) / done * (len(units) - done)
        say(
            f"{done}/{len(units)}  {len(news.unit.configurations)} rows of {news.unit.prompt!r}, seed "
            f"{news.unit.seed}; {_minutes(left)} left"
        )


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d}"
