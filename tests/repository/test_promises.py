"""Every promise of docs/testing.md names a test that there is, and a mistake that is planted for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.planted import host, loop, parts

ROOT = Path(__file__).resolve().parents[2]
PROMISES = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").partition("## Never run")[0]
ROWS = re.findall(r"^\| (.+) \| `(.+)` \| (.+) \|$", PROMISES, re.MULTILINE)
"""Promise, test and mistake."""
PLANTED = {
    name: mistake.test.partition("[")[0]
    for mistakes in (loop.MISTAKES, parts.MISTAKES, host.MISTAKES)
    for name, mistake in mistakes.items()
}


def test_each_promise_has_its_planted_mistake():
    """Catches: a promise that no mistake was planted for, a mistake that the page leaves out, and a row of two."""
    lines = [line for line in PROMISES.splitlines() if line.startswith("| ")]
    heads = [line for line in lines if line == "| promise | test | planted mistake |"]
    assert len(ROWS) == len(lines) - len(heads)
    assert sorted((mistake, test) for _, test, mistake in ROWS) == sorted(PLANTED.items())


@pytest.mark.parametrize("test", sorted(set(PLANTED.values())))
def test_promise_names_an_existing_test(test):
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
