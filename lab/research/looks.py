"""Measure ways on prompts of the small world, into a file of rows in the tree that docs/study.md is printed from.

    python -m lab.research.looks places
    python -m lab.research.looks presets --prompts 60
    python -m lab.research.looks memories-21
    python -m lab.research.looks routes-21 --variants recompute

Each look is one of MEASURED. Its rows go into docs/rows/NAME.csv one by one as they are made, and the same command
goes on after the last; seed by seed, so that a look that was stopped early has all ways of the prompts that it has.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from filelock import FileLock

from lab.rows import APPEND
from sdvg_core.cli import guarded
from sdvg_core.errors import BadInput
from sdvg_core.loading.load import encode_prompts
from sdvg_core.memory.budget import WEIGHTS
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.settings.route import At, First, Route, Stride, TargetOnly, route_preset

from .metrics import BestMoment, ColourDrift, Metric
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, FIRST_TWO, POCKET_TAUS, TARGET_ONLY, Configuration, pick, protocol
from .statistics import Record, cost_with
from .variants import (
    DECODERS,
    FILES,
    HOLDS,
    MEMORIES,
    Change,
    as_shipped,
    both,
    with_fast_decoder,
    with_files,
    with_hold,
    with_memories,
)
from .videos import PromptSeedJob, StudyModels, StudyOptions, load_study_models, pack, rows_of
from .world import draw_scene, held_out_prompts

ROWS = Path(__file__).parents[2] / "docs" / "rows"
FIGURES = ("quality", "last_block_quality", "at_its_place", "last_block_at_its_place")


@dataclass(frozen=True, slots=True)
class Look:
    """What is measured in one go.

    `held_out`: whether its prompts are held out of training; if not, they are for choosing. `alone`: whether they
    are of one thing. `variants`: the forms of the models that its ways are made with, whose names are then
    WAY/VARIANT; `change` gives the models a form. `figures`: what else a row has, with its metric.
    """

    ways: tuple[Configuration, ...]
    prompts: int = 200
    seeds: tuple[int, ...] = (42,)
    blocks: int = 9
    held_out: bool = True
    alone: bool = False
    variants: tuple[str, ...] = ("",)
    change: Change = as_shipped
    figures: Mapping[str, Metric] = field(default_factory=dict)

    def texts(self) -> tuple[str, ...]:
        """Return its prompts."""
        if self.alone:
            found = (text for text in held_out_prompts(4 * self.prompts) if not parse(text).relation)
            return tuple(islice(found, self.prompts))
        return held_out_prompts(self.prompts) if self.held_out else training_prompts(self.prompts)


def training_prompts(count: int) -> tuple[str, ...]:
    """Return `count` different prompts of those that the models were trained on; always the same."""
    generator = random.Random("where the blocks of the target stand")
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(draw_scene(generator, held_out=False).text)
    return tuple(found)


# --- where the target's blocks stand


def at(places: Sequence[int], handover: int) -> Configuration:
    """Return the way in which the target makes these blocks, counted from 1, and block 1 in any case."""
    name = f"at-{handover}@{'+'.join(map(str, places))}"
    return Configuration(name, "at", Route(At(tuple(places)), handover=handover))


ENDS = (
    Configuration(DRAFT_ONLY, "ends", Route(First(0))),
    Configuration(ANCHOR_ONLY, "ends", Route(First(1))),
    FIRST_TWO,
    Configuration("careful", "ends", route_preset("careful")),
    Configuration(TARGET_ONLY, "ends", Route(TargetOnly())),
)
ONE_MORE = tuple(at((block,), 2) for block in range(3, 10))
"""Beside block 1 one more, two of its steps handed over as in FIRST_TWO, which has block 2: 0.38 of the cost."""
TWO_MORE = tuple(at(pair, 3) for pair in ((4, 7), (5, 9), (5, 6), (3, 6), (2, 9), (6, 8), (8, 9), (2, 5)))
"""Two more, three steps handed over as in *hybrid*, for with two they cost 0.43: 0.40 of the cost."""
CHOSEN = tuple(way for way in TWO_MORE if way.name in ("at-3@2+9", "at-3@2+5", "at-3@3+6"))
"""By the first 60 training prompts (lab/training/LOG.md)."""
WINNER = at((2, 5), 3)
"""By 200 training prompts (lab/training/LOG.md): held against FIRST_TWO on held-out ones, and *balanced* since."""

DRAFTER_TO_TARGET = (ENDS[0], WINNER, ENDS[-1])
"""The drafter alone, *balanced*, and the target alone."""

LONGER = (WINNER, *(at(pair, 3) for pair in ((3, 11), (5, 12), (2, 11))))
"""Blocks 2 and 5 in a clip of 21, and where they would stand as shares of its length."""

CONTROL = ("handover-2@2", "handover-2@4", "handover-2@9", "handover-3@9", "passes-2@2", "passes-2@4", "passes-2@9")


THIRTY_ONE = (
    TARGET_ONLY, "first@[2346]", "handover-*", "stride*", "random@*", ANCHOR_ONLY, "reward-min@-1",
    "reward-min@-0.7", "hybrid@*", "drafts-3:*", DRAFT_ONLY,
)  # fmt: skip


# --- long clips


def long_look(ways: Iterable[Configuration], blocks: int) -> Look:
    """Return a look at long clips of one thing with every memory."""
    return Look(
        tuple(ways),
        prompts=60,
        seeds=(42, 43, 44),
        blocks=blocks,
        alone=True,
        variants=tuple(MEMORIES),
        change=with_memories,
        figures={"late_clearness": BestMoment()},
    )


def routes_of_one_cost(blocks: int) -> tuple[Configuration, ...]:
    """Return routes with as many whole blocks of the target's as every sixth makes, and *balanced* beside them."""
    count = len(range(0, blocks, 6))
    spread = Configuration("stride@6", "stride", Route(Stride(6)))
    first = Configuration(f"first@{count}", "first", Route(First(count)))
    last = at(range(blocks - count + 2, blocks + 1), 0)
    return WINNER, spread, first, replace(last, name=f"last@{count}")


MEASURED = {
    "places": Look((FIRST_TWO, *ONE_MORE, *TWO_MORE), held_out=False),
    "places-21": Look((FIRST_TWO, *LONGER), prompts=60, blocks=21, held_out=False),
    "presets": Look((*ENDS, *CHOSEN), seeds=(42, 43, 44)),
    "control": Look(pick(protocol(9, POCKET_TAUS), (TARGET_ONLY, *CONTROL)), prompts=100, seeds=(42, 43)),
    "memories-21": long_look(DRAFTER_TO_TARGET, 21),
    "memories-42": long_look(DRAFTER_TO_TARGET, 42),
    "routes-21": long_look(routes_of_one_cost(21), 21),
    "routes-42": long_look(routes_of_one_cost(42), 42),
    "ways": Look(pick(protocol(9, POCKET_TAUS), THIRTY_ONE), prompts=100, seeds=(42, 43)),
    "formats": Look(DRAFTER_TO_TARGET, prompts=100, variants=FILES, change=with_files),
    "decoders": Look(DRAFTER_TO_TARGET, prompts=100, variants=DECODERS, change=with_fast_decoder),
    "holds-21": Look(
        DRAFTER_TO_TARGET,
        prompts=60,
        blocks=21,
        alone=True,
        variants=HOLDS,
        change=with_hold,
        figures={"late_clearness": BestMoment(), "late_drift": ColourDrift()},
    ),
}


# --- measuring


def main(words: Sequence[str] | None = None) -> int:
    """Make the rows that a look lacks, and return the exit code."""
    parser = argparse.ArgumentParser("python -m lab.research.looks", description=__doc__)
    parser.add_argument("look", choices=tuple(MEASURED))
    parser.add_argument("--prompts", type=int, metavar="N", help="only the first N")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="not the first N, which another one makes")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="only these")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="only these; drafter's+target's if two")
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
    chosen = tuple(options.variants or look.variants)
    if other := {of for name in chosen for of in both(name)} - {*look.variants}:
        choice = ", ".join(name for name in look.variants if name) or "none"
        raise BadInput(f"{min(other)!r:.40} is no variant; choose among {choice}, or two joined by +")
    texts = look.texts()[: options.prompts]
    numbered = [*enumerate(texts)][options.skip :]
    embeddings = encode_prompts(trained_set(), texts, pocket_options())
    done = {(row["way"], int(row["prompt"]), int(row["seed"])) for row in rows_in(file)}
    loaded = cache(partial(_models, look))
    for seed, (number, text), variant in product(look.seeds, numbered, chosen):
        left = tuple(way for way in ways if (_named(way.name, variant), number, seed) not in done)
        if not left:
            continue
        job = PromptSeedJob(prompt=text, seed=seed, configurations=left, embedding=pack(embeddings[text]))
        began = time.process_time()
        for row in rows_of(loaded(variant), job):
            add_row(file, _line(look, row, _named(row["configuration"], variant), number))
        print(f"seed {seed}, prompt {number} {variant}: {time.process_time() - began:.1f} s", flush=True)
    return 0


def _models(look: Look, variant: str) -> StudyModels:
    """Load the models of a look in one of its forms."""
    shipped = StudyOptions(files=trained_set(), load=pocket_options(), blocks=look.blocks, scored=False)
    models = load_study_models(look.change(shipped, variant))
    return replace(models, metrics=(*models.metrics, *look.figures.values()))


def _named(way: str, variant: str) -> str:
    return f"{way}/{variant}" if variant else way


def _line(look: Look, row: Record, way: str, number: int) -> dict[str, Any]:
    """Return a row of the file by its columns."""
    figures = {name: row["metrics"][name] for name in (*FIGURES, *look.figures)}
    return {
        **{"way": way, "prompt": number, "seed": row["seed"], "route": row["route"]},
        "cost": f"{cost_with(WEIGHTS)(row):.4f}",
        **{name: "" if value is None else f"{value:.4f}" for name, value in figures.items()},
    }


def rows_in(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none if there is no file. An incomplete last line is left out."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [*csv.DictReader(line for line in lines if line.endswith("\n"))]


def add_row(file: Path, row: Mapping[str, Any]) -> None:
    """Add a row, in place of an incomplete last line, under a head. Raises `BadInput` under another head."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(APPEND)), file.open("a+b") as rows:
        rows.seek(0)
        content = rows.read()
        rows.truncate(content.rfind(b"\n") + 1)
        head = ",".join(row) + "\n"
        if b"\n" not in content:
            rows.write(head.encode())
        elif not content.startswith(head.encode()):
            raise BadInput(f"{file} has other columns than {head.strip()}; move it away")
        rows.write((",".join(map(str, row.values())) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
