"""The words of the nodes: names, tooltips and help pages, in two languages."""

import re

import pytest
from comfy_page import NODES, inputs_of
from running_server import CNR
from sdvg_pack.sdvg_core.pocket import DEFAULT_PROMPT

pytestmark = pytest.mark.comfyui

LANGUAGES = ("en", "zh")


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("page_of", ["{}.md", "{}/zh.md"])
def test_a_help_page_is_served_with_its_pictures_and_names_every_input(server, schemas, node, page_of):
    """Pictures lie where the help panel looks: relative to the folder of all pages, for translations too."""
    folder = f"/extensions/{CNR}/docs"
    text = server.raw(f"{folder}/{page_of.format(node)}").decode()
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert server.raw(f"{folder}/{picture}").startswith(b"\x89PNG")
    for name in inputs_of(schemas[node]["input"]):
        assert re.search(rf"\b{name.split('.')[-1]}\b", text), f"{name} is not explained"


def english(schema):
    """Return what the English file must say of a node, all but the names; it is written in the schema."""
    inputs = inputs_of(schema["input"]).items()
    tooltips = schema["output_tooltips"]
    return {
        "display_name": schema["display_name"],
        "description": schema["description"],
        "inputs": {n.replace(".", "_"): {"tooltip": options["tooltip"]} for n, (_, options) in inputs},
        "outputs": {str(i): {"tooltip": tooltip} for i, tooltip in enumerate(tooltips)},
    }


def unnamed(words):
    """Return what a file says of a node without the names of its slots."""
    slots = ("inputs", "outputs")
    return words | {kind: {n: {"tooltip": slot["tooltip"]} for n, slot in words[kind].items()} for kind in slots}


def shape(value):
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else bool(value)


def test_english_says_what_the_nodes_say(server, schemas):
    """The schemas take their words from the file: fails if an input has none, or the file has words of no input."""
    served = server.ask("/i18n")["en"]["nodeDefs"]
    assert f'"{DEFAULT_PROMPT}"' in served["SDVGPocketModels"]["inputs"]["prompt"]["tooltip"]
    assert {node: unnamed(served[node]) for node in NODES} == {node: english(schemas[node]) for node in NODES}


def test_options_for_research_wait_behind_advanced(schemas):
    """Catches: an option that an artist meets before those that matter."""
    shown = {node: set(plain_inputs(schemas[node]["input"])) for node in NODES}
    assert shown["SDVGDrafterLoader"] == shown["SDVGTargetLoader"] == {"file", "preset", "control"}
    assert shown["SDVGQualityRouter"] == {"reward_file", "policy", "scorer"}
    research = {"schedule", "drafter_context", "kv_dtype", "reuse_gb", "tae_kind"}
    research |= {"drafter_schedule", "target_schedule", "directions", "takes"}
    assert not research & shown["SDVGSpeculativeSampler"]
    options = schemas["SDVGQualityRouter"]["input"]["required"]["policy"][1]["options"]
    reward = next(option for option in options if option["key"] == "reward")
    assert plain_inputs(reward["inputs"]) == ["tau"]


def plain_inputs(spec):
    """Return the inputs that are not advanced."""
    every = {**spec.get("required", {}), **spec.get("optional", {})}
    return [name for name, (_, *rest) in every.items() if not (rest and rest[0].get("advanced"))]


def test_chinese_says_as_much_as_english(server):
    served = server.ask("/i18n")
    en, zh = (served[language]["nodeDefs"] for language in LANGUAGES)
    assert {node: shape(zh[node]) for node in NODES} == {node: shape(en[node]) for node in NODES}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_name_has_a_sign_that_means_something_to_the_page(server, language):
    """The page formats names and descriptions, and would take these for placeholders, links and plurals."""
    for node in NODES:
        words = server.ask("/i18n")[language]["nodeDefs"][node]
        slots = [*words["inputs"].values(), *words["outputs"].values()]
        for text in (words["display_name"], words["description"], *(slot["name"] for slot in slots)):
            assert not set(text) & set("{}@|$"), text
