"""docs/architecture.md names what exists, its example runs, and its picture shows the rooms that there are."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROSE, EXAMPLE = re.sub(r"```.*?```", "", PAGE, flags=re.S), re.findall(r"```python\n(.*?)```", PAGE, re.S)
SPANS = re.compile(r"`([^`\n]+)`")


@pytest.mark.parametrize("path", sorted({s.split()[-1] for s in SPANS.findall(PROSE) if s.endswith(".py")}))
def test_every_file_that_is_named_exists(path):
    assert (ROOT / path).is_file()


def test_the_example_makes_a_video(tmp_path, capsys):
    (code,) = EXAMPLE
    assert '"out/first"' in code
    exec(compile(code.replace('"out/first"', repr(str(tmp_path / "first"))), "example", "exec"), {})  # noqa: S102
    assert (tmp_path / "first" / "video.mp4").is_file()
    assert re.match(r"\d of \d scored drafts accepted\n$", capsys.readouterr().out)


def test_the_picture_has_the_rooms_that_there_are():
    """Which way the arrows point, test_rooms.py says. Catches a room that the script or the page leaves out."""
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_rooms.py"))
    rooms = {path.name for path in (ROOT / "sdvg_core").iterdir() if (path / "__init__.py").is_file()} | {"nodes"}
    shown = [room for floor in drawn["FLOORS"] for room in floor]
    assert sorted(shown) == sorted(rooms)
    table = {span for row in re.findall(r"^\| (`.*?) \|", PROSE, re.M) for span in SPANS.findall(row)}
    assert table >= rooms
