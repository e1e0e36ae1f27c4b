"""Fewer cases than a product of settings has, chosen so that what matters still meets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, cycle, product
from typing import Any

import pytest


def every_pair(names: str, *axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise so that any two values of two axes meet in one case."""
    rows: list[tuple[int, ...]] = []
    every = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {row: set(combinations(enumerate(row), 2)) for row in every}
    missing = set().union(*pairs.values())
    while missing:
        rows.append(max(every, key=lambda row: len(pairs[row] & missing)))
        missing -= pairs[rows[-1]]
    cases = [tuple(axis[index] for axis, index in zip(axes, row, strict=True)) for row in rows]
    return pytest.mark.parametrize(names, cases)


def in_turn(names: str, first: Sequence[Any], *others: Sequence[Any], **options: Any) -> pytest.MarkDecorator:
    """Parametrise over the first axis once; the combinations of the others take turns."""
    cases = [(value, *rest) for value, rest in zip(first, cycle(product(*others)), strict=False)]
    return pytest.mark.parametrize(names, cases, **options)
