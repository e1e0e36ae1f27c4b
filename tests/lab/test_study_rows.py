"""What is worked out from rows whose truth is known: intervals, summary, page and plots."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from lab.research.folder import Plan
from lab.research.plots import LOOKS, draw_gain_over_first
from lab.research.protocol import Configuration, protocol
from lab.research.statistics import (
    Bootstrap,
    Record,
    against_curve,
    cost_with,
    curve_of,
    make_table,
    metric,
)
from lab.research.summary import page_text, summarise_study
from sdvg_core.memory.budget import WEIGHTS
from sdvg_core.settings.route import Custom, First, Gate

BLOCKS = 9
SEEDS = (1, 2)
TAUS = (-1.0, -0.5, 0.0, 0.5, 1.0)
CONFIGURATIONS = protocol(BLOCKS, TAUS)


def made_up_plan(prompts: int) -> Plan:
    names = tuple(f"prompt {i}" for i in range(prompts))
    return Plan(prompts=names, seeds=SEEDS, configurations=CONFIGURATIONS, blocks=BLOCKS)


def made_up_rows(plan: Plan, gate_bonus: float = 0.0, noise: float = 0.3) -> list[Record]:
    """Return rows. Quality: of the prompt (far apart), 1 dB a target call, noise, and a bonus for the gates."""
    return [_row(c, prompt, seed, gate_bonus, noise) for c in plan.configurations for prompt, seed in plan.pairs]


def _row(configuration: Configuration, prompt: str, seed: int, gate_bonus: float, noise: float) -> Record:
    route = configuration.route
    number = int(prompt.split()[1])
    # The same scores in every configuration: a pair differs by the route alone.
    scores = np.random.default_rng([number, seed, 1]).normal(size=BLOCKS)
    scores[0] = np.nan
    draw = np.random.default_rng([number, seed, *configuration.name.encode()])
    gate = route.policy.needs_scorer
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
    policy = configuration.route.policy
    first = policy.n if isinstance(policy, First) else getattr(policy, "forced_blocks", 1)
    free = np.arange(BLOCKS) >= first
    if isinstance(policy, Custom):
        return (draw.uniform(size=BLOCKS) < policy.router.rate) & free
    if isinstance(policy, Gate):
        return (scores >= policy.tau) & free
    return free & isinstance(policy, First)


QUALITY = metric("quality")


def target_calls(row) -> float:
    return row["target_calls"]


def table_of(prompts: int = 40, **options):
    plan = made_up_plan(prompts)
    return make_table(made_up_rows(plan, **options), plan.prompts, plan.seeds)


@pytest.fixture(scope="module")
def table():
    return table_of()


# --- intervals


def test_interval_of_a_mean_matches_theory():
    values = np.random.default_rng(3).normal(size=400)
    interval = Bootstrap(400).mean(values)
    half = 1.96 * values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert interval.high - interval.value == pytest.approx(half, rel=0.1)
    assert interval.value - interval.low == pytest.approx(half, rel=0.1)


def test_differences_are_paired(table):
    """Prompts are 3 dB apart, so an unpaired interval would be wide: this one is narrow and holds the true 8 dB."""
    gain = table.difference("target-only", "anchor-only", QUALITY)
    assert gain.low < 8 < gain.high
    assert gain.high - gain.low < 0.4
    alone = table.mean("target-only", QUALITY)
    assert alone.high - alone.low > 1


# --- at matched cost


def test_gate_like_chance_spans_zero_at_equal_cost(table):
    """Its quality is far above anchor-only's: only at the same cost is there nothing left of that."""
    curve = curve_of("random", CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "random@0.3", "random@0.6", "random@0.8"}
    gain = against_curve(table, "reward-min@0", curve, target_calls, QUALITY)
    assert gain.low < 0 < gain.high
    assert abs(gain.value) < 0.2
    assert table.difference("reward-min@0", "anchor-only", QUALITY).value > 3


def test_gate_pays_for_rejected_drafts_and_scores(table):
    """As good as the first m at as many target calls, it is worse at the same cost. Catches: passes not counted."""
    curve = curve_of("first", CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "draft-only", *(f"first@{m}" for m in range(2, 9))}
    cost = cost_with(WEIGHTS)
    paired = against_curve(table, "reward-min@0", curve, target_calls, QUALITY)
    assert paired.low < 0 < paired.high
    assert against_curve(table, "reward-min@0", curve, cost, QUALITY).high < -0.5


def summary_of(prompts: int = 20, **options):
    plan = made_up_plan(prompts)
    return summarise_study(made_up_rows(plan, **options), plan)


@pytest.fixture(scope="module")
def summary():
    return summary_of()


def words_of(summary, column: str = "minus random, as many target calls") -> dict[str, str]:
    """Return the last word of the page's table on every configuration: better, worse or open."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page_text(summary).splitlines()]
    start = next(i for i, cells in enumerate(lines) if cells[0] == "configuration")
    place = lines[start].index(column)
    table = itertools.takewhile(lambda cells: len(cells) > place, lines[start + 2 :])
    return {cells[0]: cells[place].split()[-1] for cells in table}


@pytest.mark.heavy
def test_page_states_whether_reward_beats_chance(summary):
    """With no bonus one gate in twenty seems to differ; with one of 1 dB every gate does, whatever its sign."""
    gates = [c["name"] for c in summary["configurations"] if c["tau"] is not None]
    assert len([name for name in gates if ":" not in name and not name.startswith("hybrid")]) == 7
    assert len(gates) == 12
    without_bonus = words_of(summary)
    assert sum(without_bonus[gate] == "open" for gate in gates) >= 0.7 * len(gates)
    for bonus, word in ((1.0, "better"), (-1.0, "worse")):
        words = words_of(summary_of(12, gate_bonus=bonus))
        assert words["reward-min@0"] == word
        assert sum(words[gate] == word for gate in gates) >= 0.7 * len(gates)


@pytest.mark.heavy
def test_few_prompts_give_no_interval_and_verdict():
    """Catches a table of two prompts that says *better*."""
    summary = summary_of(2, gate_bonus=1.0)
    text = page_text(summary)
    assert "2 prompts are too few for an interval" in text
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    assert not re.search(r"\[|\d (better|worse|open)\b", table)
    assert '"low": null' in json.dumps(summary)
    assert not re.search(r'"(low|high)": [-\d]', json.dumps(summary))


@pytest.mark.heavy
def test_gain_over_first_is_drawn_as_paired_difference(summary):
    """Catches: the quality itself in its place, or another curve's difference."""
    axes = Figure().add_subplot()
    draw_gain_over_first(axes, summary)
    drawn = {(x, y) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    drawable = [c for c in summary["configurations"] if c["group"] in LOOKS]
    compared = [c for c in drawable if c["at_same"].get("first", {}).get("cost")]
    assert compared
    for entry in compared:
        assert (entry["cost"]["value"], entry["at_same"]["first"]["cost"]["value"]) in drawn
