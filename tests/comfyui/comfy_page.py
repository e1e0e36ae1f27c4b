"""ComfyUI's page in a headless Chromium, as an artist sees it. What that needs, tests/browser.py says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
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
COUNTS = re.escape("large model (always): 1small model, checked: 5large model, remade: 3")
"""What the strip says of that route."""
WEAKEST = r"weakest frame \d+: -?\d+\.\d\d"
"""What it says of a scored block that a direction decided; a gate adds what the block needs."""


def inputs_of(spec: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return name -> kind and options of all inputs, those that belong to a choice included, as `policy.tau`."""
    found: dict[str, Any] = {}
    for name, given in {**spec.get("required", {}), **spec.get("optional", {})}.items():
        found[prefix + name] = given
        if given[0] == "COMFY_DYNAMICCOMBO_V3":
            for option in given[1]["options"]:
                found |= inputs_of(option["inputs"], f"{prefix}{name}.")
    return found


def browse(server: Server, folder: Path, program: str, **options: Any) -> dict[str, Any]:
    """Run a program of the folder `browser` with a page of its own; returns what the page showed."""
    options = {"url": f"http://127.0.0.1:{server.port}", "script": SCRIPT, **options}
    return run_page(HERE / "browser" / program, profile=str(folder / "profile"), **options)


def page_of(program: str, *, seed: int) -> Any:
    """A fixture: what a program saw in one renderer, with a seed of its own, so none re-uses another's run."""

    @pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
    def page(
        request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
    ) -> dict[str, Any]:
        vue = request.param == "nodes 2.0"
        return browse(server, tmp_path_factory.mktemp("page"), program, vue=vue, seed=seed + 20 * vue)

    return page
