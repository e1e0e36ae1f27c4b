"""What ways to choose first blocks are worth, on made-up chains whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from research.routes_by_prompt import better, by_ridge, by_value, left_to_gain, threshold, while_above
from research.statistics import Bootstrap

PROMPTS, SEEDS, BLOCKS = 40, 2, 9
DRAWN = np.random.default_rng(3)
COST = np.broadcast_to(np.linspace(0.3, 1.0, BLOCKS), (PROMPTS, SEEDS, BLOCKS))
# Every prompt gains by one curve, each its own amount, which a channel of its embedding tells.
GAINS = DRAWN.permutation(np.linspace(0, 4, PROMPTS))
CHAINS = (10 + GAINS[:, None] * (1 - (1 - np.linspace(0, 1, BLOCKS)) ** 2))[:, None].repeat(SEEDS, axis=1)
READ = np.column_stack([GAINS, DRAWN.normal(size=(PROMPTS, 3))])
ALL = Bootstrap(PROMPTS)
PAST, REST = slice(None, 20), slice(20, None)


def test_as_many_blocks_for_all_are_worth_nothing_and_foresight_is_worth_most():
    """Catches: a comparison with another cost than its own, a price of the wrong sign."""
    for_all = by_value(np.broadcast_to(CHAINS.mean(axis=0), CHAINS.shape))
    nothing, loses = better(for_all, CHAINS, COST, 0.0, ALL)
    most, fewer = better(by_value(CHAINS), CHAINS, COST, 0.0, ALL)
    assert (nothing.value, loses) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert most.low > 0.05
    assert fewer < 0.5
    assert better(by_value(-CHAINS), CHAINS, COST, 0.0, ALL)[0].high < 0


def test_what_is_learned_from_some_prompts_is_worth_as_much_on_others_and_a_look_has_its_price():
    """Catches: a split that is none, a look that costs nothing."""
    numbers, costs, bootstrap = CHAINS[REST], COST[REST], Bootstrap(20)
    ridge = by_value(by_ridge(READ, CHAINS, PAST)[REST])
    most, found = (better(way, numbers, costs, 0.0, bootstrap)[0] for way in (by_value(numbers), ridge))
    assert found.value == pytest.approx(most.value, abs=0.03)
    assert better(ridge, numbers, costs, 0.05, bootstrap)[0].value < found.value - 0.1
    changed = np.concatenate([CHAINS[PAST], CHAINS[REST][::-1]])
    assert np.array_equal(by_ridge(READ, changed, PAST), by_ridge(READ, CHAINS, PAST))


def test_a_threshold_lets_the_target_go_on_until_the_first_signal_below_it():
    signal = np.array([[[2.0, 1.0, 3.0]], [[0.0, 5.0, 5.0]]])
    assert while_above(signal)(1.5).tolist() == [[2], [1]]
    assert while_above(signal)(threshold(while_above(signal), 2.5)).mean() == 2.5


def test_what_is_left_to_gain_is_predicted_from_scores_that_were_there_by_then():
    """Catches: a score of a block that is not made yet."""
    own = DRAWN.normal(size=(PROMPTS, SEEDS, BLOCKS - 1))
    later = own.copy()
    later[REST, :, 4:] += 1.0
    before, after = (left_to_gain(of, CHAINS, CHAINS, PAST)[REST] for of in (own, later))
    assert np.array_equal(before[..., :5], after[..., :5])
    assert not np.allclose(before[..., 5:], after[..., 5:])
