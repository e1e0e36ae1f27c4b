"""ComfyUI's page in a headless Chromium, as an artist sees it. What that needs, tests/browser.py says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from browser import browse as run_page
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
    options = {"url": f"http://127.0.0.1:{server.port}", "script": SCRIPT, **options}
    return run_page(HERE / "browser" / program, profile=str(folder / "profile"), **options)
