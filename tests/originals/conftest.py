"""Prints what was measured, for `docs/parity.md`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MEASURED: pytest.StashKey[list[tuple[str, float]]] = pytest.StashKey()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[float], float]:
    """Note a difference under the test's name, and return it."""
    rows = request.config.stash.setdefault(MEASURED, [])

    def note(difference: float) -> float:
        rows.append((request.node.nodeid.split("/")[-1], difference))
        return difference

    return note


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash.get(MEASURED, [])
    if rows:
        terminalreporter.section("largest differences")
    for name, difference in rows:
        terminalreporter.write_line(f"{difference:8.1e}  {name}")
