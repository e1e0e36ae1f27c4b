"""The subgraph blueprints in ComfyUI: the server offers them, and the page makes of each what its workflow is."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from comfy_page import browse
from running_server import ROOT, Server

sys.path.insert(0, str(ROOT / "release"))
import subgraphs

pytestmark = pytest.mark.comfyui
NAMES = list(subgraphs.BLUEPRINTS)
API = {"SDVG text to video": "sdvg_text_to_video.json", "SDVG pocket demo": "sdvg_pocket_demo.json"}


@pytest.fixture(scope="module")
def placed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of each blueprint on a page."""
    files = [str(subgraphs.FOLDER / f"{name}.json") for name in NAMES]
    return browse(server, tmp_path_factory.mktemp("page"), "blueprints.js", files=files)["placed"]


@pytest.mark.parametrize("name", NAMES)
def test_its_file_is_the_one_that_the_script_writes(name: str) -> None:
    assert (subgraphs.FOLDER / f"{name}.json").read_text(encoding="utf-8") == subgraphs.text_of(name)


def test_the_server_offers_them(server: Server) -> None:
    offered = {
        entry["name"] for entry in server.ask("/global_subgraphs").values() if "sdvg" in entry["info"]["node_pack"]
    }
    assert offered == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_sends_what_it_sends_of_the_workflow(name: str, placed: dict[str, Any]) -> None:
    """Inside the subgraph ids have a prefix. Catches a lost wire, and a widget whose value is another's."""
    expected = json.loads((ROOT / "workflows" / "api" / API[name]).read_text(encoding="utf-8"))
    wanted = {key: node for key, node in expected.items() if node["class_type"] not in subgraphs.OUTSIDE}
    assert plain(placed[name]["prompt"]) == plain(wanted)
    assert placed[name]["outputs"] == [output for _, output in subgraphs.OUTPUTS]


def plain(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes by their number in the subgraph, and their inputs without what only the page adds."""

    def inner(value: Any) -> Any:
        return [value[0].rpartition(":")[2], value[1]] if isinstance(value, list) and len(value) == 2 else value

    return {
        key.rpartition(":")[2]: (
            node["class_type"],
            {name.rpartition(".")[2]: inner(value) for name, value in node["inputs"].items()},
        )
        for key, node in prompt.items()
    }
