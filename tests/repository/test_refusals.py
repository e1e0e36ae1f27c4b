"""Refusals are short: the fault first, then the remedy. What a user gave or has does not count."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ERRORS = {"BadInput", "ArgumentTypeError"}
LONGEST = 120
LONGER = {"nodes/host/memory.py": "the numbers of a run that ran out of memory, and three settings that would help"}


def refusals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the constant text of every error that a user reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ERRORS and node.args:
            parts = (part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))
            yield node.lineno, "".join(part for part in parts if isinstance(part, str))


@pytest.mark.parametrize("room", ["sdvg_core", "nodes", "research", "benchmarks"])
def test_no_refusal_is_longer_than_it_need_be(room: str) -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / room).rglob("*.py")}
    long = [
        f"{name}:{line}: {len(text)} characters: {text}"
        for name, path in files.items()
        for line, text in refusals(path.read_text(encoding="utf-8"))
        if len(text) > LONGEST and name not in LONGER
    ]
    assert files
    assert not long, "\n".join(long)
