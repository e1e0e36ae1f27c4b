"""Compare ways to choose how many first blocks a prompt gets, on prompts that none of them has seen.

    python3 dev.py study --learn --prompts 200 --seeds 42 43 --configurations 'first@*' --output out/learn
    python -m research.routes_by_prompt out/learn --learned-from 100

Reads the rows and gains of such a study on the embedded models. Each way is learned from the first prompts and
tried on the others. The table says how much better it is than as many first blocks for all at the same mean cost,
with its scores and drafts paid for, the mean over 2 to 7 of nine blocks: in decibels, in levels of 255 (root mean
square), and as the share of videos that lose. The finding is in docs/study.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sdvg_core.cli import guarded
from sdvg_core.pipeline.learned import pooled
from sdvg_core.pipeline.loading import encode_prompts
from sdvg_core.plan.request import PlanRequest
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_options, trained_set

from .folder import read_records
from .learn import fit, out_of_fold, shape_of
from .markdown import markdown
from .protocol import ANCHOR_ONLY, TARGET_ONLY
from .statistics import Array, Bootstrap, Counts, Interval, cost_with, interval, metric, pass_weights
from .videos import GAINS, ROWS
from .world import held_out_prompts

Choose = Callable[[float], Counts]
"""Gets a price or a threshold, and returns the first blocks of every video: the higher it is, the fewer."""


def main(words: list[str] | None = None) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser("python -m research.routes_by_prompt", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--learned-from", type=int, default=100, metavar="N")
    options = parser.parse_args(words)
    return guarded(lambda: _work(options.folder, options.learned_from), extra="research", instead="study")


def _work(folder: Path, learned_from: int) -> int:
    rows, gains = (read_records(folder / name) for name in (ROWS, GAINS))
    known = {row["prompt"] for row in rows.values()}
    prompts = [text for text in held_out_prompts(len(known)) if text in known]
    seeds = sorted({row["seed"] for row in rows.values()})
    blocks = 2 + len({name for name, *_ in rows if name.startswith("first@")})
    ways = (ANCHOR_ONLY, *(f"first@{m}" for m in range(2, blocks)), TARGET_ONLY)
    weights = pass_weights(PlanRequest())

    def table(of: Callable[..., float]) -> Array:
        """Return a number of every chain, `(prompts, seeds, blocks)`."""
        return np.array([[[of(rows[way, p, seed]) for way in ways] for seed in seeds] for p in prompts])

    def scores(name: str) -> Array:
        """Return a score of every later block on the target's own history, `(prompts, seeds, blocks - 1)`."""
        found = [[[gains[p, s, b][name] for b in range(1, blocks)] for s in seeds] for p in prompts]
        return np.array(found)

    quality, reward, rmse, cost = map(table, (*map(metric, ("quality", "reward_mean", "rmse")), cost_with(weights)))
    own, draft = scores("target_worst_score"), scores("worst_score")
    embeddings = encode_prompts(trained_set(), prompts, pocket_options())
    read = np.stack([pooled(embeddings[text]) for text in prompts])
    classes = np.array([bool(parse(text).relation) for text in prompts])
    look = weights["scores"], 4 * weights["drafter_denoising"] + weights["decodes"] + weights["scores"]
    past, rest = slice(None, learned_from), slice(learned_from, None)
    other_gain, shape = (quality[..., -1] - quality[..., 0])[rest], shape_of(blocks, quality[past].mean(axis=1))
    predicted = by_ridge(read, quality, past)
    left = left_to_gain(own, predicted, quality, past)
    found: dict[str, tuple[Choose, float]] = {
        "hindsight: the best m of each video": (by_value(quality[rest]), 0),
        "its chain under the other seed": (by_value(quality[rest][:, ::-1]), 0),
        "its gain under the other seed": (by_value(other_gain[:, ::-1, None] * shape), 0),
        "knowing one thing or two": (by_value(by_class(classes, quality, past)[rest]), 0),
        "ridge on the prompt's embedding": (by_value(predicted[rest]), 0),
        "the same, the reward as label": (by_value(by_ridge(read, reward, past)[rest]), 0),
        "target while its own score >= tau": (while_above(from_second(own)[rest]), look[0]),
        "target until a draft's score >= tau": (while_above(-draft[rest]), look[1]),
        "own scores so far and embedding": (while_above(left[rest]), look[0]),
    }
    bootstrap = Bootstrap(len(prompts) - learned_from)
    print(f"learned from {learned_from} prompts, tried on {len(prompts) - learned_from}; seeds {seeds}\n")
    body = []
    for name, (choose, price) in found.items():
        decibels, lose = better(choose, quality[rest], cost[rest], price, bootstrap)
        levels, _ = better(choose, -rmse[rest], cost[rest], price, bootstrap)
        body.append(
            [name, *(f"{i.value:+.2f} [{i.low:+.2f}, {i.high:+.2f}]" for i in (decibels, levels)), f"{lose:.0%}"]
        )
    print(markdown(("way", "dB", "RMSE, levels", "videos that lose"), body))
    return 0


# --- ways to choose


def by_value(values: Array) -> Choose:
    """Choose the m with the largest value, `(prompts, seeds, blocks)`, less a price for each further block."""
    return lambda price: 1 + (values - price * np.arange(values.shape[-1])).argmax(axis=-1)


def while_above(signal: Array) -> Choose:
    """Let the target go on while the signal after its newest block, `(prompts, seeds, blocks - 1)`, is high."""
    return lambda least: 1 + np.cumprod(signal >= least, axis=-1).sum(axis=-1)


def from_second(own: Array) -> Array:
    """Return the target's scores as a signal after each block but the last; the first block's is never too low."""
    return np.concatenate([np.full_like(own[..., :1], np.inf), own[..., :-1]], axis=-1)


def by_class(classes: Array, quality: Array, past: slice) -> Array:
    """Return the mean chain of a prompt's class."""
    means = {one: quality[past][classes[past] == one].mean(axis=(0, 1)) for one in (False, True)}
    return np.stack([np.broadcast_to(means[bool(one)], quality.shape[1:]) for one in classes])


def by_ridge(read: Array, number: Array, past: slice) -> Array:
    """Return what each m gains by the learned route's formula: the predicted gain by the mean shape."""
    chains = number.mean(axis=1)
    mean, deviation, weights, bias = fit(read[past], chains[past, -1] - chains[past, 0])
    gain = bias + (read - mean) / deviation @ weights
    gain[past] = out_of_fold(read[past], chains[past, -1] - chains[past, 0])
    values = gain[:, None] * shape_of(number.shape[-1], chains[past])
    return np.broadcast_to(values[:, None], number.shape)


def left_to_gain(own: Array, predicted: Array, quality: Array, past: slice) -> Array:
    """Return what the target would still gain for each block left, predicted after each of its blocks."""
    found = []
    for made in range(1, quality.shape[-1]):
        seen = own[..., : max(made - 1, 1)] * (made > 1)  # the first block has no score
        features = np.stack([seen[..., -1], seen.mean(axis=-1), predicted[..., -1]], axis=-1)
        label = (quality[..., -1] - quality[..., made - 1]) / (quality.shape[-1] - made)
        flat = features[past].reshape(-1, features.shape[-1])
        mean, deviation, weights, bias = fit(flat, label[past].ravel())
        found.append(bias + (features - mean) / deviation @ weights)
    return np.stack(found, axis=-1)


# --- what they are worth


def better(choose: Choose, number: Array, cost: Array, look: float, bootstrap: Bootstrap) -> tuple[Interval, float]:
    """Return how much better a way is than first m at its own mean cost, and the share of videos that lose.

    `number`, `cost`: of every chain, `(prompts, seeds, blocks)`, more is better; `look`: what a look costs.
    """
    above, lose = [], []
    firsts, costs = (bootstrap.means(of.mean(axis=1)) for of in (number, cost))
    for m in range(2, number.shape[-1] - 1):
        chosen = choose(threshold(choose, m))
        mine, made = (np.take_along_axis(of, chosen[..., None] - 1, axis=-1)[..., 0] for of in (number, cost))
        paid = made + look * chosen.clip(max=number.shape[-1] - 1)
        spent = bootstrap.means(paid.mean(axis=1))
        same = [np.interp(at, x, y) for at, x, y in zip(spent, costs, firsts, strict=True)]
        above.append(bootstrap.means(mine.mean(axis=1)) - np.array(same))
        alike = [[np.interp(spent[0], costs[0], chain) for chain in video] for video in number]
        lose.append((mine < np.array(alike) - 1e-9).mean())
    found = interval(np.mean(above, axis=0))
    assert found is not None
    return found, float(np.mean(lose))


def threshold(choose: Choose, mean: float) -> float:
    """Return the lowest price or threshold at which the videos take at most so many first blocks on average."""
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if choose(middle).mean() <= mean else (middle, high)
    return high


if __name__ == "__main__":
    sys.exit(main())
