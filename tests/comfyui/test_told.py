"""What the nodes tell in ComfyUI's page: errors in words, where one looks, and which prompt is shown instead."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_page import browse
from running_server import Refused, Server
from sdvg_pack.sdvg_core.pocket import EXAMPLES
from server_prompts import GONE, POCKET, SAMPLER, node, pocket

pytestmark = pytest.mark.comfyui

WHALES = "two whales sing over the sea"
READABLE = 4.5  # by WCAG 2.2


@pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
def page(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was seen in one of the two renderers, each with a seed of its own, after a run was sent NaN."""
    assert server.run(pocket(router__policy__tau=float("nan"))).message("execution_error")
    vue = request.param == "nodes 2.0"
    control = {"width": 64, "height": 64, "length": 105}
    folder = tmp_path_factory.mktemp("page")
    return browse(server, folder, "told.js", vue=vue, seed=402 if vue else 401, control=control)


SENTENCES = [
    "width 72 is no multiple of 16; use 64 or 80",
    "the take is '12:x'; write for example 6:2 (block 6, take 2)",
    "the script 'raxr' has letters besides a, r, d, t; write for example raaraaaaa",
    "the prompt '",
    "the target has no control module; load one for it",
]


def test_the_strip_shows_the_sentence_itself_in_readable_red(page: dict[str, Any]) -> None:
    """Whether the server refused to queue it, or it failed in a node before the sampler."""
    for seen, sentence in zip(page["refused"], SENTENCES, strict=True):
        assert seen["text"].startswith(sentence)
        assert min(seen["contrast"].values()) >= READABLE, seen["contrast"]
    assert page["cleared"]["text"] == ""


def test_the_pocket_node_says_which_prompt_it_shows_instead_of_the_one_typed(page: dict[str, Any]) -> None:
    """Also when the page is loaded anew, and sets its nodes up twice."""
    [told] = page["shown"]
    assert "shown is the nearest one of the pocket world: a big" in told
    assert page["reloaded"] == [page["shown"]] * 2


def test_an_example_is_written_into_the_prompt_and_the_list_is_neither_saved_nor_sent(page: dict[str, Any]) -> None:
    chosen, inputs, saved = page["example"].values()
    assert chosen == EXAMPLES[2]
    assert inputs == {"prompt": chosen, "strict": False}
    assert saved == [chosen, False]


def test_nothing_went_wrong_meanwhile(page: dict[str, Any]) -> None:
    assert page["errors"] == []


IMAGE = node("EmptyImage", width=64, height=64, batch_size=1, color=0)
# Changes of the pocket workflow that are refused before anything is loaded, and what is said.
REFUSED = [
    ({"sampler__height": 100}, "height 100 is no multiple of 16"),
    ({"sampler__width": 8}, "width is 8, not a whole number from 16 to 4096"),
    ({"sampler__directions": "tx."}, "the directions 'tx.' have unknown letters"),
    ({"sampler__directions": "t..."}, "the 4 directions 't...' are not one for each of the 3 blocks"),
    ({"sampler__takes": "4:2"}, "the take 4:2 is of block 4; choose one of blocks 1 to 3"),
    ({"sampler__drafter": GONE, "sampler__target": GONE}, "there is neither"),
    (
        {"extra": IMAGE, "sampler__start_image": ["extra", 0], "sampler__continue_from": [SAMPLER, 1]},
        "there are two",
    ),
]


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_can_be_told_beforehand_is_refused_before_anything_is_loaded(
    server: Server, changes: dict[str, Any], sentence: str
) -> None:
    prompt = pocket(**changes)
    if "sampler__continue_from" in changes:
        clip = pocket()[SAMPLER]
        prompt["clip"], prompt[SAMPLER]["inputs"]["continue_from"] = clip, ["clip", 1]
    with pytest.raises(Refused, match=sentence):
        server.queue(prompt)


def test_a_strict_pocket_world_refuses_before_it_loads(server: Server) -> None:
    prompt = pocket()
    prompt[POCKET]["inputs"] |= {"prompt": WHALES, "strict": True}
    with pytest.raises(Refused, match=r"outside the grammar(.|\n)*DIRECTION ="):
        server.queue(prompt)


def test_a_refusal_names_the_preset_and_the_widget_that_are_on_the_screen(server: Server) -> None:
    """Catches the policy `first` and its `handover`, which no artist has chosen."""
    preset = {"router__policy": "balanced", "router__policy__target_blocks": 2, "sampler__drafter": GONE}
    said = []
    for blocks, steps in ((2, 2), (3, 0)):
        refused = server.run(pocket(blocks, **preset, router__policy__handover_steps=steps)).message(
            "execution_error"
        )
        assert refused
        said.append(refused["exception_message"])
    assert said[0].startswith("a handover needs a drafter")
    assert "set handover_steps to 0" in said[0]
    assert said[1].startswith("the policy balanced needs a drafter")


def test_on_the_embedded_set_the_strip_predicts_the_published_pair_but_not_target_only(server: Server) -> None:
    told = [
        server.run(pocket(sampler__seed=420, router__policy=policy)).outputs[SAMPLER]["sdvg_run"][0]
        for policy in ("always-draft", "always-target")
    ]
    routed, alone = told[0]["published"]
    assert 0 < routed < alone
    assert told[1]["published"] is None
    assert "speed_up" not in told[0]
