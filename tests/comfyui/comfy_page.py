"""ComfyUI's page in a headless Chromium, for the tests of what an artist sees there.

It needs a program `chromium` (or CHROMIUM), `node`, and the npm package playwright-core in NODE_PATH or
~/comfy/browser/node_modules; tests are skipped where there are none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running_server import Server

HERE = Path(__file__).resolve().parent
NODES = (
    "SDVGDrafterLoader",
    "SDVGTargetLoader",
    "SDVGQualityRouter",
    "SDVGPrompt",
    "SDVGPromptSchedule",
    "SDVGStart",
    "SDVGSpeculativeSampler",
    "SDVGRouteReport",
    "SDVGPocketModels",
)
SCRIPT = "raaraarar"
ROUTE = ["forced", "kept", "kept", "remade", "kept", "kept", "remade", "kept", "remade"]


def browse(server: Server, folder: Path, program: str = "interface.js", **options: Any) -> dict[str, Any]:
    """Run a program of the folder `browser` with a page of its own; returns what the page showed."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    modules = os.environ.get("NODE_PATH") or str(Path.home() / "comfy" / "browser" / "node_modules")
    if chromium is None or shutil.which("node") is None or not (Path(modules) / "playwright-core").is_dir():
        pytest.skip("needs chromium, node and playwright-core: see the top of this file")
    options = {
        "url": f"http://127.0.0.1:{server.port}",
        "chromium": chromium,
        "profile": str(folder / "profile"),
        "script": SCRIPT,
        **options,
    }
    done = subprocess.run(
        ["node", str(HERE / "browser" / program), json.dumps(options)],
        capture_output=True,
        text=True,
        env={**os.environ, "NODE_PATH": modules},
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
