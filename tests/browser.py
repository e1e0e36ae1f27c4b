"""A headless Chromium for tests of our pages; tests that need one are skipped where there is none.

It needs a program `chromium` (or CHROMIUM), `node`, and the npm package playwright-core in NODE_PATH or
~/comfy/browser/node_modules.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def browse(program: Path, **options: Any) -> dict[str, Any]:
    """Run a Node program with options, and return what it printed; skip without a browser."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    modules = os.environ.get("NODE_PATH") or str(Path.home() / "comfy" / "browser" / "node_modules")
    if chromium is None or shutil.which("node") is None or not (Path(modules) / "playwright-core").is_dir():
        pytest.skip("needs chromium, node and playwright-core: see tests/browser.py")
    done = subprocess.run(
        ["node", str(program), json.dumps({"chromium": chromium, **options})],
        capture_output=True,
        text=True,
        env={**os.environ, "NODE_PATH": modules},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
