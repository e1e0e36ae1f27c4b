"""What an artist sees in ComfyUI's page: the strip on the sampler, help pages, and the words in two languages.

The page is a headless Chromium's. It needs a program `chromium` (or CHROMIUM), `node`, and the npm package
playwright-core in NODE_PATH or ~/comfy/browser/node_modules; tests that need none of them run without.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from running_server import CNR, ROOT, VERSION, Server, needs_device_nodes
from sdvg_pack.sdvg_core import __version__
from sdvg_pack.sdvg_core.report.fates import COLOURS, INKS, Fate
from test_workflows import with_tiny_models

pytestmark = pytest.mark.comfyui

HERE = Path(__file__).resolve().parent
NODES = (
    "SDVGDrafterLoader",
    "SDVGTargetLoader",
    "SDVGQualityRouter",
    "SDVGPrompt",
    "SDVGPromptSchedule",
    "SDVGSpeculativeSampler",
    "SDVGRouteReport",
    "SDVGPocketModels",
)
LANGUAGES = ("en", "zh")
WORKFLOWS = sorted((ROOT / "workflows").glob("*.json"))
POCKET_DEMO = ROOT / "workflows" / "sdvg_1_pocket_demo.json"
PAPER_GATE = ROOT / "workflows" / "sdvg_6_paper_gate.json"
TEXT_TO_VIDEO = ROOT / "workflows" / "sdvg_3_text_to_video.json"
SCRIPT = "raaraarar"
SCHEDULES = ("as for both", "as for both")
ROUTE = ["forced", "kept", "kept", "remade", "kept", "kept", "remade", "kept", "remade"]


@pytest.fixture(scope="module")
def schemas(server: Server) -> dict[str, Any]:
    """What the server says of our nodes."""
    every = server.ask("/object_info")
    return {name: every[name] for name in NODES}


# --- the strip --------------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module", params=["canvas", "nodes 2.0"])
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


def test_a_run_fills_one_square_per_block_with_its_fate(page: dict[str, Any]) -> None:
    assert [square["fate"] for square in page["loaded"]["squares"]] == [None] * 9
    assert page["loaded"]["visible"]
    assert [square["fate"] for square in page["done"]["squares"]] == ROUTE
    assert page["done"]["visible"]


def test_squares_have_their_numbers_and_the_colours_of_the_report(page: dict[str, Any]) -> None:
    assert [square["text"] for square in page["done"]["squares"]] == [str(i) for i in range(1, 10)]
    for square in page["done"]["squares"]:
        fate = Fate[square["fate"].upper()]
        assert square["colour"] == "rgb({}, {}, {})".format(*bytes.fromhex(COLOURS[fate][1:]))
        assert square["width"] >= 8


def test_a_square_says_what_it_is_to_mouse_and_screen_reader(page: dict[str, Any]) -> None:
    first, second, *_ = page["done"]["squares"]
    assert re.fullmatch(r"Block 1 of 9 · forced · \d+\.\d s", first["title"])
    assert re.fullmatch(r"Block 2 of 9 · kept · worst frame \d+: -?\d+\.\d\d · \d+\.\d s", second["title"])
    assert all(square["title"] == square["label"] for square in page["done"]["squares"])
    legend = r"forced 1kept 5remade 3\d+\.\d s(\d+\.\dx as fast as target-only)?"
    assert re.fullmatch(legend, page["done"]["legend"])


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
        2,
        "auto",
    ]
    assert set(page["done"]["sent"]) <= {*inputs["required"], *inputs["optional"]}


def test_news_of_nodes_that_are_not_here_changes_nothing(page: dict[str, Any]) -> None:
    """Unknown ids, ids inside a node that is no subgraph, another node's id, and another workflow's sampler."""
    assert page["strayed"] == ROUTE
    assert page["errors"] == []


def test_the_strip_comes_back_when_its_workflow_does(page: dict[str, Any]) -> None:
    """After a step undone or a visit to another tab, both of which make all nodes anew."""
    assert page["reopened"] == ROUTE
    assert page["elsewhere"] == ["kept", *[None] * 8]


def test_the_page_asks_no_other_host(page: dict[str, Any]) -> None:
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
    assert [line for line in told if f"custom_nodes/{CNR}/" in line or str(ROOT) in line] == []


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
        "drafter" if fate == "kept" else "target" for fate in ROUTE
    ]


def test_the_picture_has_the_room_and_the_record_is_folded(page: dict[str, Any]) -> None:
    """Catches: a record that takes the picture's room, and the empty record of a node that is no more."""
    seen = page["unfolded"]
    assert [seen[when]["record"] > 50 for when in ("before", "open", "after")] == [False, True, False]
    if seen["before"]["node"] is not None:  # Nodes 2.0; the canvas draws the picture itself
        assert seen["before"]["picture"] > seen["before"]["node"] / 2
    assert seen["undone"]["record"] > 50
    assert seen["undone"]["text"] == page["done"]["record"]["text"]


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_our_own_text_can_be_read_in_both_palettes(palette: str, page: dict[str, Any]) -> None:
    """Strip, menu and record. Catches: a colour that the palette does not give, and letters below ten pixels."""
    texts = page["readable"][palette]
    said = {text for *_, text in texts}
    assert {"1", "9", "forced 1", "keep the draft", "record"} <= said
    assert [text for text in texts if text[0] < 4.5 or text[1] < 10] == []


def test_the_record_on_the_node_is_neither_saved_nor_sent(page: dict[str, Any]) -> None:
    assert not any(page["done"]["record"]["saved"])
    assert page["done"]["record"]["sent"] == ["prompt_in_report", "report"]


@pytest.mark.parametrize("how", ["reloaded", "cached", "copied"])
def test_strip_picture_and_record_come_back(how: str, page: dict[str, Any]) -> None:
    """After the page was loaded anew, from the server's history; and from its cache, when nothing had to be run.

    `copied`: from the cache, for the workflow saved under another id than the one that made it.
    """
    if how != "reloaded" and VERSION < (0, 18, 1):
        pytest.skip("before 0.18.1 ComfyUI says nothing of a node that it took from its cache")
    assert [square["fate"] for square in page[how]["squares"]] == ROUTE
    assert page[how]["record"]["text"] == page["done"]["record"]["text"]
    assert page[how]["pictures"] == 1


def test_what_nobody_remembers_is_not_shown(page: dict[str, Any]) -> None:
    """Else the test above would see in the cached run what was there before it.

    Without a history the server still knows the newest run of a node, but not what the report showed.
    """
    assert page["forgotten"]["record"]["text"] == page["opened"]["record"]["text"] == ""
    assert [square["fate"] for square in page["forgotten"]["squares"]] == ROUTE
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
    assert known == [(fate.name.lower(), COLOURS[fate], INKS[fate][1].lower()) for fate in Fate]


# --- shared workflows --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dropped(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of all workflows, dropped on one page; the pocket demo was run as it is."""
    files, runs = [str(path) for path in WORKFLOWS], WORKFLOWS.index(POCKET_DEMO)
    return browse(server, tmp_path_factory.mktemp("page"), "drop.js", files=files, runs=runs)


@pytest.fixture(scope="module")
def dropped_in_nodes_2(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same of two; the demo with a seed of its own, for from the cache a sampler shows no preview."""
    folder = tmp_path_factory.mktemp("page")
    workflow = json.loads(POCKET_DEMO.read_text(encoding="utf-8"))
    [sampler] = [node for node in workflow["nodes"] if node["type"] == "SDVGSpeculativeSampler"]
    sampler["widgets_values"] = [43 if value == 42 else value for value in sampler["widgets_values"]]
    demo = folder / POCKET_DEMO.name
    demo.write_text(json.dumps(workflow), encoding="utf-8")
    return browse(server, folder, "drop.js", vue=True, files=[str(demo), str(PAPER_GATE)], runs=0)


@pytest.mark.parametrize("renderer", ["dropped", "dropped_in_nodes_2"])
def test_words_of_an_opened_workflow_can_be_read(renderer: str, request: pytest.FixtureRequest) -> None:
    """Below a scale of 0.571 the classic canvas draws no text. Markdown of the page is 10 pixels high and up."""
    for page in request.getfixturevalue(renderer)["dropped"]:
        assert 0.8 <= page["scale"] <= 1
        assert page["notes"]
        assert [note for note in page["notes"] if note["contrast"] < 4.5 or note["pixels"] < 10] == []
        assert [lines for lines in page["hidden"] if lines > 2] == []


@pytest.mark.parametrize("renderer", ["dropped", "dropped_in_nodes_2"])
def test_nodes_stay_in_their_groups_also_after_a_run(renderer: str, request: pytest.FixtureRequest) -> None:
    seen = request.getfixturevalue(renderer)
    assert [page["astray"] for page in seen["dropped"]] == [[]] * len(seen["dropped"])
    assert seen["ran"]["astray"] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_dropped_on_the_canvas_opens_with_all_its_nodes(path: Path, dropped: dict[str, Any]) -> None:
    """The pocket demo is run as well; the others need models that are not here."""
    needs_device_nodes(path)
    page, saved = dropped["dropped"][WORKFLOWS.index(path)], json.loads(path.read_text(encoding="utf-8"))
    assert sorted(page["types"]) == sorted(node["type"] for node in saved["nodes"])
    assert page["missing"] == []
    assert not any("newer SDVG" in told for told in page["told"])
    assert dropped["errors"] == []
    if path == POCKET_DEMO:
        assert len(dropped["ran"]["fates"]) == 9
        assert None not in dropped["ran"]["fates"]
        assert dropped["ran"]["seconds"] == pytest.approx(105 / 16, abs=0.1)


# --- help pages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("page_of", ["{}.md", "{}/zh.md"])
def test_a_help_page_is_served_with_its_pictures_and_names_every_input(
    server: Server, schemas: dict[str, Any], node: str, page_of: str
) -> None:
    """Pictures lie where the help panel looks: relative to the folder of all pages, for translations too."""
    folder = f"/extensions/{CNR}/docs"
    text = server.raw(f"{folder}/{page_of.format(node)}").decode()
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert server.raw(f"{folder}/{picture}").startswith(b"\x89PNG")
    for name in inputs_of(schemas[node]["input"]):
        assert re.search(rf"\b{name.split('.')[-1]}\b", text), f"{name} is not explained"


# --- languages --------------------------------------------------------------------------------------------------


def inputs_of(spec: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return name -> tooltip of all inputs, those that belong to a choice included, as `policy.tau`."""
    found: dict[str, str] = {}
    for name, (kind, *rest) in {**spec.get("required", {}), **spec.get("optional", {})}.items():
        found[prefix + name] = rest[0]["tooltip"]
        if kind == "COMFY_DYNAMICCOMBO_V3":
            for option in rest[0]["options"]:
                found |= inputs_of(option["inputs"], f"{prefix}{name}.")
    return found


def english(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what the English file must say of a node, all but the names; it is written in the schema."""
    inputs = inputs_of(schema["input"]).items()
    tooltips = schema["output_tooltips"]
    return {
        "display_name": schema["display_name"],
        "description": schema["description"],
        "inputs": {n.replace(".", "_"): {"tooltip": tooltip} for n, tooltip in inputs},
        "outputs": {str(i): {"tooltip": tooltip} for i, tooltip in enumerate(tooltips)},
    }


def unnamed(words: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says of a node without the names of its slots."""
    slots = ("inputs", "outputs")
    return words | {kind: {n: {"tooltip": slot["tooltip"]} for n, slot in words[kind].items()} for kind in slots}


def shape(value: Any) -> Any:
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else bool(value)


def test_english_says_what_the_nodes_say(server: Server, schemas: dict[str, Any]) -> None:
    """Fails if a tooltip was changed in the node alone: then change it in the file, and in the translations."""
    served = server.ask("/i18n")["en"]["nodeDefs"]
    assert {node: unnamed(served[node]) for node in NODES} == {node: english(schemas[node]) for node in NODES}


ABBREVIATIONS = {"EMA", "GB", "JSON", "TAEHV", "VAE"}


@pytest.mark.parametrize("node", NODES)
def test_an_english_name_is_a_few_plain_words_and_no_other_inputs(server: Server, node: str) -> None:
    """Catches: an input that shows its id, a name too long for its row, two rows of a node that read the same."""
    words = server.ask("/i18n")["en"]["nodeDefs"][node]
    inputs = [slot["name"] for slot in words["inputs"].values()]
    for name in [*inputs, *(slot["name"] for slot in words["outputs"].values())]:
        first, *others = re.findall(r"[\w']+", name)
        assert first[0].isupper(), name
        assert all(word.islower() or word in ABBREVIATIONS for word in others), name
        assert "_" not in name
        assert len(name) <= 26, name
    assert len(set(inputs)) == len(inputs)


def test_options_for_research_wait_behind_advanced(schemas: dict[str, Any]) -> None:
    """Catches: an option that an artist meets before those that matter."""
    shown = {node: set(plain_inputs(schemas[node]["input"])) for node in NODES}
    assert shown["SDVGDrafterLoader"] == shown["SDVGTargetLoader"] == {"file", "preset"}
    assert shown["SDVGQualityRouter"] == {"reward_file", "policy", "scorer"}
    research = {"schedule", "drafter_context", "overlap", "kv_dtype", "reuse_gb", "tae_kind"}
    research |= {"drafter_schedule", "target_schedule"}
    assert not research & shown["SDVGSpeculativeSampler"]
    options = schemas["SDVGQualityRouter"]["input"]["required"]["policy"][1]["options"]
    reward = next(option for option in options if option["key"] == "reward")
    assert plain_inputs(reward["inputs"]) == ["tau"]


def plain_inputs(spec: dict[str, Any]) -> list[str]:
    """Return the inputs that are not advanced."""
    every = {**spec.get("required", {}), **spec.get("optional", {})}
    return [name for name, (_, *rest) in every.items() if not (rest and rest[0].get("advanced"))]


def test_widgets_of_an_option_are_spoken_of_in_the_pages_language(server: Server, tmp_path: Path) -> None:
    """ComfyUI would show the English tooltip written on them, before the translated one."""
    page = browse(server, tmp_path, "tooltips.js", locale="zh")
    zh = server.ask("/i18n")["zh"]["nodeDefs"]["SDVGQualityRouter"]["inputs"]
    for chosen, names in (("first", ("tau", "aggregation", "quantile")), ("second", ("rate", "seed"))):
        assert page[chosen] == [[f"policy.{name}", zh[f"policy_{name}"]["name"], None] for name in names]
    assert page["errors"] == []


def test_chinese_says_as_much_as_english(server: Server) -> None:
    served = server.ask("/i18n")
    en, zh = (served[language]["nodeDefs"] for language in LANGUAGES)
    assert {node: shape(zh[node]) for node in NODES} == {node: shape(en[node]) for node in NODES}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_name_has_a_sign_that_means_something_to_the_page(server: Server, language: str) -> None:
    """The page formats names and descriptions, and would take these for placeholders, links and plurals."""
    for node in NODES:
        words = server.ask("/i18n")[language]["nodeDefs"][node]
        slots = [*words["inputs"].values(), *words["outputs"].values()]
        for text in (words["display_name"], words["description"], *(slot["name"] for slot in slots)):
            assert not set(text) & set("{}@|$"), text


def test_a_workflow_saved_before_there_were_weights_takes_auto(server: Server, tmp_path: Path) -> None:
    """Catches a new input of the loaders that is not the last: values are saved by their place alone."""
    now = json.loads(TEXT_TO_VIDEO.read_text(encoding="utf-8"))
    before = json.loads(json.dumps(now))
    for node in before["nodes"]:
        if node["type"] in ("SDVGDrafterLoader", "SDVGTargetLoader"):
            node["inputs"] = [slot for slot in node["inputs"] if slot["name"] != "weights"]
            assert node["widgets_values"].pop() == "auto"
    one, other = browse(server, tmp_path, "convert.js", workflows=[before, now])["prompts"]
    assert one == other
    assert json.dumps(one).count('"weights": "auto"') == 2


@pytest.fixture(scope="module")
def converted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The prompts of saved workflows, opened in the page: each as it was, then as it is now."""
    pairs = ("before_directions", POCKET_DEMO), ("before_sdvg_prompt", TEXT_TO_VIDEO)
    paths = [path for saved, now in pairs for path in (HERE / "saved" / f"{saved}.json", now)]
    workflows = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    workflows[2:] = map(with_tiny_models, workflows[2:])
    return browse(server, tmp_path_factory.mktemp("page"), "convert.js", workflows=workflows)["prompts"]


def latents_of(server: Server, prompt: dict[str, Any]) -> torch.Tensor:
    """Run a prompt's sampler over two blocks, and return the latents as the server saved them."""
    [sampler] = [key for key, node in prompt.items() if node["class_type"] == "SDVGSpeculativeSampler"]
    prompt[sampler]["inputs"]["blocks"] = 2
    ends = ("SaveVideo", "SDVGRouteReport")
    kept = {key: node for key, node in prompt.items() if node["class_type"] not in ends}
    kept["kept"] = {"class_type": "SaveLatent", "inputs": {"samples": [sampler, 1], "filename_prefix": "saved"}}
    done = server.run(kept)
    assert done.status == "success", done.message("execution_error")
    [file] = done.outputs["kept"]["latents"]
    return safetensors.torch.load(server.view(file))["latent_tensor"]


@pytest.mark.parametrize("pair", [0, 1], ids=["before_directions", "before_sdvg_prompt"])
def test_a_workflow_saved_by_an_older_version_makes_the_same_video(
    pair: int, converted: list[dict[str, Any]], server: Server
) -> None:
    """Both had the prompt's text over a wire of its own, which the shared ones no longer have."""
    before, now = converted[2 * pair : 2 * pair + 2]
    [wired] = [n["inputs"]["prompt"] for n in before.values() if n["class_type"] == "SDVGSpeculativeSampler"]
    assert isinstance(wired, list)
    assert torch.equal(latents_of(server, before), latents_of(server, now))
