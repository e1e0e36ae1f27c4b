"""Count what makes the code of the product hard to read: packing, worn names, and functions that are too large.

python -m tests.shape             # the figures of sdvg_core, nodes, and both
python -m tests.shape --list      # and each place
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sdvg_core", "nodes")
WORN = {"found", "one", "own", "there", "told", "said", "mine", "gone"}
MOST_LINES = 60
MOST_PARAMETERS = 8
LINES = "lines"
PACKED = "packed tuple assignments"
NAMED = "worn names assigned"
LONG = f"functions over {MOST_LINES} lines, docstring not counted"
WIDE = f"functions with more than {MOST_PARAMETERS} parameters"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def packed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield assignments of a tuple display to as many targets; a swap, whose values are its targets, is none."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        values = sorted(map(ast.unparse, node.value.elts))
        for target in node.targets:
            if not isinstance(target, ast.Tuple) or not 2 <= len(target.elts) == len(values):
                continue
            if sorted(map(ast.unparse, target.elts)) != values:
                yield node.lineno, ast.unparse(node)


def worn(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield where a worn name is bound: by an assignment, a walrus, `for`, `with`, or in a comprehension."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in WORN:
            yield node.lineno, node.id


def long(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield functions of more than `MOST_LINES` lines, from `def` to the end, without their docstrings."""
    for function in functions(tree):
        lines = function.end_lineno - function.lineno + 1  # type: ignore[operator]
        if ast.get_docstring(function) is not None:
            docstring = function.body[0]
            lines -= docstring.end_lineno - docstring.lineno + 1  # type: ignore[operator]
        if lines > MOST_LINES:
            yield function.lineno, f"{function.name}: {lines} lines"


def wide(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield functions of more than `MOST_PARAMETERS` parameters; `self` and `cls` are none."""
    for function in functions(tree):
        inputs = function.args
        names = [argument.arg for argument in (*inputs.posonlyargs, *inputs.args, *inputs.kwonlyargs)]
        names += [argument.arg for argument in (inputs.vararg, inputs.kwarg) if argument]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MOST_PARAMETERS:
            yield function.lineno, f"{function.name}: {count} parameters"


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


COUNTS = {PACKED: packed, NAMED: worn, LONG: long, WIDE: wide}


def shape(files: Iterable[Path], root: Path = ROOT) -> tuple[Counter[str], dict[str, list[str]]]:
    """Return the figures of some files, and the places that were counted, as `path:line: text`."""
    figures: Counter[str] = Counter()
    places: dict[str, list[str]] = {what: [] for what in COUNTS}
    for file in files:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        figures[LINES] += len(text.splitlines())
        for what, count in COUNTS.items():
            places[what] += [f"{file.relative_to(root)}:{line}: {shown}" for line, shown in sorted(count(tree))]
    for what in COUNTS:
        figures[what] = len(places[what])
    return figures, places


def main(arguments: list[str]) -> None:
    figures = {package: shape(sorted((ROOT / package).rglob("*.py"))) for package in PACKAGES}
    shown = [f"{'':<54}{'sdvg_core':>10}{'nodes':>8}{'both':>8}"]
    for what in (LINES, *COUNTS):
        core, nodes = (figures[package][0][what] for package in PACKAGES)
        shown.append(f"{what:<54}{core:>10,}{nodes:>8,}{core + nodes:>8,}")
    for what in COUNTS if "--list" in arguments else (LONG, WIDE):
        shown += ["", f"{what}:"]
        shown += [f"  {place}" for package in PACKAGES for place in figures[package][1][what]]
    sys.stdout.write("\n".join([*shown, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
