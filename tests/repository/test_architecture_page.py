"""docs/architecture.md names what exists, its example runs, and its picture shows the rooms that there are."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdvg_core

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROSE, EXAMPLE = re.sub(r"```.*?```", "", PAGE, flags=re.S), re.findall(r"```python\n(.*?)```", PAGE, re.S)
SPANS = re.compile(r"`([^`\n]+)`")
# A call, or something that begins with a capital: a class, its method, a constant.
NAMED = re.compile(r"[\w.]+\(|[A-Z][\w.]+$")


def names_in(path: Path) -> Iterator[str]:
    """What a file defines: functions, classes and constants by name, methods as `Class.method` too."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield from (f"{node.name}.{inner.name}", inner.name)


def paragraphs() -> Iterator[tuple[list[str], list[str]]]:
    """The files and the names that stand together in a row of a table, an item or a paragraph."""
    for text in re.split(r"\n\n|\n(?=[|-])", PROSE):
        spans = SPANS.findall(text.replace("\n", " "))
        yield (
            [span.split()[-1] for span in spans if span.endswith(".py")],
            [span.partition("(")[0] for span in spans if NAMED.match(span)],
        )


@pytest.mark.parametrize("path", sorted({path for paths, _ in paragraphs() for path in paths}))
def test_every_file_that_is_named_exists(path):
    assert (ROOT / path).is_file()


def test_every_name_is_public_or_in_a_file_that_stands_with_it():
    """Catches a function that was moved or renamed."""
    code = [*(ROOT / "sdvg_core").rglob("*.py"), *(ROOT / "nodes").rglob("*.py")]
    every = {name for path in code for name in names_in(path)}
    missing, seen = [], 0
    for paths, names in paragraphs():
        known = {name for path in paths for name in names_in(ROOT / path)} if paths else every
        missing += [f"{name} in {paths}" for name in names if name not in known | set(sdvg_core.__all__)]
        seen += len(names)
    assert missing == []
    assert seen > 30, "the page is read"


def test_the_example_makes_a_video(tmp_path, capsys):
    (code,) = EXAMPLE
    assert '"out/first"' in code
    exec(compile(code.replace('"out/first"', repr(str(tmp_path / "first"))), "example", "exec"), {})  # noqa: S102
    assert (tmp_path / "first" / "video.mp4").is_file()
    assert re.match(r"\d of \d scored drafts accepted\n$", capsys.readouterr().out)


def test_the_picture_has_the_rooms_that_there_are():
    """Catches a room that the script leaves out, and a page that forgets one."""
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_rooms.py"))
    rooms = {path.name for path in (ROOT / "sdvg_core").iterdir() if (path / "__init__.py").is_file()} | {"nodes"}
    shown = [room for floor in drawn["FLOORS"] for room in floor]
    assert sorted(shown) == sorted(rooms)
    height = {room: number for number, floor in enumerate(drawn["FLOORS"]) for room in floor}
    assert all(height[above] > height[below] for above, below in drawn["arrows"]())
    table = {span for row in re.findall(r"^\| (`.*?) \|", PROSE, re.M) for span in SPANS.findall(row)}
    assert table >= rooms
