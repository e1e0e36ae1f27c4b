"""What is left out of CI's products leaves no pair of values, and no value, unmet."""

from itertools import combinations, product

import pytest
from thinned import every_pair, in_turn


@pytest.mark.parametrize("thin, kept, met", [(every_pair, 6, 2), (in_turn, 3, 1)])
def test_what_is_left_out_is_exhaustive_and_nothing_is_lost(thin, kept, met):
    """Of any two axes every pair of values is left, or of the first every value."""
    axes = "abc", "xy", "01"
    rows = thin("one, two, three", *axes).args[1]
    assert {row.values for row in rows} == set(product(*axes))
    assert {mark.name for row in rows for mark in row.marks} == {"exhaustive"}
    usual = [row.values for row in rows if not row.marks]
    assert len(usual) == kept
    for places in combinations(range(3), 2) if met == 2 else [(0,)]:
        left = {tuple(row[place] for place in places) for row in usual}
        assert left == set(product(*(axes[place] for place in places)))
