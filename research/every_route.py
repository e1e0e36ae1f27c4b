"""Make every route that leaves the target the first block, and show the room above *the first m blocks*.

    python -m research.every_route --blocks 7 --prompts 100 --seeds 42 43 --output out/routes

2^(blocks - 1) videos a prompt and seed, which share their beginnings; the other options are those of a study. For
each number of target calls: routes at random, the first ones, the best fixed set of blocks (chosen on all other
prompts), and the best route of each video, which only hindsight knows. Then no more calls on the mean, spread
unevenly over videos. Writes room.json, room.md and room.png. The finding is in docs/study.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sdvg_core.cli import guarded
from sdvg_core.engine.router import RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import staged_outputs

from .folder import Notebook, Plan
from .markdown import Numbers, markdown, with_interval
from .plots import BLACK, GREEN, GREY, ORANGE, Look, figure, titled
from .protocol import Configuration
from .statistics import Array, Bootstrap, Interval, Record, as_json, interval
from .study import make_and_show, make_parser
from .summary import QUALITIES, conditions_of, opening

MOST_BLOCKS = 10
"""Each block more doubles the number of routes."""

PRICES = np.concatenate(([0.0], np.geomspace(1e-4, 2.0, 200)))
"""What a target call must gain for a video to be given one more. 1 is the best route of a video less its worst.

So a metric may have any unit. It is 1 for the video where the two differ most.
"""

COLUMNS = {
    "random": "random",
    "first m": "first",
    "best fixed set": "fixed",
    "best of each video": "best",
    "first m - random": "first_minus_random",
    "fixed set - first m": "fixed_minus_first",
    "best - first m": "best_minus_first",
    "uneven m - first m": "uneven_first_minus_first",
    "uneven, any - first m": "uneven_minus_first",
}
ROOM = {
    "best": Look("best route of each video (hindsight)", GREEN, "^", "--"),
    "first": Look("first m blocks the target's", BLACK, "o", "-"),
    "fixed": Look("best fixed set of the other prompts", ORANGE, "s", "--"),
    "random": Look("random", GREY, "o", "-"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Make the videos, show what they say, and return the exit code."""
    options = make_parser("python -m research.every_route", __doc__).parse_args(words)
    work = partial(make_and_show, options, lambda job: every_route(job.blocks), _show)
    return guarded(work, extra="research", instead="study")


def every_route(blocks: int) -> tuple[Configuration, ...]:
    """Return all routes of models for the blocks after the first, which is the target's.

    Raises `BadInput` if there are too many.
    """
    if blocks > MOST_BLOCKS:
        videos = f"{2 ** (blocks - 1)} videos a prompt"
        raise BadInput(f"every route of {blocks} blocks would be {videos}; ask for at most {MOST_BLOCKS} blocks")
    scripts = ("t" + "".join(letters) for letters in product("td", repeat=blocks - 1))
    return tuple(
        Configuration(f"route@{script}", "route", RouterConfig(policy="scripted", script=script))
        for script in scripts
    )


def room_above(rows: Sequence[Record], plan: Plan, quality: str) -> list[dict[str, Any]]:
    """Return what each number of target calls gives, by how they are chosen. The plan has every route."""
    found = {(row["configuration"], row["prompt"], row["seed"]): row["metrics"][quality] for row in rows}
    names = [c.name for c in plan.configurations]
    scripts = [c.router.script for c in plan.configurations]
    values = np.array([[[found[n, prompt, seed] for n in names] for seed in plan.seeds] for prompt in plan.prompts])
    calls, bootstrap = np.array([script.count("t") for script in scripts]), Bootstrap(len(plan.prompts))
    first = [scripts.index("t" * m + "d" * (plan.blocks - m)) for m in range(1, plan.blocks + 1)]
    everything = list(range(len(scripts)))

    room = []
    for m in range(1, plan.blocks + 1):
        same, firsts = values[:, :, calls == m], values[:, :, first[m - 1]]
        fixed, best, chance = _fixed(same), same.max(axis=2), same.mean(axis=2)
        at = {"random": chance, "first": firsts, "fixed": fixed, "best": best}
        at |= {f"{name}_minus_first": at[name] - firsts for name in ("fixed", "best")}
        at["first_minus_random"] = firsts - chance
        uneven = {"uneven_first_minus_first": first, "uneven_minus_first": everything}
        means = {name: bootstrap.mean(gained.mean(axis=1)) for name, gained in at.items()}
        rest = {n: _uneven(values, calls, m, among, firsts, bootstrap) for n, among in uneven.items()}
        room.append({"calls": m, **means, **rest})
    return room


def _fixed(same: Array) -> Array:
    """Return, for each prompt, the route that is best on average over all other prompts: `(prompts, seeds)`."""
    of_prompts = same.mean(axis=1)
    chosen = (of_prompts.sum(axis=0) - of_prompts).argmax(axis=1)
    fixed: Array = same[np.arange(len(same)), :, chosen]
    return fixed


def _uneven(
    values: Array, calls: Array, m: int, among: Sequence[int], firsts: Array, bootstrap: Bootstrap
) -> Interval | None:
    """Return what hindsight gains over the first m with no more calls on the mean.

    Each video takes the route that is best at a price per call; a mean number of calls lies between two prices.
    At no price it takes as many as it is best with, and further calls are left over.
    """
    quality, spent = values[:, :, among], calls[among]
    chosen = [(quality - price * spent).argmax(axis=2) for price in PRICES * np.ptp(quality, axis=2).max()]
    gained = np.stack([np.take_along_axis(quality, c[:, :, None], axis=2)[:, :, 0].mean(axis=1) for c in chosen], 1)
    taken = np.stack([spent[c].mean(axis=1) for c in chosen], 1)
    curves = zip(bootstrap.means(taken), bootstrap.means(gained), strict=True)
    read_off = np.array([np.interp(m, cost[::-1], value[::-1]) for cost, value in curves])
    return interval(read_off - bootstrap.means(firsts.mean(axis=1)))


def _show(options: argparse.Namespace, notebook: Notebook, plan: Plan) -> None:
    rows = notebook.rows_of(plan)
    quality = next(name for name in QUALITIES if name in rows[0]["metrics"])
    room = as_json(room_above(rows, plan, quality), len(plan.prompts))
    found: Numbers = {**conditions_of(plan, quality), "room": room}
    with staged_outputs(options.output) as staging:
        staging.path("room.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        staging.path("room.md").write_text(room_text(found), encoding="utf-8")
        with figure(staging.path("room.png")) as axes:
            for name, look in ROOM.items():
                line = [(at["calls"], at[name]["value"]) for at in found["room"]]
                axes.plot(*zip(*line, strict=True), **look.style)
            title = "The room above the first m blocks, over every route"
            titled(axes, title, "target calls per video", found["quality"]["words"], frameon=False, loc="best")
    print(json.dumps(found) if options.json else room_text(found))


def room_text(found: Numbers) -> str:
    """Return what every number of target calls gives, as a page."""
    rows = [
        [str(at["calls"]), *(with_interval(at[name], "+" if "minus" in name else "") for name in COLUMNS.values())]
        for at in found["room"]
    ]
    return (
        f"{opening(found, 'every route')}\n\n## The room above the first m blocks\n\nOver every route that leaves "
        "the target the first block. The best fixed set is chosen on all other prompts. The best of each "
        "video, and no more calls spread unevenly over videos, are hindsight: no router knows them.\n\n"
        f"{markdown(('target calls', *COLUMNS), rows)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
