"""How the page's JavaScript is built: one file that calls ComfyUI's page, classes of a readable size, types."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "nodes" / "web"
TOOLS = ROOT / "tools" / "web"
FRONTEND = re.compile(r"scripts/(api|app)\.js|\bwindow\.(app|LiteGraph|comfyAPI)\b")
MODEL = ("blocks.js", "prompt_lines.js", "runs.js", "shots.js", "strip_model.js")
PAGE = re.compile(r"\b(document|window|HTMLElement)\b|frontend\.js|words\.js|dom\.js")
MOST_LINES = {"file": 500, "class": 250}


def code(path: Path) -> str:
    """Return a script without its comments."""
    return re.sub(r"/\*.*?\*/|^\s*//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_one_file_calls_the_frontend() -> None:
    """Catches: a second file that a change of ComfyUI's page would break."""
    assert [path.name for path in sorted(WEB.glob("*.js")) if FRONTEND.search(code(path))] == ["frontend.js"]


def test_model_needs_no_page() -> None:
    """Catches: what is asked and made, mixed with elements, words or nodes."""
    assert [name for name in MODEL if PAGE.search(code(WEB / name))] == []


def test_files_stay_readable() -> None:
    """Catches: a file that hears, asks, shows and registers."""
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in WEB.glob("*.js")}
    assert {name: count for name, count in lengths.items() if count > MOST_LINES["file"]} == {}


def test_classes_stay_readable() -> None:
    """Catches: a class that shows, reads, writes and lays out."""
    lengths = {}
    for path in WEB.glob("*.js"):
        for match in re.finditer(r"^(?:export )?class (\w+).*?^\}", code(path), re.DOTALL | re.MULTILINE):
            lines = [line for line in match[0].splitlines() if line.strip()]
            lengths[match[1]] = len(lines)
    assert {name: count for name, count in lengths.items() if count > MOST_LINES["class"]} == {}


def test_suppressions_give_a_reason() -> None:
    """Catches: a fault of types or lint that is silenced without a word."""
    silent = re.compile(r"@ts-(ignore|expect-error|nocheck)(?!.*\w{3})|eslint-disable[\w-]*(?! .*--)")
    assert [path.name for path in WEB.glob("*.js") if silent.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.skipif(not (TOOLS / "node_modules").is_dir(), reason="needs npm ci in tools/web")
def test_types_and_lint_hold() -> None:
    """Catches: a call with another type, a name that is not there."""
    npm = shutil.which("npm") or "npm"
    done = subprocess.run([npm, "run", "check"], cwd=TOOLS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
