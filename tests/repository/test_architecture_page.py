"""docs/architecture.md names what exists, and its example runs; a request reads downward."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from request_trace import from_the_command_line, trace

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


def test_a_command_reaches_the_first_denoising_pass_through_fifteen_files() -> None:
    files, returns = trace(from_the_command_line)
    assert files[-1] == "sdvg_core/causal_wan/forward.py"
    assert len(files) <= 15, files
    assert not returns
