"""Where prompt and seed go in a workflow, and what is said of one that has no place for them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from toy_comfyui import pocket

from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.servers.workflow import Workflow, digest_of, read_workflow

API = Path(__file__).resolve().parents[2] / "workflows" / "api"
ENCODE = {"class_type": "CLIPTextEncode", "inputs": {"text": "a ball", "clip": ["8", 0]}}
SAMPLER = {
    "class_type": "SDVGSpeculativeSampler",
    "inputs": {"prompt": "a ball", "positive": ["2", 0], "seed": 5, "blocks": 3},
}
OWN = {"2": ENCODE, "3": SAMPLER, "4": {"class_type": "SDVGRouteReport", "inputs": {"report": ["3", 2]}}}


def changed(nodes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Nodes with inputs set, as n3__seed=value, or others in their place, as n3=node."""
    nodes = copy.deepcopy(nodes)
    for name, value in changes.items():
        node, _, key = name[1:].partition("__")
        if key:
            nodes[node]["inputs"][key] = value
        else:
            nodes[node] = value
    return nodes


def read(tmp_path: Path, nodes: Any, prompt_node: str | None = None) -> Workflow:
    (tmp_path / "workflow.json").write_text(
        nodes if isinstance(nodes, str) else json.dumps(nodes), encoding="utf-8"
    )
    return read_workflow(tmp_path / "workflow.json", prompt_node)


@pytest.mark.parametrize("path", sorted(API.glob("*.json")), ids=lambda path: path.stem)
def test_every_workflow_of_ours_takes_a_prompt_and_a_seed(path):
    workflow = read_workflow(path)
    filled = json.dumps(workflow.filled("THE PROMPT", 987654321))
    assert filled.count("THE PROMPT") == 1
    assert filled.count("987654321") == 1
    assert workflow.blocks == 9


def test_two_inputs_with_one_text_both_get_the_prompt(tmp_path):
    """A text of its own in each node. Catches: the scorer reads the new prompt and the models see the old one."""
    workflow = read(tmp_path, OWN)
    assert set(workflow.prompts) == {("2", "text"), ("3", "prompt")}
    assert workflow.own_seed == 5


TEXT = {"class_type": "PrimitiveStringMultiline", "inputs": {"value": "a ball"}}
SEED = {"class_type": "PrimitiveInt", "inputs": {"value": 8}}


@pytest.mark.parametrize(
    "nodes, places, seed",
    [
        (changed(OWN, n9=TEXT, n2__text=["9", 0], n3__prompt=["9", 0]), {("9", "value")}, ("3", "seed")),
        (changed(OWN, n9=SEED, n3__seed=["9", 0]), {("2", "text"), ("3", "prompt")}, ("9", "value")),
        (
            changed(OWN, n9={"class_type": "X", "inputs": {"conditioning": ["2", 0]}}, n3__positive=["9", 0]),
            {("2", "text"), ("3", "prompt")},
            ("3", "seed"),
        ),
        (
            changed(OWN, n2={"class_type": "SDVGPrompt", "inputs": {"prompt": "a ball"}}, n3__prompt=["2", 1]),
            {("2", "prompt")},
            ("3", "seed"),
        ),
        (
            changed(OWN, n2={"class_type": "SDVGPrompt", "inputs": {"text": "a ball"}}, n3__prompt=" "),
            {("2", "text")},
            ("3", "seed"),
        ),
    ],
    ids=[
        "a node of text",
        "a node of a number",
        "conditioning in between",
        "one node for both",
        "text that comes with the conditioning",
    ],
)
def test_wires_are_followed_to_where_the_value_is(tmp_path, nodes, places, seed):
    workflow = read(tmp_path, nodes)
    assert (set(workflow.prompts), workflow.seed) == (places, seed)


@pytest.mark.parametrize(
    "nodes, why",
    [
        (changed(OWN, n2__text="another"), "lead to 3.prompt, 2.text; wire one text into both, or .*--prompt-node"),
        (changed(OWN, n2__text=["2", 0]), "--prompt-node"),
        (changed(OWN, n2__text=["77", 0]), "--prompt-node"),
        (changed(OWN, n3__prompt=7), "--prompt-node"),
        (changed(OWN, n2={"class_type": "X", "inputs": {"prompt": "a", "text": "b"}}), "--prompt-node"),
        (changed(OWN, n3__seed="five"), "the seed .* take the wire off"),
        (changed(OWN, n3__seed=True), "the seed"),
        (changed(OWN, n3__seed=["2", 0]), "the seed"),
        (changed(OWN, n5=SAMPLER), "needs one SDVGSpeculativeSampler, .* has 2"),
        ({"4": OWN["4"]}, "needs one SDVGSpeculativeSampler, .* has 0"),
        ({"2": ENCODE, "3": SAMPLER}, "has none; wire one to the sampler"),
        ({"nodes": [], "links": []}, "form of the editor; .*Export"),
        ({"1": []}, "has something else"),
        ([], "has something else"),
        ({}, "has something else"),
        ("{", "cannot be read"),
        ("[" * 200 + "]" * 200, "cannot be read"),
    ],
)
def test_a_workflow_without_a_place_for_them_is_one_sentence(tmp_path, nodes, why):
    with pytest.raises(BadInput, match=why):
        read(tmp_path, nodes)


def test_a_node_can_be_named_for_the_prompt(tmp_path):
    nodes = changed(OWN, n2__text="another", n9={"class_type": "X", "inputs": {"a": "b", "c.d": "e", "n": 3}})
    assert read(tmp_path, nodes, "2").prompts == (("2", "text"),)
    assert read(tmp_path, nodes, "3.prompt").prompts == (("3", "prompt"),)
    assert read(tmp_path, nodes, "9.c.d").prompts == (("9", "c.d"),)
    for wrong, why in (
        ("77", "has no '77'"),
        ("9", "node 9 has a, c.d"),
        ("9.n", "a, c.d"),
        ("4", "no such input"),
    ):
        with pytest.raises(BadInput, match=why):
            read(tmp_path, nodes, wrong)


def test_titles_do_not_count_for_a_request_and_inputs_do(tmp_path):
    """Catches: `--resume` makes everything again because a title was changed, or nothing because a size was."""
    titled = changed(OWN, n3={**SAMPLER, "_meta": {"title": "mine"}})
    assert digest_of(OWN) == digest_of(titled)
    assert len({digest_of(OWN), digest_of(changed(OWN, n3__width=64)), digest_of(changed(OWN, n3__seed=6))}) == 3


@pytest.mark.parametrize(
    "more, why",
    [
        (["--server", "http://localhost:8188"], "is there twice"),
        (["--server", "localhost"], "has an address such as"),
        (["--seeds", "-1"], "a seed is a whole number"),
        (["--prompt-node", "nope"], "has no 'nope'; it has 1, 3, 5, 6"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_before_anyone_is_asked(tmp_path, capsys, more, why):
    (tmp_path / "workflow.json").write_text(json.dumps(pocket()), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("a ball", encoding="utf-8")
    words = ["queue", "--workflow", str(tmp_path / "workflow.json"), "--prompt-file", str(tmp_path / "prompts.txt")]
    out = tmp_path / "out"
    assert main([*words, "--server", "http://localhost:8188", "--output", str(out), *more]) == 2
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_a_file_where_a_video_belongs_is_seen_before_anyone_is_asked(tmp_path, capsys):
    (tmp_path / "workflow.json").write_text(json.dumps(pocket()), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("a ball", encoding="utf-8")
    (tmp_path / "0001").write_text("in the way")
    words = ["queue", "--workflow", str(tmp_path / "workflow.json"), "--prompt-file", str(tmp_path / "prompts.txt")]
    assert main([*words, "--server", "http://localhost:1", "--output", str(tmp_path)]) == 2
    assert "that is a file; move it away" in capsys.readouterr().err
