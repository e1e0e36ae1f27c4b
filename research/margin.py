"""Choose the margin of the cascade on training prompts of the pocket world.

    python -m research.margin --prompts 24

Every draft that the gate meets at tau -0.7 is scored whole. Its drop is how far the worst of all its frames lies
below the worst of the four that a cascade scores first: only a draft with a drop above the margin can be kept
wrongly, at whichever tau. The margin is the drop that MOST_WRONG of the drafts exceed, rounded up to a twentieth.
No held-out prompt is read. The finding is in docs/study.md.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from functools import partial

import torch

from sdvg_core.cli import guarded
from sdvg_core.engine.router import RouterConfig, evenly_spaced
from sdvg_core.engine.types import Condition
from sdvg_core.models.headers import check_models
from sdvg_core.models.loading import encode_prompts, load_models
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.pocket.world import SIZE

from .markdown import markdown
from .observed import plan_run
from .world import draw_scene

GATE = RouterConfig()
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
MOST_WRONG = 0.01
STEP = 0.05


def main(words: Sequence[str] | None = None) -> int:
    """Score the drafts, print the table and the choice, and return the exit code."""
    parser = argparse.ArgumentParser("python -m research.margin", description=__doc__)
    parser.add_argument("--prompts", type=int, default=24)
    options = parser.parse_args(words)
    return guarded(lambda: _work(options.prompts), extra="research", instead="study")


def _work(count: int) -> int:
    torch.set_num_threads(1)
    drafts = [scores for scores in scored_drafts(count) if len(scores)]
    drops = torch.tensor([drop(scores) for scores in drafts])
    margin = margin_of(drops)
    unclear = sum(0 <= first_worst(scores) - GATE.tau < margin for scores in drafts) / len(drafts)
    rows = [[f"{share:.0%}", f"{drops.quantile(1 - share):.3f}"] for share in SHARES]
    print(
        f"{count} training prompts, {len(drafts)} drafts",
        markdown(("of the drafts", "drop above"), rows),
        sep="\n\n",
    )
    print(f"\nmargin {margin:g}; at tau {GATE.tau:g}, {unclear:.0%} of the drafts are scored whole")
    return 0


def margin_of(drops: torch.Tensor) -> float:
    """Return the margin for the drops of drafts."""
    return math.ceil(float(drops.quantile(1 - MOST_WRONG)) / STEP) * STEP


def first_worst(scores: torch.Tensor) -> float:
    """Return the score of the worst of the frames that are scored first."""
    return float(scores[list(evenly_spaced(len(scores)))].min())


def drop(scores: torch.Tensor) -> float:
    """Return how far the worst of all frames lies below it."""
    return first_worst(scores) - float(scores.min())


def scored_drafts(count: int) -> list[torch.Tensor]:
    """Return the frame scores of the blocks that the gate makes under training prompts; none if unscored."""
    generator = random.Random(1)
    prompts = [draw_scene(generator, held_out=False).text for _ in range(count)]
    files, load = trained_set(), pocket_options()
    embeddings = encode_prompts(files, prompts, load)
    models = load_models(files, load, check_models(files, load))
    scores = []
    for text in prompts:
        conditions = partial(_shown, Condition(embeddings[text], text, text))
        run = plan_run(models.build(), GATE, conditions, blocks=9, seed=42, width=SIZE, height=SIZE)
        scores += [torch.tensor(emitted.record.decision.known_scores) for emitted in run.blocks()]
    return scores


def _shown(condition: Condition, index: int) -> Condition:
    return condition


if __name__ == "__main__":
    sys.exit(main())
