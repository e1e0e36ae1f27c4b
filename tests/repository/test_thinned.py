"""What is left out of CI's products leaves no pair of values, and no value, unmet."""

from itertools import combinations, product

import pytest
from thinned import every_pair, in_turn, pairwise, turns


@pytest.mark.parametrize("sizes", [(14, 2, 2), (6, 4), (4, 2, 2), (3, 3, 3, 3), (5,)], ids=str)
def test_any_two_values_of_two_axes_meet(sizes):
    rows = pairwise(*sizes)
    assert rows == pairwise(*sizes)
    assert len(rows) <= 1.5 * max((a * b for a, b in combinations(sizes, 2)), default=sizes[0])
    for one, other in combinations(range(len(sizes)), 2):
        assert {(row[one], row[other]) for row in rows} == set(product(range(sizes[one]), range(sizes[other])))


def test_in_turn_every_value_is_met_once_and_every_combination_of_the_others():
    rows = turns(16, 2, 2)
    assert sorted(row[0] for row in rows) == list(range(16))
    assert {row[1:] for row in rows} == set(product(range(2), repeat=2))
    for bit, rest in product(range(4), product(range(2), repeat=2)):
        assert len({row[0] >> bit & 1 for row in rows if row[1:] == rest}) == 2, "a setting that meets one decision"


@pytest.mark.parametrize("thin, kept", [(every_pair, 6), (in_turn, 3)])
def test_what_is_left_out_is_exhaustive_and_nothing_is_lost(thin, kept):
    rows = thin("one, two, three", "abc", "xy", "01").args[1]
    assert {row.values for row in rows} == set(product("abc", "xy", "01"))
    assert len([row for row in rows if not row.marks]) == kept
    assert {mark.name for row in rows for mark in row.marks} == {"exhaustive"}
