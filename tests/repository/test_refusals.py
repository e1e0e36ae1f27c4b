"""Refusals are short: the fault first, then the remedy. What a user gave or has does not count."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ERRORS = {
    "BadInput": (0, 1),
    "OtherModel": (0, 1),
    "Busy": (0, 1),
    "ArgumentTypeError": (0, 1),
    "MissingModel": (1, 3),
}
"""The errors, and which of their arguments a user reads."""
LONGEST = 120
LONGER = {"nodes/host/memory.py": "the numbers of a run that ran out of memory, and three settings that would help"}
Scope = Mapping[str, Sequence[ast.expr]]


def text_of(node: ast.expr, scope: Scope) -> str:
    """Return the constant text of an expression, the longest that it can be. What is not known counts nothing."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, scope) for part in parts)
        case ast.FormattedValue(value=part) | ast.Subscript(value=part):
            return text_of(part, scope)
        case ast.Call(func=ast.Attribute(value=part, attr="format" | "items" | "get"), args=others):
            return max((text_of(one, scope) for one in (part, *others)), key=len)
        case ast.Dict(values=values):
            return max((text_of(value, scope) for value in values), key=len, default="")
        case ast.Call(func=ast.Attribute(value=between, attr="join"), args=[ast.Name(id=name)]):
            items = [part for value in scope.get(name, ()) for part in getattr(value, "elts", ())]
            return text_of(between, scope).join(text_of(part, scope) for part in items)
        case ast.BinOp(left=one, op=ast.Add(), right=other):
            return text_of(one, scope) + text_of(other, scope)
        case ast.IfExp(body=one, orelse=other):
            return max(text_of(one, scope), text_of(other, scope), key=len)
        case ast.Name(id=name):
            rest = {known: values for known, values in scope.items() if known != name}
            return max((text_of(value, rest) for value in scope.get(name, ())), key=len, default="")
    return ""


def named(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Return what an assignment or a loop names, each with its value; in a loop, with all it goes through."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            return zip(targets, values, strict=False)
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            return [(target, value)]
        case ast.For(target=ast.Tuple(elts=targets), iter=value):
            return [(target, value) for target in targets]
    return []


def names_in(nodes: Iterable[ast.AST], path: Path) -> Scope:
    """Return what these nodes of a file give names to. Imported names have their values in the other file."""
    scope: dict[str, list[ast.expr]] = {}
    for node in nodes:
        for target, value in named(node):
            scope.setdefault(ast.unparse(target), []).append(value)
        if isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else ROOT
            there = constants(folder.joinpath(*(node.module or "").split(".")).with_suffix(".py"))
            for alias in node.names:
                text = text_of(ast.Name(alias.name), there)
                scope.setdefault(alias.asname or alias.name, []).append(ast.Constant(text))
    return scope


@cache
def constants(path: Path) -> Scope:
    return names_in(ast.parse(path.read_text(encoding="utf-8")).body, path) if path.is_file() else {}


def refusals(node: ast.AST, scope: Scope, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the constant text of every error that a user reads."""
    if isinstance(node, ast.FunctionDef):
        scope = {**scope, **names_in(ast.walk(node), path)}
    if isinstance(node, ast.Call) and (error := ast.unparse(node.func).rpartition(".")[2]) in ERRORS:
        yield node.lineno, "".join(text_of(argument, scope) for argument in node.args[slice(*ERRORS[error])])
    for child in ast.iter_child_nodes(node):
        yield from refusals(child, scope, path)


@pytest.mark.parametrize("room", ["sdvg_core", "nodes", "research", "benchmarks"])
def test_no_refusal_is_longer_than_it_need_be(room: str) -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / room).rglob("*.py")}
    long = [
        f"{name}:{line}: {len(text)} characters: {text}"
        for name, path in files.items()
        for line, text in refusals(ast.parse(path.read_text(encoding="utf-8")), constants(path), path)
        if len(text) > LONGEST and name not in LONGER
    ]
    assert files
    assert not long, "\n".join(long)
