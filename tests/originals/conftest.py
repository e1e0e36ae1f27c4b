"""Skips, in one line, the files whose checkout is not there; prints what was measured, for `docs/parity.md`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHECKOUTS = {
    "test_self_forcing.py": "SELF_FORCING_PATH",
    "test_krea.py": "REALTIME_VIDEO_PATH",
    "test_longlive.py": "LONGLIVE_PATH",
    "test_infinity_rope.py": "INFINITY_ROPE_PATH",
    "test_memrope.py": "MEMROPE_PATH",
    "test_scope.py": "SCOPE_PATH",
}
MEASURED: pytest.StashKey[list[tuple[str, float]]] = pytest.StashKey()


class Absent(pytest.Module):
    """A test file that is skipped as a whole, without being imported."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(f"no checkout: set {CHECKOUTS[self.path.name]} (docs/parity.md says how)")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Put an empty file in the place of one that is asked for by its mark and lacks its checkout."""
    asked_for = re.search(r"(?<!not )\boriginals\b", parent.config.option.markexpr)
    lacking = module_path.name in CHECKOUTS and not os.environ.get(CHECKOUTS[module_path.name])
    return Absent.from_parent(parent, path=module_path) if asked_for and lacking else None


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
