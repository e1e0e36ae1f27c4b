"""Rows of a made-up study whose truth is known, for what is worked out from rows."""

from __future__ import annotations

import numpy as np

from research.folder import Plan
from research.protocol import Configuration, protocol
from research.statistics import Record

BLOCKS, SEEDS = 9, (1, 2)
TAUS = (-1.0, -0.5, 0.0, 0.5, 1.0)
CONFIGURATIONS = protocol(BLOCKS, TAUS)


def made_up_plan(prompts: int) -> Plan:
    names = tuple(f"prompt {i}" for i in range(prompts))
    return Plan(prompts=names, seeds=SEEDS, configurations=CONFIGURATIONS, blocks=BLOCKS)


def made_up_rows(plan: Plan, gate_bonus: float = 0.0, noise: float = 0.3) -> list[Record]:
    """Quality: the prompt's own (they are far apart), 1 dB per target call, noise, and a bonus for the gates."""
    return [_row(c, prompt, seed, gate_bonus, noise) for c in plan.configurations for prompt, seed in plan.pairs]


def _row(configuration: Configuration, prompt: str, seed: int, gate_bonus: float, noise: float) -> Record:
    router, number = configuration.router, int(prompt.split()[1])
    # The same scores in every configuration: a pair differs by the route alone.
    scores = np.random.default_rng([number, seed, 1]).normal(size=BLOCKS)
    scores[0] = np.nan
    draw = np.random.default_rng([number, seed, *configuration.name.encode()])
    gate = router.needs_scorer
    accepted = _accepted(configuration, scores, draw)
    target = int(BLOCKS - accepted.sum())
    quality = 20 + 3 * np.sin(number) + target + noise * draw.normal() + gate_bonus * gate
    drafts = BLOCKS - 1 if gate else BLOCKS - target
    passes = {"drafter_denoising": 4 * drafts, "drafter_context": drafts, "scores": 12 * drafts if gate else 0}
    passes |= {"target_denoising": 4 * target, "target_context": target, "decodes": BLOCKS, "encodes": BLOCKS}
    return {
        "configuration": configuration.name,
        "prompt": prompt,
        "seed": seed,
        "passes": passes,
        "route": "".join("a" if keep else "r" for keep in accepted),
        "accepted": accepted.tolist(),
        "worst_scores": [None if np.isnan(s) or not gate else float(s) for s in scores],
        "mean_scores": [None if np.isnan(s) or not gate else float(s) + 0.5 for s in scores],
        "target_calls": target,
        "draft_calls": BLOCKS - target,
        "metrics": {"quality": quality, "reward_mean": 0.0},
        "latents_sha256": "0",
    }


def _accepted(configuration: Configuration, scores: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    router = configuration.router
    free = np.arange(BLOCKS) >= router.forced_blocks
    if router.part:
        return (draw.uniform(size=BLOCKS) < router.part.rate) & free
    if router.needs_scorer:
        return (scores >= router.tau) & free
    return free & (router.policy == "first")
