"""What an artist sees of a run in ComfyUI's page: the strip on the sampler, and the report.

What the page needs is said in comfy_page.py; tests that need no page run without.
"""

import json
import re

import pytest
from comfy_page import ROUTE, WEAKEST, browse, page_of
from running_server import CNR, ROOT
from sdvg_pack.sdvg_core import __version__
from sdvg_pack.sdvg_core.pocket import EXAMPLE_PROMPTS
from sdvg_pack.sdvg_core.report.summary import INKS, OUTCOME_COLOURS, Outcome

pytestmark = pytest.mark.comfyui

SCHEDULES = ("as for both", "as for both")
SEED = 300
EMPTY = [None] * 9
EVERYTHING, AT_MOST, NOTHING = (
    f"next run: {what}" for what in ("remakes every block", "may remake every block", "nothing to remake")
)
page = page_of("interface.js", seed=SEED)


def test_sampler_says_how_long_the_video_is(page):
    """Catches: a length that does not follow its blocks, in one of the renderers."""
    lengths = ["1 block = 0.6 s", "21 blocks = 15.6 s", "9 blocks = 6.6 s"]
    seen = [label for label, _ in page["lengths"]]
    assert seen == [f"Length: {length}" for length in lengths]
    assert {shown for _, shown in page["lengths"]} <= {None, True}


def test_square_says_its_number_and_outcome(page):
    squares = page["done"]["squares"]
    assert [square["text"] for square in squares] == [str(i) for i in range(1, 10)]
    assert min(square["width"] for square in squares) >= 8
    colours = [OUTCOME_COLOURS[Outcome[square["outcome"].upper()]] for square in squares]
    drawn = ["rgb({}, {}, {})".format(*bytes.fromhex(colour[1:])) for colour in colours]
    assert [square["colour"] for square in squares] == drawn, "the report's"
    first, second, *_ = squares
    assert re.fullmatch(r"Block 1 of 9 · large model, by rule · made in \d+\.\d s", first["title"])
    assert re.fullmatch(rf"Block 2 of 9 · small model, checked · {WEAKEST} · made in \d+\.\d s", second["title"])
    assert all(square["title"] == square["label"] for square in squares)


def test_strip_and_record_are_neither_saved_nor_sent(page, schemas):
    """Fails if the widget lacks one of its two `serialize`."""
    inputs = schemas["SDVGSpeculativeSampler"]["input"]
    seed = page["done"]["saved"][4]
    assert seed in (SEED, SEED + 20)
    assert page["done"]["saved"] == page["loaded"]["saved"]
    begun = ["", 64, 64, 9, seed, "fixed", "preset", "committed"]
    rest = ["auto", "", ""]
    assert page["done"]["saved"] == [*begun, *rest, *SCHEDULES, 4, "auto", "", 0, 0, 0, False, 80]
    assert set(page["done"]["sent"]) <= {*inputs["required"], *inputs["optional"]}
    assert page["done"]["record"]["saved"] == [False, "auto"]
    assert page["done"]["record"]["sent"] == ["prompt_in_report", "theme", "report"]


def test_strip_and_report_come_back_with_their_workflow(page):
    """After a step undone, as the page is loaded anew; not in another workflow, and not what nobody remembers.

    Picture and record come from the server's cache, without a run.
    """
    assert page["reopened"] == ROUTE
    assert page["elsewhere"] == EMPTY
    for how, outcomes in (("reloaded", ROUTE), ("copied", ROUTE), ("opened", EMPTY)):
        assert [square["outcome"] for square in page[how]["squares"]] == outcomes, how
    assert page["copied"]["record"]["text"] == page["done"]["record"]["text"]
    assert page["copied"]["pictures"] == 1
    assert page["opened"]["record"]["text"] == ""


def test_news_of_other_runs_do_not_show(page):
    """Of unknown ids, of ids inside a node that is no subgraph, and of another workflow's sampler."""
    assert page["strayed"] == ROUTE


def is_of_ours(scripts):
    """Return whether our code called what wrote a notice, by the scripts on the stack; Vue's proxies are none."""
    callers = [script for script in scripts if "/assets/vendor-" not in script]
    return any(f"/extensions/{CNR}/" in script for script in callers[:2])


OURS = f"http://127.0.0.1/extensions/{CNR}/older_graphs.js"
WRITER, PROXY, CALLER = (f"http://127.0.0.1/assets/{name}-1.js" for name in ("litegraph", "vendor-vue-core", "app"))
STACKS = [
    ([OURS], True),
    ([WRITER, OURS, CALLER], True),
    ([WRITER, PROXY, OURS], True),
    ([WRITER, PROXY, CALLER, OURS], False),
]


@pytest.mark.parametrize(("scripts", "is_ours"), STACKS)
def test_notice_is_about_who_called(scripts, is_ours):
    """Catches: a watch that takes ComfyUI's own calls for ours, or that sees none of ours."""
    assert is_of_ours(scripts) == is_ours


def test_no_notice_of_deprecation_is_about_us(page):
    """ComfyUI's page has some of its own, of what its own code asks for while we hand a call on.

    Catches: a call of ours to what the page will take away.
    """
    notices = page["deprecated"]
    assert all(notice["scripts"] for notice in notices)
    assert [notice for notice in notices if is_of_ours(notice["scripts"])] == []
    assert [notice for notice in notices if CNR in notice["text"].lower()] == []


def test_server_warns_of_nothing_that_we_use(page, server):
    """The run above is in the log. Python names the file that a warning is about."""
    log = (server.folder / "log").read_text(encoding="utf-8", errors="replace")
    warnings = [line for line in log.splitlines() if re.search("deprecat", line, re.IGNORECASE)]
    ours = (f"custom_nodes/{CNR}/", f"{ROOT}/nodes/", f"{ROOT}/sdvg_core/")
    assert [line for line in warnings if any(place in line for place in ours)] == []


@pytest.mark.exhaustive
def test_run_works_without_our_javascript(server, tmp_path):
    page = browse(server, tmp_path, "interface.js", vue=False, seed=3, withoutOurs=True)
    assert page["done"]["squares"] == []
    assert page["done"]["lines"][-1].startswith("block 9/9: remade by the large model")
    assert page["errors"] == []


def test_the_report_shows_its_picture_and_its_record(page):
    """ComfyUI shows the picture; the text that it shows of other nodes it does not show of ours."""
    assert page["loaded"]["record"]["text"] == ""
    assert page["loaded"]["pictures"] == 0
    assert page["done"]["pictures"] == 1
    assert page["done"]["record"]["fold"]
    assert page["done"]["notes"] == json.loads(page["done"]["record"]["text"])["notes"]
    assert page["done"]["notes"], "this run says something"
    assert not page["done"]["record"]["visible"]
    record = json.loads(page["done"]["record"]["text"])
    assert [block["author"] for block in record["blocks"]] == [
        "drafter" if outcome == "kept" else "target" for outcome in ROUTE
    ]


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_text_is_legible_in_both_palettes(palette, page):
    """Strip, menu, record and error. Catches: a colour that is not the palette's, and letters below ten pixels."""
    texts = page["readable"][palette]
    words = {text for *_, text in texts}
    assert {"1", "9", "large model, by rule: 1", "small model makes it", "record", "an error"} <= words
    assert [text for text in texts if text[0] < 4.5 or text[1] < 10] == []


def test_report_picture_follows_the_palette(page):
    """Kind: what is drawn for the page, in every palette and frontend. Catches: a class that one frontend sets."""
    dark = dict.fromkeys(("dark", "arc", "solarized"), "dark")
    assert page["readable"]["sent"] == {**dark, "light": "light"}


def test_saved_workflow_names_the_version_of_the_pack(page):
    ours = {node["type"]: node["properties"] for node in page["done"]["workflow"]["nodes"]}
    for node in ("SDVGPocketModels", "SDVGQualityRouter", "SDVGSpeculativeSampler", "SDVGRouteReport"):
        assert (ours[node]["cnr_id"], ours[node]["ver"]) == (CNR, __version__)
    assert ours["SaveVideo"].get("cnr_id") != CNR


def test_workflow_of_a_newer_version_is_announced(page):
    assert page["quiet"] == []
    [message] = page["told"]
    assert message.startswith("This workflow is from a newer SDVG")
    assert f"Version 9.10.0 saved it, and this is {__version__}" in message
    versions = {node: version for node, pack, version in page["versions"] if pack == CNR}
    assert versions["SDVGSpeculativeSampler"] == "9.10.0"
    assert versions["SDVGQualityRouter"] == __version__


def test_the_strip_knows_every_outcome():
    """Also those that the run above does not meet."""
    source = (ROOT / "nodes" / "web" / "blocks.js").read_text(encoding="utf-8")
    known = re.findall(r'^  (\w+): \{ name: "\1", colour: "(#\w{6})", ink: "#(\w)\w\w"', source, re.MULTILINE)
    assert known == [
        (outcome.name.lower(), OUTCOME_COLOURS[outcome], INKS[outcome][1].lower()) for outcome in Outcome
    ]


# --- what the nodes tell


SENTENCES = [
    "width 72 is no multiple of 16; use 64 or 80",
    "the take is '12:x'; write for example 6:2 (block 6, take 2)",
    "the prompt '",
    "the target has no control module; load one for it",
]


def test_strip_shows_a_refusal_until_a_run(page):
    """Whether the server refused to queue it, or it failed in a node before the sampler."""
    for seen, sentence in zip(page["refused"], SENTENCES, strict=True):
        assert seen.startswith(sentence)
    assert page["cleared"] == ""


def test_pocket_node_says_which_prompt_it_shows(page):
    """Also once the run is over. Catches: a page that takes the line away with the run."""
    [line] = page["shown"]
    assert "shown instead: a big" in line


def test_example_is_written_into_the_prompt(page):
    chosen, inputs, saved = page["example"].values()
    assert chosen == EXAMPLE_PROMPTS[2]
    assert inputs == {"prompt": chosen, "strict": False}
    assert saved == [chosen, False]


# --- whose film the strip shows, and that its forecast is true or not there


def test_copied_workflow_shows_films_of_its_settings_alone(page):
    """Catches a run that is found by the ids of workflow and node alone, which every copy of a template has."""
    opened = page["film"]["opened"]
    assert opened["other"]["outcomes"] == opened["elsewhere"]["outcomes"] == EMPTY
    assert (opened["other"]["next"], opened["other"]["picture"]) == ("", False)
    assert (opened["same"]["outcomes"], opened["same"]["next"]) == (ROUTE, NOTHING)


def test_tab_shows_its_run_after_changed_settings(page):
    own = page["film"]["opened"]["own"]
    reloaded = page["reloaded"]["film"]
    assert (own["outcomes"], own["next"]) == (ROUTE, EVERYTHING)
    assert (reloaded["outcomes"], reloaded["next"]) == (ROUTE, NOTHING)


def test_running_film_shows_in_its_own_tab_alone(page):
    live = page["live"]
    assert live["going"]["stop"]
    assert live["copy"]["outcomes"] == EMPTY
    assert not live["copy"]["stop"]
    assert live["back"]["stop"]
    made = [sum(map(bool, live[name]["outcomes"])) for name in ("going", "back", "done")]
    assert 2 <= made[0] < made[1] <= made[2]


def test_newer_runs_elsewhere_hide_no_film(page):
    """Catches: a run of a script or of another page, whose sampler has the same id, taken for this one's newest."""
    assert page["outlived"]["outcomes"] == page["live"]["done"]["outcomes"]


def test_a_changed_setting_means_everything_again(page):
    """Of the router at most, for it may decide as it did; takes and directions do not count beside another seed."""
    film = page["film"]
    assert film["made"]["next"] == film["back"] == NOTHING
    assert film["changed"] == [AT_MOST, NOTHING, EVERYTHING, EVERYTHING, EVERYTHING]
    assert film["before"] == AT_MOST, "the seed is about to change"
    assert film["forgotten"].endswith("may remake blocks 1 to 9"), "the server has forgotten the run"
