"""What the server tells the page of the next run: whether its settings are those of a run, and what is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from running_server import Server
from sdvg_pack.nodes.host.reuse import signature
from sdvg_pack.sdvg_core.pocket.trained_set import trained_set
from server_prompts import POCKET, SAMPLER, change, node, pocket
from strip_modules import NEXT, call, write_modules

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modules(tmp_path_factory.mktemp("modules"))


def scheduled(*entries: tuple[Any, Any]) -> dict[str, Any]:
    """The pocket workflow with a schedule of some prompts, each from a block on."""
    prompt, wire = pocket(), None
    for place, (block, text) in enumerate(entries):
        inputs = {"from_block": block, "conditioning": [POCKET, 2], "text": text}
        prompt[f"s{place}"] = node("SDVGPromptSchedule", **inputs, **({"schedule": wire} if wire else {}))
        wire = [f"s{place}", 0]
    return change(prompt, sampler__prompt_schedule=wire)


def renamed(prompt: dict[str, Any]) -> dict[str, Any]:
    """The same nodes under other ids, their inputs in another order."""

    def moved(value: Any) -> Any:
        return [f"7:{value[0]}", value[1]] if isinstance(value, list) else value

    return {
        f"7:{name}": one | {"inputs": {key: moved(value) for key, value in reversed(one["inputs"].items())}}
        for name, one in prompt.items()
    }


EVERY = {"all", "rest", "router", "tau", "wired", "prompts"}
# A change of the pocket workflow, and which parts of its signature differ then.
CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"sampler__reuse_gb": 2.0}, set()),
    ({"sampler__seed": 43}, {"all", "rest"}),
    ({"sampler__width": 128}, {"all", "rest"}),
    ({"sampler__schedule": "reference5"}, {"all", "rest"}),
    ({"router__policy__tau": -0.8}, {"all", "tau"}),
    ({"router__policy__tau": [POCKET, 5]}, {"all", "router", "tau"}),
    ({"router__policy__aggregation": "mean"}, {"all", "router"}),
    ({"router__policy": "always-target"}, {"all", "router", "tau"}),
    ({"sampler__blocks": 4}, {"all"}),
    ({"sampler__directions": "..t"}, {"all"}),
    ({"sampler__takes": "2:2"}, {"all"}),
    ({"sampler__takes": ["1", 5]}, {"all", "wired"}),
]


@pytest.mark.parametrize("changes, differ", CHANGES)
def test_a_signature_tells_what_was_changed(changes: dict[str, Any], differ: set[str]) -> None:
    one, other = signature(pocket(), SAMPLER), signature(pocket(**changes), SAMPLER)
    assert one
    assert other
    assert {name for name in EVERY if one[name] != other[name]} == differ


def test_what_lies_upstream_counts_and_what_lies_elsewhere_does_not() -> None:
    before, model, elsewhere, whole = pocket(), pocket(), pocket(), pocket()
    model["lora"] = node("LoraLoaderModelOnly", model=[POCKET, 1], lora_name="a.safetensors", strength_model=1.0)
    model[SAMPLER]["inputs"]["target"] = ["lora", 0]
    stronger = {**model, "lora": node("LoraLoaderModelOnly", **model["lora"]["inputs"] | {"strength_model": 2})}
    elsewhere["latents"]["inputs"]["filename_prefix"] = "elsewhere"
    whole[SAMPLER]["inputs"] = {
        key: float(v) if type(v) is int else v for key, v in whole[SAMPLER]["inputs"].items()
    }
    made = [signature(prompt, SAMPLER) for prompt in (before, model, stronger, elsewhere, whole)]
    assert made[0] == made[3] == made[4] == signature(renamed(before), f"7:{SAMPLER}")
    assert len({one["rest"] for one in made if one}) == 3


def test_a_block_s_prompt_is_told_apart_from_the_rest() -> None:
    one = signature(scheduled((2, "a"), (3, "b")), SAMPLER)
    other = signature(scheduled((2, "a"), (3, "c")), SAMPLER)
    assert one
    assert other
    assert (one["rest"], one["prompts"][0]) == (other["rest"], other["prompts"][0])
    assert [block for block, _ in one["prompts"]] == [2, 3]
    assert one["prompts"][1] != other["prompts"][1]
    unknown = signature(scheduled((2, "a"), ([POCKET, 5], "b")), SAMPLER)
    assert unknown
    assert [block for block, _ in unknown["prompts"]] == [1]


def test_a_line_of_the_prompt_is_told_apart_from_the_rest() -> None:
    """Catches: a run foretold as wholly new after one line changed, or as the same."""

    def told(text: str, *, controlled: bool = False) -> dict[str, Any]:
        prompt = pocket()
        prompt[POCKET]["inputs"]["prompt"] = text
        if controlled:
            prompt["control"] = node("WanVaceToVideo", positive=[POCKET, 2], negative=[POCKET, 2])
            prompt[SAMPLER]["inputs"]["positive"] = ["control", 0]
        made = signature(prompt, SAMPLER)
        assert made
        return made

    one, other, plain = told("a sea\n3: a storm"), told("a sea\n3 strength light: a storm"), told("a sea")
    assert one["rest"] == other["rest"] == plain["rest"] != told("a lake\n3: a storm")["rest"]
    assert ([block for block, _ in one["prompts"]], plain["prompts"]) == ([3], [])
    assert one["prompts"] != other["prompts"]
    assert [block for block, _ in told("a sea\n3: a storm", controlled=True)["prompts"]] == [3]
    broken = pocket()
    broken[POCKET]["inputs"]["prompt"] = "3: a storm"
    assert signature(broken, SAMPLER) is None


CIRCLE = {SAMPLER: node("SDVGSpeculativeSampler", positive=["a", 0]), "a": node("X", x=["a", 0])}
LOOP = {
    SAMPLER: node("SDVGSpeculativeSampler", prompt_schedule=["a", 0]),
    "a": node("SDVGPromptSchedule", from_block=2, conditioning="", text="", schedule=["a", 0]),
}
WITHOUT_INPUTS = {SAMPLER: {"class_type": "SDVGSpeculativeSampler"}}
ODD: tuple[Any, ...] = (None, [], 3, {}, {SAMPLER: 3}, WITHOUT_INPUTS, CIRCLE, LOOP)


def test_what_is_no_prompt_has_no_signature(server: Server) -> None:
    for prompt in ODD:
        assert signature(prompt, SAMPLER) is None
    for prompt in ODD[1:]:
        assert server.ask("/sdvg/runs", prompt)["asked"] == {}


def test_the_server_knows_a_run_by_its_settings_until_it_forgets_it(server: Server) -> None:
    """Asking runs nothing, and other settings that were made before are told."""
    prompt, other = pocket(sampler__seed=901), pocket(sampler__seed=902)
    first, second = (server.run(one).outputs[SAMPLER]["sdvg_run"][0] for one in (prompt, other))
    told = server.ask("/sdvg/runs", prompt)
    asked = told["asked"][SAMPLER]
    assert asked["all"] == first["signature"]["all"] != second["signature"]["all"]
    assert [made["run"] for made in asked["made"]] == [first["run"]]
    assert told["loading"][second["run"]] == 0
    assert second["loading"] > 0
    assert set(told["decoding"][second["run"]]) == {0}, "pixels and decoder states of every block are kept"
    server.run(pocket(sampler__seed=903, sampler__reuse_gb=0.0))
    assert server.ask("/sdvg/runs", prompt)["loading"] == {}


def test_models_that_are_gone_make_everything_again(server: Server) -> None:
    # From a file: the embedded models stay where they are.
    shutil.copy(trained_set().target, server.folder / "models" / "diffusion_models" / "gone.safetensors")
    loader = node("SDVGTargetLoader", file="gone.safetensors", weight_dtype="default", preset="krea-14b")
    prompt = pocket(sampler__seed=904, sampler__target=["extra", 0], extra=loader)
    made = server.run(prompt).outputs[SAMPLER]["sdvg_run"][0]
    assert made["run"] in server.ask("/sdvg/runs", prompt)["loading"]
    server.forget()
    assert server.ask("/sdvg/runs", prompt)["loading"] == {}


@pytest.mark.parametrize("place, kept", [(1, False), (2, False), (1, True)])
def test_another_tau_makes_again_what_the_strip_foretells(
    place: int, kept: bool, server: Server, modules: Path
) -> None:
    """A run under one tau, the forecast for another one by the page's own code, and the run under that."""
    prompt = pocket(blocks=4, sampler__seed=910 + place + 5 * kept, router__policy__tau=3.0 if kept else -3.0)
    run = server.make(prompt).outputs[SAMPLER]
    scores = [event["score"] for event in run["sdvg_route"]]
    tau = scores[place] - 1e-3 if kept else scores[place] + 1e-3
    other = change(prompt, router__policy__tau=tau)
    told = server.ask("/sdvg/runs", other)
    events = {"events": run["sdvg_route"], "done": run["sdvg_run"][0], "info": run["sdvg_run"][0], "of": 4}
    log = {"run": run["sdvg_run"][0]["run"], "directions": "", "takes": "", **events}
    asked = {"directions": "", "takes": "", "blocks": 4}
    outlook = {"now": told["asked"][SAMPLER], "loading": told["loading"][log["run"]], "moving": False}
    [foretold] = call(modules, NEXT, [{"run": log, "next": asked, "outlook": outlook}])
    made = [event["reused"] for event in server.make(other).outputs[SAMPLER]["sdvg_route"]]
    assert foretold["from"] == (made.index(False) + 1 if False in made else None)
    assert not foretold.get("all")
    assert not foretold["atMost"]
