"""Which cases of a product CI runs: the rest of them bear the mark `exhaustive`, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

Row = tuple[Any, ...]


def every_pair(names: str, *axes: Sequence[Any], **options: Any) -> pytest.MarkDecorator:
    """Parametrise over a product so that CI still meets any two values of two axes together."""
    return _parametrize(names, axes, pairwise(*map(len, axes)), options)


def in_turn(names: str, first: Sequence[Any], *others: Sequence[Any], **options: Any) -> pytest.MarkDecorator:
    """Parametrise over a product so that CI meets every value of the first axis once, and all others take turns."""
    return _parametrize(names, (first, *others), turns(len(first), *map(len, others)), options)


def pairwise(*sizes: int) -> set[Row]:
    """Return rows of indices in which any two indices of two axes meet; always the same ones."""
    rows, missing = set(), {pair for row in product(*map(range, sizes)) for pair in _pairs(row)}
    while missing:
        best = max(product(*map(range, sizes)), key=lambda row: len(_pairs(row) & missing))
        rows.add(best)
        missing -= _pairs(best)
    return rows


def turns(first: int, *others: int) -> set[Row]:
    """Return one row of indices for each index of the first axis.

    The other axes' combination follows from the sum of the index's digits: each meets many digits in every place.
    """
    combined = list(product(*map(range, others)))
    return {(index, *combined[_digit_sum(index, len(combined)) % len(combined)]) for index in range(first)}


def _digit_sum(number: int, base: int) -> int:
    return number % base + _digit_sum(number // base, base) if number else 0


def _pairs(row: Row) -> set[Row]:
    return set(combinations(enumerate(row), 2)) if len(row) > 1 else {(0, row)}


def _parametrize(
    names: str, axes: Sequence[Sequence[Any]], kept: set[Row], options: dict[str, Any]
) -> pytest.MarkDecorator:
    rows = [
        pytest.param(*values, marks=() if indices in kept else pytest.mark.exhaustive)
        for indices, values in zip(product(*(range(len(axis)) for axis in axes)), product(*axes), strict=True)
    ]
    return pytest.mark.parametrize(names, rows, **options)
