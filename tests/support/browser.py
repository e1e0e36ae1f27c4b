"""A headless Chromium for tests of our pages; tests that need one are skipped where there is none.

It needs a program `chromium` (or CHROMIUM), `node`, and the npm package playwright-core in NODE_PATH or
~/comfy/browser/node_modules.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Browser:
    """Where Chromium is, and the folder of Node's modules."""

    chromium: str
    modules: str


def find_browser() -> Browser | None:
    """Return the browser of this machine, if it has all it takes."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    modules = os.environ.get("NODE_PATH") or str(Path.home() / "comfy" / "browser" / "node_modules")
    if chromium is None or shutil.which("node") is None or not (Path(modules) / "playwright-core").is_dir():
        return None
    return Browser(chromium, modules)


def browse(program: Path, **options: Any) -> dict[str, Any]:
    """Run a Node program with options, and return what it printed; skip without a browser."""
    browser = find_browser()
    if browser is None:
        pytest.skip("needs chromium, node and playwright-core: see tests/support/browser.py")
    done = subprocess.run(
        ["node", str(program), json.dumps({"chromium": browser.chromium, **options})],
        capture_output=True,
        text=True,
        env={**os.environ, "NODE_PATH": browser.modules},
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
