"""The strip's JavaScript, run by node without a page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running_server import ROOT

PURE = ("blocks.js", "prompt_lines.js", "runs.js", "shots.js")
PLAYER = "strip_player.js"
NEXT = "({ run, next, outlook }) => js.nextRun(run, next, outlook)"


def write_modules(folder: Path) -> Path:
    """Write the modules where node takes them for ES modules, and return where; skip without node."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    ours, theirs = folder / "extensions" / "sdvg", folder / "scripts"
    ours.mkdir(parents=True)
    theirs.mkdir()
    for name in (*PURE, PLAYER):
        shutil.copy(ROOT / "nodes" / "web" / name, ours)
    answer = "export const api = { fetchApi: async (path) => ({ ok: true, blob: async () => path }) };"
    (theirs / "api.js").write_text(answer, encoding="ascii")
    (folder / "package.json").write_text('{"type": "module"}', encoding="ascii")
    return ours


def call(modules: Path, source: str, given: Any) -> Any:
    """Return what a JavaScript function makes of each of the things given; `js`: all that the modules export."""
    imports = "".join(f'import * as m{i} from "./{name}";\n' for i, name in enumerate(PURE))
    everything = ", ".join(f"...m{i}" for i in range(len(PURE)))
    program = f"{imports}const js = {{{everything}}};\nconst of = {source};\n"
    program += f"console.log(JSON.stringify({json.dumps(given)}.map((one) => of(one))));\n"
    return run_node(modules, program)


def run_node(modules: Path, program: str) -> Any:
    """Return what a program among the modules prints."""
    (modules / "program.js").write_text(program, encoding="utf-8")
    command = ["node", "program.js"]
    done = subprocess.run(command, cwd=modules, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
