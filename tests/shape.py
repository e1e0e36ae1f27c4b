"""Count what makes code hard to read: packing, worn names, functions that are too large, wordy names of tests.

python -m tests.shape             # the figures of sdvg_core, nodes, lab, tools, tests and the page
python -m tests.shape --list      # and each place
python -m tests.shape --check     # fail if there are more than a few wordy names or packed lines (part of lint)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sdvg_core", "nodes", "lab", "tools", "tests")
PAGE = ("nodes/web", "tests/comfyui/browser")
"""Folders of JavaScript."""
WORN = {"found", "one", "own", "there", "told", "said", "mine", "gone"}
MOST_LINES = 60
MOST_PARAMETERS = 8
MOST_WORDS = 8
MOST_PLACES = 20
"""How many wordy names, and how many packed assignments, there may be."""
PACKED = "packed tuple assignments"
NAMED = "worn names assigned"
LONG = f"functions over {MOST_LINES} lines, docstring not counted"
WIDE = f"functions with more than {MOST_PARAMETERS} parameters"
WORDY = f"tests with names of more than {MOST_WORDS} words"
PACKED_SCRIPT = re.compile(r"^\s*(?:const|let|var)?\s*\[(?P<names>[^\[\]=]*)\] = \[(?P<values>.*)\];", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, str]
"""A line and what it shows."""


def packed(tree: ast.AST) -> Iterator[Place]:
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


def packed_script(text: str) -> Iterator[Place]:
    """Yield the same of JavaScript, on one line."""
    for match in PACKED_SCRIPT.finditer(text):
        names = sorted(name.strip() for name in match["names"].split(","))
        values = sorted(value.strip() for value in match["values"].split(","))
        if len(names) > 1 and names != values:
            yield text.count("\n", 0, match.start("names")) + 1, match[0].strip()


def worn(tree: ast.AST) -> Iterator[Place]:
    """Yield where a worn name is bound: by an assignment, a walrus, `for`, `with`, or in a comprehension."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in WORN:
            yield node.lineno, node.id


def long(tree: ast.AST) -> Iterator[Place]:
    """Yield functions of more than `MOST_LINES` lines, from `def` to the end, without their docstrings."""
    for function in functions(tree):
        lines = function.end_lineno - function.lineno + 1  # type: ignore[operator]
        if ast.get_docstring(function) is not None:
            docstring = function.body[0]
            lines -= docstring.end_lineno - docstring.lineno + 1  # type: ignore[operator]
        if lines > MOST_LINES:
            yield function.lineno, f"{function.name}: {lines} lines"


def wide(tree: ast.AST) -> Iterator[Place]:
    """Yield functions of more than `MOST_PARAMETERS` parameters; `self`, `cls` and tests' fixtures are none."""
    for function in functions(tree):
        if function.name.startswith("test_"):
            continue
        inputs = function.args
        names = [argument.arg for argument in (*inputs.posonlyargs, *inputs.args, *inputs.kwonlyargs)]
        names += [argument.arg for argument in (inputs.vararg, inputs.kwarg) if argument]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MOST_PARAMETERS:
            yield function.lineno, f"{function.name}: {count} parameters"


def wordy(tree: ast.AST) -> Iterator[Place]:
    """Yield tests with more than `MOST_WORDS` words after `test_`."""
    for function in functions(tree):
        words = function.name.split("_")[1:]
        if function.name.startswith("test_") and len(words) > MOST_WORDS:
            yield function.lineno, f"{function.name}: {len(words)} words"


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


COUNTS: Mapping[str, Callable[[ast.AST], Iterator[Place]]] = {
    PACKED: packed,
    NAMED: worn,
    LONG: long,
    WIDE: wide,
    WORDY: wordy,
}


def places_of(package: str) -> dict[str, list[str]]:
    """Return the places in a folder, as `path:line: text`, by what is counted; those of the page have scripts."""
    places: dict[str, list[str]] = {what: [] for what in COUNTS}
    if package in PAGE:
        for script in sorted((ROOT / package).rglob("*.js")):
            places[PACKED] += _shown(script, packed_script(script.read_text(encoding="utf-8")))
        return places
    for module in sorted((ROOT / package).rglob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        for what, count in COUNTS.items():
            places[what] += _shown(module, count(tree))
    return places


def _shown(file: Path, places: Iterator[Place]) -> list[str]:
    return [f"{file.relative_to(ROOT)}:{line}: {text}" for line, text in sorted(places)]


def check(places: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    """Return what there is too much of, with each place."""
    too_many: list[str] = []
    for what in (PACKED, WORDY):
        counted = [place for of in places.values() for place in of[what]]
        if len(counted) > MOST_PLACES:
            too_many += [f"{len(counted)} {what}; at most {MOST_PLACES}:", *counted]
    return too_many


def main(arguments: list[str]) -> int:
    """Print the figures, or with --check what is too much; return the exit code."""
    places = {package: places_of(package) for package in (*PACKAGES, *PAGE)}
    if "--check" in arguments:
        too_many = check(places)
        sys.stdout.writelines(f"{line}\n" for line in too_many)
        return 1 if too_many else 0
    lines = [f"{'':<54}" + "".join(f"{package:>{len(package) + 3}}" for package in places)]
    for what in COUNTS:
        figures = (f"{len(of[what]):>{len(package) + 3},}" for package, of in places.items())
        lines.append(f"{what:<54}" + "".join(figures))
    if "--list" in arguments:
        for what in COUNTS:
            lines += ["", f"{what}:", *(f"  {place}" for of in places.values() for place in of[what])]
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
