"""Measure ways on prompts of the small world, into a file of rows in the tree that docs/study.md is printed from.

    python -m lab.research.looks places
    python -m lab.research.looks presets --prompts 60

Each look is one of MEASURED. Its rows go into docs/rows/NAME.csv one by one as they are made, and the same command
goes on after the last; seed by seed, so that a look that was stopped early has all ways of the prompts that it has.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from lab.rows import APPEND
from sdvg_core.cli import guarded
from sdvg_core.errors import BadInput
from sdvg_core.loading.load import encode_prompts
from sdvg_core.memory.budget import WEIGHTS
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.settings.route import First, Route, TargetOnly, route_preset
from tests.support.routers import planned_route

from .protocol import ANCHOR_ONLY, DRAFT_ONLY, POCKET_TAUS, TARGET_ONLY, Configuration, pick, protocol
from .statistics import cost_with
from .videos import PromptSeedJob, StudyModels, StudyOptions, load_study_models, pack, rows_of
from .world import draw_scene, held_out_prompts

ROWS = Path(__file__).parents[2] / "docs" / "rows"
FIGURES = ("quality", "last_block_quality", "at_its_place", "last_block_at_its_place")
COLUMNS = ("way", "prompt", "seed", "route", "cost", *FIGURES)
"""Of a file of rows. `prompt`: its number among the look's, from 0. `cost`: in target blocks. Empty: undefined."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is measured in one go.

    `held_out`: whether its prompts are held out of training; if not, they are for choosing.
    """

    ways: tuple[Configuration, ...]
    prompts: int = 200
    seeds: tuple[int, ...] = (42,)
    blocks: int = 9
    held_out: bool = True

    def texts(self) -> tuple[str, ...]:
        """Return its prompts."""
        return held_out_prompts(self.prompts) if self.held_out else training_prompts(self.prompts)


def training_prompts(count: int) -> tuple[str, ...]:
    """Return `count` different prompts of those that the models were trained on; always the same."""
    generator = random.Random("where the blocks of the target stand")
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(draw_scene(generator, held_out=False).text)
    return tuple(found)


# --- where the target's blocks stand


def at(places: Sequence[int], handover: int, blocks: int = 9) -> Configuration:
    """Return the way in which the target makes these blocks, counted from 1, and block 1 in any case."""
    letters = "".join("t" if block in places else "d" for block in range(1, blocks + 1))
    name = f"at-{handover}@{'+'.join(map(str, places))}"
    return Configuration(name, "at", planned_route(letters, handover=handover))


ENDS = (
    Configuration(DRAFT_ONLY, "ends", Route(First(0))),
    Configuration(ANCHOR_ONLY, "ends", Route(First(1))),
    Configuration("balanced", "ends", route_preset("balanced")),
    Configuration("careful", "ends", route_preset("careful")),
    Configuration(TARGET_ONLY, "ends", Route(TargetOnly())),
)
ONE_MORE = tuple(at((block,), 2) for block in range(3, 10))
"""Beside block 1 one more, two of its steps handed over as in *balanced*, which has block 2: 0.38 of the cost."""
TWO_MORE = tuple(at(pair, 3) for pair in ((4, 7), (5, 9), (5, 6), (3, 6), (2, 9), (6, 8), (8, 9), (2, 5)))
"""Two more, three steps handed over as in *hybrid*, for with two they cost 0.43: 0.40 of the cost."""
BALANCED = ENDS[2]

CONTROL = ("handover-2@2", "handover-2@4", "handover-2@9", "handover-3@9", "passes-2@2", "passes-2@4", "passes-2@9")

MEASURED = {
    "places": Look((BALANCED, *ONE_MORE, *TWO_MORE), held_out=False),
    "presets": Look(ENDS, seeds=(42, 43, 44)),
    "control": Look(pick(protocol(9, POCKET_TAUS), (TARGET_ONLY, *CONTROL)), prompts=100, seeds=(42, 43)),
}


# --- measuring


def main(words: Sequence[str] | None = None) -> int:
    """Make the rows that a look lacks, and return the exit code."""
    parser = argparse.ArgumentParser("python -m lab.research.looks", description=__doc__)
    parser.add_argument("look", choices=tuple(MEASURED))
    parser.add_argument("--prompts", type=int, help="only the first N")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="only these")
    parser.add_argument("--folder", type=Path, default=ROWS)
    options = parser.parse_args(words)
    return guarded(lambda: _work(options), extra="research", instead="study")


def _work(options: argparse.Namespace) -> int:
    look = MEASURED[options.look]
    file = options.folder / f"{options.look}.csv"
    known = [way.name for way in look.ways]
    if unknown := set(options.ways or ()) - set(known):
        raise BadInput(f"the look {options.look} has no way {min(unknown)}; choose among {', '.join(known)}")
    ways = tuple(way for way in look.ways if way.name in (options.ways or known))
    texts = look.texts()
    wanted = texts[: options.prompts]
    done = {(row["way"], int(row["prompt"]), int(row["seed"])) for row in rows_in(file)}
    job = StudyOptions(files=trained_set(), load=pocket_options(), blocks=look.blocks, scored=False)
    models = load_study_models(job)
    embeddings = encode_prompts(job.files, wanted, job.load)
    for seed in look.seeds:
        for number, text in enumerate(wanted):
            left = tuple(way for way in ways if (way.name, number, seed) not in done)
            if left:
                work = PromptSeedJob(prompt=text, seed=seed, configurations=left, embedding=pack(embeddings[text]))
                began = time.process_time()
                for row in _rows(models, work, number):
                    add_row(file, row)
                print(f"seed {seed}, prompt {number}: {time.process_time() - began:.1f} s", flush=True)
    return 0


def _rows(models: StudyModels, job: PromptSeedJob, number: int) -> Iterator[list[Any]]:
    cost = cost_with(WEIGHTS)
    for row in rows_of(models, job):
        measured = (row["metrics"][name] for name in FIGURES)
        figures = ("" if value is None else f"{value:.4f}" for value in measured)
        yield [row["configuration"], number, job.seed, row["route"], f"{cost(row):.4f}", *figures]


def rows_in(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none if there is no file. An incomplete last line is left out."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [*csv.DictReader(line for line in lines if line.endswith("\n"))]


def add_row(file: Path, row: Sequence[Any]) -> None:
    """Add a row, in place of an incomplete last line, under a head."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(APPEND)), file.open("a+b") as rows:
        rows.seek(0)
        content = rows.read()
        rows.truncate(content.rfind(b"\n") + 1)
        head = "" if content.count(b"\n") else ",".join(COLUMNS) + "\n"
        rows.write((head + ",".join(map(str, row)) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
