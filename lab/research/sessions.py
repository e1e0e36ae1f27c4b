"""Measure the ways to finish a live run of the miniature, into docs/rows/sessions.csv.

    python -m lab.research.sessions
    python -m lab.research.sessions --sessions 10

A session is what the drafter makes alone while its prompt is changed twice: a thing on its way, then the same in
another colour over another ground, and once more. So the oracle knows at every block what is due. Each way makes
the session's recording again. Rows are added one by one, and the same command goes on after the last.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdvg_core.cli import guarded
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.speculate import EmittedBlock
from sdvg_core.engine.types import Condition
from sdvg_core.loading.load import encode_prompts
from sdvg_core.memory.budget import WEIGHTS
from sdvg_core.pocket.oracle import BEST, judge
from sdvg_core.pocket.presence import LEAST_PIXELS, pixels_of_mover
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.pocket.world import COLOURS, GROUNDS, Scene, clash
from sdvg_core.report.run_report import passes_of
from sdvg_core.report.summary import OUTCOME_LETTERS, outcome_of
from sdvg_core.settings.route import First, Refine, Route

from .looks import ROWS, add_row, rows_in
from .memo import SharedEngine
from .protocol import DRAFT_ONLY, FIRST_TWO, Configuration
from .statistics import cost_with
from .videos import StudyModels, StudyOptions, load_study_models
from .world import draw_scene, is_held_out

FILE = "sessions.csv"
SESSIONS = 60
PROMPTS = 3
BLOCKS_EACH = 3
SEED = 42
FINISHES = (
    Configuration(DRAFT_ONLY, "ends", Route(First(0))),
    Configuration("again", "again", FIRST_TWO.route),
    Configuration("refine-light", "refine", Route(Refine("light"))),
    Configuration("refine-medium", "refine", Route(Refine("medium"))),
    Configuration("refine-strong", "refine", Route(Refine("strong"))),
)
"""What the session itself is, then the ways to finish it; *again* is with the first two blocks."""


# --- the sessions


def sessions(count: int) -> tuple[tuple[Scene, ...], ...]:
    """Return the scenes of `count` sessions, all held out of training; always the same."""
    generator = random.Random("a live run is steered")
    found: dict[tuple[Scene, ...], None] = {}
    while len(found) < count:
        first = draw_scene(generator, held_out=True)
        others = [scene for scene in _recoloured(first) if is_held_out(scene)]
        generator.shuffle(others)
        for second in others:
            third = next((scene for scene in others if _differ(scene, second)), None)
            if third and not first.relation:
                found.setdefault((first, second, third))
                break
    return tuple(found)[:count]


def _recoloured(scene: Scene) -> Iterator[Scene]:
    """Yield the scenes that show the same thing on the same way, in another colour over another ground."""
    for colour in COLOURS:
        for ground in GROUNDS:
            other = replace(scene, mover=replace(scene.mover, colour=colour), ground=ground)
            if _differ(other, scene) and clash(other) is None:
                yield other


def _differ(scene: Scene, other: Scene) -> bool:
    return scene.mover.colour != other.mover.colour and scene.ground != other.ground


# --- what a video shows of its session


@dataclass(frozen=True, slots=True)
class Part:
    """The frames of a video that have one prompt, from `first` up to `stop`."""

    scene: Scene
    first: int
    stop: int


def parts_of(scenes: Sequence[Scene], lengths: Sequence[int]) -> tuple[Part, ...]:
    """Return the parts of a video with these scenes. `lengths`: pixel frames of its blocks."""
    ends = [0, *accumulate(lengths)][::BLOCKS_EACH]
    return tuple(Part(scene, *span) for scene, span in zip(scenes, pairwise(ends), strict=True))


def likeness(frames: Tensor, parts: Sequence[Part]) -> Tensor:
    """Return how near each frame of `f c h w` is to what its prompt determines, `(f,)` decibels."""
    return torch.cat([judge(frames, part.scene).quality[part.first : part.stop] for part in parts])


def nearness(frames: Tensor, draft: Tensor) -> Tensor:
    """Return how near each frame is to the draft's, `(f,)` decibels, at most those that count as equal."""
    errors = (frames - draft).square().mean(dim=(1, 2, 3))
    return (-10 * errors.clamp(min=1e-12).log10()).clamp(max=BEST)


def overlap(frames: Tensor, draft: Tensor, parts: Sequence[Part]) -> Tensor:
    """Return for each frame what share of the thing's pixels, in it or in the draft, are in both, `(f,)`.

    NaN where the draft does not show it.
    """
    shares = []
    for part in parts:
        here, there = (pixels_of_mover(clip[part.first : part.stop], part.scene) for clip in (frames, draft))
        both, either = ((mask).sum(dim=(1, 2)).float() for mask in (here & there, here | there))
        unseen = there.sum(dim=(1, 2)) < LEAST_PIXELS
        shares.append((both / either.clamp(min=1)).masked_fill(unseen, torch.nan))
    return torch.cat(shares)


def figures(frames: Tensor, draft: Tensor, parts: Sequence[Part], last: int) -> dict[str, float]:
    """Return the means of a video over its frames, and over those of the last block from frame `last` on."""
    of_frames = {
        "quality": likeness(frames, parts),
        "to_draft": nearness(frames, draft),
        "overlap": overlap(frames, draft, parts),
    }
    whole = {name: float(values.nanmean()) for name, values in of_frames.items()}
    return {**whole, **{f"last_block_{name}": float(values[last:].nanmean()) for name, values in of_frames.items()}}


# --- measuring


def main(words: Sequence[str] | None = None) -> int:
    """Make the rows that are missing, and return the exit code."""
    parser = argparse.ArgumentParser("python -m lab.research.sessions", description=__doc__)
    parser.add_argument(
        "--sessions", type=int, default=SESSIONS, metavar="N", help=f"only the first N of {SESSIONS}"
    )
    parser.add_argument("--folder", type=Path, default=ROWS)
    options = parser.parse_args(words)
    return guarded(lambda: _work(options), extra="research", instead="study")


def _work(options: argparse.Namespace) -> int:
    file = options.folder / FILE
    chosen = sessions(SESSIONS)[: options.sessions]
    texts = dict.fromkeys(scene.text for scenes in chosen for scene in scenes)
    embeddings = encode_prompts(trained_set(), [*texts], pocket_options())
    conditions = {text: Condition(embeddings[text], text) for text in texts}
    done = {(row["way"], int(row["prompt"])) for row in rows_in(file)}
    study = StudyOptions(files=trained_set(), load=pocket_options(), blocks=PROMPTS * BLOCKS_EACH, scored=False)
    models = load_study_models(study)
    for number, scenes in enumerate(chosen):
        left = [way for way in FINISHES if (way.name, number) not in done]
        if not left:
            continue
        began = time.process_time()
        for row in rows_of_session(models, scenes, [conditions[scene.text] for scene in scenes], left):
            add_row(file, {"way": row.pop("way"), "prompt": number, "seed": SEED, **row})
        print(f"session {number}: {time.process_time() - began:.1f} s", flush=True)
    return 0


def rows_of_session(
    models: StudyModels, scenes: Sequence[Scene], conditions: Sequence[Condition], ways: Sequence[Configuration]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each way, as text."""
    sharing = SharedEngine(models.engine, models.memo_bytes)
    draft: Tensor | None = None
    for way in (FINISHES[0], *(way for way in ways if way != FINISHES[0])):
        run = plan_run(
            sharing.engine(Counter()),
            way.route,
            lambda index: conditions[index // BLOCKS_EACH],
            blocks=models.blocks,
            seed=SEED,
            width=models.width,
            height=models.height,
        )
        emitted = list(run.blocks())
        frames = torch.cat([block.frames for block in emitted], dim=1)[0].cpu()
        draft = frames if draft is None else draft
        if way not in ways:
            continue
        lengths = [block.frames.shape[1] for block in emitted]
        made = figures(frames, draft, parts_of(scenes, lengths), len(frames) - lengths[-1])
        yield {
            "way": way.name,
            "route": "".join(OUTCOME_LETTERS[outcome_of(block.record)] for block in emitted),
            "cost": f"{finishing_cost(emitted):.4f}",
            **{name: "" if value != value else f"{value:.4f}" for name, value in made.items()},
        }


def finishing_cost(emitted: Sequence[EmittedBlock]) -> float:
    """Return the cost of a video in target blocks. The drafts that are refined are there already."""
    records = [block.record for block in emitted]
    records = [replace(record, draft=None) if record.refined else record for record in records]
    passes: Mapping[str, int] = {**passes_of(records), "scores": 0}
    return cost_with(WEIGHTS)({"passes": passes})


if __name__ == "__main__":
    sys.exit(main())
