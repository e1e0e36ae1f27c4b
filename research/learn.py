"""Learn from a study which prompts gain most from the target, and write it as a file for `generate --learned`.

A prompt's gain is the quality of its target-only video less that of its anchor-only one, the mean over seeds. A
ridge regression on the prompt's mean embedding predicts it. docs/study.md has the formulas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from sdvg_core.errors import BadInput
from sdvg_core.pipeline.latents import METADATA
from sdvg_core.pipeline.learned import GainModel, pooled, prompt_hash

from .protocol import ANCHOR_ONLY, TARGET_ONLY
from .statistics import ENOUGH, Array, Bootstrap, Counts, Interval, Table, correlation, drawn, interval, metric

LEAST_AGREEMENT = 0.3
"""The correlation of gains under two seeds below which no prompt tells what it gains."""
PENALTIES, FOLDS, BEND = np.geomspace(1, 1e5, 16), 10, 1.7
STEPS_PER_BLOCK = 4
TENSORS = ("mean", "deviation", "weights", "shape", "prices")


def learn(
    table: Table, embeddings: Mapping[str, Tensor], name: str, blocks: int, models: Mapping[str, str]
) -> tuple[GainModel, dict[str, Any]]:
    """Return the learned route, and figures on it. The table has target-only, anchor-only, and perhaps `first@m`.

    `name`: of the metric. `models`: fingerprints by role. Raises `BadInput` if a prompt's gain under one seed says
    too little of its gain under another, for then no router by prompts can work.
    """
    if len(table.seeds) < 2 or len(table.prompts) < ENOUGH:
        raise BadInput(f"a route is learned from {ENOUGH} prompts with 2 seeds or more; add --prompts and --seeds")
    of = metric(name)
    ends = [
        [[of(table.rows[end][p, seed]) for seed in table.seeds] for p in table.prompts]
        for end in (TARGET_ONLY, ANCHOR_ONLY)
    ]
    labels = np.array(ends[0]) - np.array(ends[1])
    agreement = agreement_of(labels, table.bootstrap)
    if agreement is None or agreement.low < LEAST_AGREEMENT:
        found = f"{agreement.value:.2f} [{agreement.low:.2f}, {agreement.high:.2f}]" if agreement else "undefined"
        raise BadInput(f"two seeds agree on gains by only {found}: no prompt router can work; keep a preset")
    gains, anchors = labels.mean(axis=1), np.array(ends[1]).mean(axis=1)
    firsts = [ANCHOR_ONLY, *(f"first@{m}" for m in range(2, blocks)), TARGET_ONLY]
    measured = np.stack([table.per_prompt(one, of) for one in firsts], 1) if {*firsts} <= {*table.rows} else None
    shape = shape_of(blocks, measured)
    curves = anchors[:, None] + gains[:, None] * shape if measured is None else measured
    read = np.stack([pooled(embeddings[prompt]) for prompt in table.prompts])
    unseen = out_of_fold(read, gains)
    mean, deviation, weights, bias = fit(read, gains)
    own = {prompt_hash(prompt): float(gain) for prompt, gain in zip(table.prompts, gains, strict=True)}
    route = GainModel(
        name="",
        mean=mean,
        deviation=deviation,
        weights=weights,
        bias=bias,
        shape=shape,
        prices=np.zeros((1, 2)),
        measured=own,
        models=models,
        metric=name,
        gain=(0.0, 0.0, 0.0),
    )
    gain, lose = gained(route, unseen, curves, table.bootstrap)
    route = replace(route, prices=price_table(route, unseen), gain=(gain.value, gain.low, gain.high))
    return route, {
        "metric": name,
        "agreement of two seeds": agreement,
        "gain over first m at the same mean": gain,
        "share of prompts that lose": lose,
        "recommended": "yes" if gain.low > 0 else "no: the interval is not above 0",
    }


def agreement_of(labels: Array, bootstrap: Bootstrap) -> Interval | None:
    """Return the correlation over prompts of the gains `(prompts, seeds)` under two seeds, the mean over pairs."""
    pairs, each = list(combinations(range(labels.shape[1]), 2)), [row[None] for row in labels]

    def correlate(counts: Counts) -> dict[str, float]:
        seeds = drawn(each, counts).T
        return {"agreement": float(np.mean([correlation("pearson", seeds[i], seeds[j]) for i, j in pairs]))}

    return bootstrap.per_draw(correlate)["agreement"]


def shape_of(blocks: int, curves: Array | None) -> Array:
    """Return which share of a gain the first m blocks bring, `(blocks,)`: the mean of the curves, if they rise."""
    mean = np.zeros(blocks) if curves is None else curves.mean(axis=0)
    if mean[-1] > mean[0]:
        return np.asarray((mean - mean[0]) / (mean[-1] - mean[0]))
    return np.asarray(1 - (1 - np.linspace(0, 1, blocks)) ** BEND)


# --- the ridge regression


def fit(read: Array, gains: Array) -> tuple[Array, Array, Array, float]:
    """Return mean and deviation of the embeddings `(prompts, c)`, the weights, and the mean gain."""
    mean, deviation = read.mean(axis=0), read.std(axis=0)
    deviation = np.where(deviation > 1e-6, deviation, 1.0)
    z = (read - mean) / deviation
    penalty = min(PENALTIES, key=lambda one: float(((left_out(z, gains, one) - gains) ** 2).mean()))
    return mean, deviation, ridge(z, gains, penalty), float(gains.mean())


def ridge(z: Array, gains: Array, penalty: float) -> Array:
    """Return the weights, `(c,)`, in the dual form: w = Z' (Z Z' + a I)^-1 (G - mean G)."""
    solved = np.linalg.solve(z @ z.T + penalty * np.eye(len(z)), gains - gains.mean())
    weights: Array = z.T @ solved
    return weights


def left_out(z: Array, gains: Array, penalty: float) -> Array:
    """Return what the other prompts predict for each, with the mean as a free intercept, from a single fit.

    The columns of `z` have the mean 0. Then all fits without one prompt follow from the leverages.
    """
    kernel = z @ z.T
    hat = kernel @ np.linalg.inv(kernel + penalty * np.eye(len(z))) + 1 / len(z)
    missed: Array = (gains - hat @ gains) / (1 - np.diag(hat))
    return np.asarray(gains - missed)


def out_of_fold(read: Array, gains: Array) -> Array:
    """Return the gain of each prompt as predicted by a fit that saw nothing of its fold."""
    predicted, order = np.empty(len(gains)), np.random.default_rng(0).permutation(len(gains))
    for fold in np.array_split(order, min(FOLDS, len(order))):
        rest = np.setdiff1d(order, fold)
        mean, deviation, weights, bias = fit(read[rest], gains[rest])
        predicted[fold] = bias + (read[fold] - mean) / deviation @ weights
    return predicted


# --- what it is worth


def gained(route: GainModel, unseen: Array, curves: Array, bootstrap: Bootstrap) -> tuple[Interval, float]:
    """Return the gain over first m at the same mean number of blocks, and the share of prompts that lose by it.

    The mean over m from 2 to two blocks before the last. `curves`: `(prompts, blocks)`, the quality of first m.
    """
    blocks, of_firsts = curves.shape[1], bootstrap.means(curves)
    above, lose = [], []
    for m in range(2, max(blocks - 1, 3)):
        chosen = np.array(route.choose([*unseen], m, blocks, together=True))
        mine = curves[np.arange(len(curves)), chosen - 1]
        spent, axis = bootstrap.means(chosen.astype(float)), np.arange(1, blocks + 1)
        same = [np.interp(at, axis, curve) for at, curve in zip(spent, of_firsts, strict=True)]
        above.append(bootstrap.means(mine) - np.array(same))
        firsts = np.array([np.interp(spent[0], axis, curve) for curve in curves])
        lose.append(np.mean(mine < firsts - 1e-9))
    found = interval(np.mean(above, axis=0))
    assert found is not None
    return found, round(float(np.mean(lose)), 3)


def price_table(route: GainModel, unseen: Sequence[float] | Array) -> Array:
    """Return what price makes prompts such as these take so many further blocks on average, `(k, 2)`."""
    blocks = len(route.shape)
    further = np.linspace(0, blocks - 1, STEPS_PER_BLOCK * (blocks - 1) + 1)
    return np.array([[one, route.price_for([*unseen], 1 + one, blocks)] for one in further])


def write_learned(path: Path, route: GainModel) -> None:
    """Write a learned route as the file that `generate --learned` reads."""
    tensors = {name: torch.tensor(getattr(route, name), dtype=torch.float32) for name in TENSORS}
    told = {name: getattr(route, name) for name in ("bias", "measured", "models", "metric", "gain")}
    text = json.dumps({**told, "prompts": len(route.measured)}, sort_keys=True, allow_nan=False)
    path.write_bytes(save(tensors, {METADATA: text}))
