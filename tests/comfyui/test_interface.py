"""What an artist sees of a run in ComfyUI's page: the strip on the sampler, and the report.

What the page needs is said in comfy_page.py; tests that need no page run without.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from comfy_page import ROUTE, browse
from running_server import CNR, ROOT, VERSION, Server
from sdvg_pack.sdvg_core import __version__
from sdvg_pack.sdvg_core.report.summary import COLOURS, INKS, Outcome

pytestmark = pytest.mark.comfyui

SCHEDULES = ("as for both", "as for both")


@pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
def page(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was seen in one of the two renderers. With one seed the second run would come from the cache."""
    vue = request.param == "nodes 2.0"
    return browse(server, tmp_path_factory.mktemp("page"), vue=vue, seed=2 if vue else 1)


def test_the_sampler_says_how_long_the_video_will_be(page: dict[str, Any]) -> None:
    """Catches: a length that does not follow its blocks, in one of the renderers."""
    lengths = ["9 frames, 0.6 s", "249 frames, 15.6 s", "105 frames, 6.6 s"]
    seen = [label for label, _ in page["lengths"]]
    assert seen == [f"Length in blocks ({length})" for length in lengths]
    assert {shown for _, shown in page["lengths"]} <= {None, True}


def test_squares_have_their_numbers_and_the_colours_of_the_report(page: dict[str, Any]) -> None:
    assert [square["text"] for square in page["done"]["squares"]] == [str(i) for i in range(1, 10)]
    for square in page["done"]["squares"]:
        outcome = Outcome[square["fate"].upper()]
        assert square["colour"] == "rgb({}, {}, {})".format(*bytes.fromhex(COLOURS[outcome][1:]))
        assert square["width"] >= 8


def test_a_square_says_what_it_is_to_mouse_and_screen_reader(page: dict[str, Any]) -> None:
    first, second, *_ = page["done"]["squares"]
    assert re.fullmatch(r"Block 1 of 9 · forced · \d+\.\d s", first["title"])
    assert re.fullmatch(r"Block 2 of 9 · kept · worst frame \d+: -?\d+\.\d\d · \d+\.\d s", second["title"])
    assert all(square["title"] == square["label"] for square in page["done"]["squares"])
    pair = r"predicted for the published pair on an H100: \d+\.\d s, target-only \d+\.\d s"
    assert re.fullmatch(rf"forced 1kept 5remade 3\d+\.\d s{pair}", page["done"]["legend"])


def test_the_strip_is_neither_saved_nor_sent(page: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Fails if the widget lacks one of its two `serialize`."""
    inputs = schemas["SDVGSpeculativeSampler"]["input"]
    seed = 2 if page["done"]["saved"][4] == 2 else 1
    assert page["done"]["saved"] == page["loaded"]["saved"]
    assert page["done"]["saved"] == [
        "",
        64,
        64,
        9,
        seed,
        "fixed",
        "preset",
        "committed",
        False,
        "auto",
        "",
        "",
        *SCHEDULES,
        4,
        "auto",
        "",
        0,
        0,
    ]
    assert set(page["done"]["sent"]) <= {*inputs["required"], *inputs["optional"]}


def test_the_strip_comes_back_when_its_workflow_does(page: dict[str, Any]) -> None:
    """After a step undone, which makes all nodes anew; and not in another workflow that it is none of."""
    assert page["reopened"] == ROUTE
    assert page["elsewhere"] == [None] * 9


def test_the_page_asks_no_other_host_and_nothing_goes_wrong(page: dict[str, Any]) -> None:
    """With news of unknown ids, ids inside a node that is no subgraph, and another workflow's sampler."""
    assert (page["strayed"], page["errors"]) == (ROUTE, [])
    assert page["hosts"] == []


def test_no_notice_of_deprecation_is_about_us(page: dict[str, Any]) -> None:
    """ComfyUI's page has some of its own. Catches: a call of ours to what the page will take away."""
    told = page["deprecated"]
    assert all(one["scripts"] for one in told)
    ours = [one for one in told if any(f"/extensions/{CNR}/" in script for script in one["scripts"])]
    assert ours == []
    assert [one for one in told if CNR in one["text"].lower()] == []


def test_python_warns_of_nothing_that_we_use_on_the_server(page: dict[str, Any], server: Server) -> None:
    """The run above is in the log. Python names the file that a warning is about."""
    log = (server.folder / "log").read_text(encoding="utf-8", errors="replace")
    told = [line for line in log.splitlines() if re.search("deprecat", line, re.IGNORECASE)]
    ours = (f"custom_nodes/{CNR}/", f"{ROOT}/nodes/", f"{ROOT}/sdvg_core/")
    assert [line for line in told if any(place in line for place in ours)] == []


@pytest.mark.exhaustive
def test_without_our_javascript_the_run_works_and_the_line_of_text_shows(server: Server, tmp_path: Path) -> None:
    page = browse(server, tmp_path, vue=False, seed=3, withoutOurs=True)
    assert page["done"]["squares"] == []
    assert page["done"]["lines"][-1].startswith("block 9/9: regenerated by the target")
    assert page["errors"] == []


def test_the_report_shows_its_picture_and_its_record(page: dict[str, Any]) -> None:
    """ComfyUI shows the picture; the text that it shows of other nodes it does not show of ours."""
    assert page["loaded"]["record"]["text"] == ""
    assert page["loaded"]["pictures"] == 0
    assert page["done"]["pictures"] == 1
    assert page["done"]["record"]["fold"]
    assert not page["done"]["record"]["visible"]
    record = json.loads(page["done"]["record"]["text"])
    assert [block["author"] for block in record["blocks"]] == [
        "drafter" if outcome == "kept" else "target" for outcome in ROUTE
    ]


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_our_own_text_can_be_read_in_both_palettes(palette: str, page: dict[str, Any]) -> None:
    """Strip, menu and record. Catches: a colour that the palette does not give, and letters below ten pixels."""
    texts = page["readable"][palette]
    said = {text for *_, text in texts}
    assert {"1", "9", "forced 1", "keep the draft", "record"} <= said
    assert [text for text in texts if text[0] < 4.5 or text[1] < 10] == []
    assert page["readable"]["sent"][palette] == palette, "the report's picture follows"


def test_the_record_on_the_node_is_neither_saved_nor_sent(page: dict[str, Any]) -> None:
    assert page["done"]["record"]["saved"] == [False, "auto"]
    assert page["done"]["record"]["sent"] == ["prompt_in_report", "theme", "report"]


@pytest.mark.parametrize("how", ["reloaded", "copied"])
def test_strip_picture_and_record_come_back(how: str, page: dict[str, Any]) -> None:
    """After the page was loaded anew, from the server's history; and from its cache, when nothing had to be run."""
    if how != "reloaded" and VERSION < (0, 18, 1):
        pytest.skip("before 0.18.1 ComfyUI says nothing of a node that it took from its cache")
    assert [square["fate"] for square in page[how]["squares"]] == ROUTE
    assert page[how]["record"]["text"] == page["done"]["record"]["text"]
    assert page[how]["pictures"] == 1


def test_what_nobody_remembers_is_not_shown(page: dict[str, Any]) -> None:
    """Else the test above would see in the cached run what was there before it."""
    assert page["opened"]["record"]["text"] == ""
    assert [square["fate"] for square in page["opened"]["squares"]] == [None] * 9


def test_a_saved_workflow_says_which_version_of_the_pack_saved_it(page: dict[str, Any]) -> None:
    ours = {node["type"]: node["properties"] for node in page["done"]["workflow"]["nodes"]}
    for node in ("SDVGPocketModels", "SDVGQualityRouter", "SDVGSpeculativeSampler", "SDVGRouteReport"):
        assert (ours[node]["cnr_id"], ours[node]["ver"]) == (CNR, __version__)
    assert ours["SaveVideo"].get("cnr_id") != CNR


def test_a_workflow_from_a_newer_version_is_announced_and_stays_marked(page: dict[str, Any]) -> None:
    assert page["quiet"] == []
    [told] = page["told"]
    assert told.startswith("This workflow is from a newer SDVG")
    assert f"saved by version 9.10.0, and this is {__version__}" in told
    versions = {node: version for node, pack, version in page["versions"] if pack == CNR}
    assert versions["SDVGSpeculativeSampler"] == "9.10.0"
    assert versions["SDVGQualityRouter"] == __version__


def test_the_page_knows_the_version_of_the_pack() -> None:
    source = (ROOT / "nodes" / "web" / "pack_version.js").read_text(encoding="utf-8")
    assert re.findall(r'^const VERSION = "(.*)";', source, re.MULTILINE) == [__version__]


def test_the_strip_knows_every_fate() -> None:
    """Also those that the run above does not meet."""
    source = (ROOT / "nodes" / "web" / "fates.js").read_text(encoding="utf-8")
    known = re.findall(r'^  (\w+): \{ colour: "(#\w{6})", ink: "#(\w)\w\w"', source, re.MULTILINE)
    assert known == [(outcome.name.lower(), COLOURS[outcome], INKS[outcome][1].lower()) for outcome in Outcome]
