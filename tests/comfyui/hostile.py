"""Prompts as nobody means them: values of the wrong kind, out of every range, from wires that carry anything."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

Prompt = dict[str, Any]
POCKET, ROUTER, SAMPLER, REPORT, LOADER, SCHEDULE = "1", "2", "3", "6", "7", "8"
VALUES = (
    *(None, True, False, -1, 0, 1, 17, 2**31, -(2**63), 2**64, -(10**30), 10**400),
    *(0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), json.loads("[" * 300 + "]" * 300)),
)
ANOTHER, SHOWN, WIRE = "another pocket", "shown", "wire"
# Into inputs that it does not look at, which these may be, ComfyUI 0.27 lets wires from nodes that are not
# there, and its worker then ends, whichever the node. So no such wire is made here.
DYNAMIC = ("policy", "preset")

# A node whose output fits every socket, and a router that follows a plan, so that the route of a page is known.
ANYTHING = """
import json


class Anything:
    RETURN_TYPES = ("*",)
    FUNCTION = "make"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("STRING", {"multiline": True})}}

    def make(self, value):
        return (object() if value == "object" else json.loads(value),)


class Plan:
    needs_scorer = True

    def __init__(self, plan, scorer):
        self.plan, self.key, self.scorer = plan, plan, scorer

    def keep(self, index, score):
        return self.plan[index] == "a"


class PlannedRouter:
    RETURN_TYPES = ("SDVG_ROUTER",)
    RETURN_NAMES = ("router",)
    FUNCTION = "make"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"plan": ("STRING", {}), "scorer": ("SDVG_SCORER",)}}

    def make(self, plan, scorer):
        return (Plan(plan, scorer),)


NODE_CLASS_MAPPINGS = {"Anything": Anything, "PlannedRouter": PlannedRouter}
"""


def furnish(folder: Path) -> None:
    """Put that node into the custom nodes of a server that is not started yet."""
    place = folder / "custom_nodes" / "anything"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(ANYTHING, encoding="ascii")


def usual(workflow: Prompt, drafter: str) -> dict[str, Prompt]:
    """Return a small prompt for every node of ours, by the node's id, made from the pocket workflow."""
    nodes = {key: workflow[key] for key in (POCKET, ROUTER, SAMPLER, REPORT)}
    nodes[SAMPLER]["inputs"] |= {"blocks": 1, "width": 16, "height": 16}
    nodes[ROUTER]["inputs"] |= {"policy": "always-target", "policy.tau": -0.7}
    loader = {"file": drafter, "weight_dtype": "default", "preset": "custom", "preset.policy": "recompute"}
    loader |= {"preset.block_frames": 3, "preset.context_frames": 3, "preset.window": 6, "preset.sink": 0}
    schedule = {"from_block": 2, "conditioning": [POCKET, 2], "text": "a ball"}
    extra = {
        LOADER: {"class_type": "SDVGDrafterLoader", "inputs": loader},
        SCHEDULE: {"class_type": "SDVGPromptSchedule", "inputs": schedule},
        ANOTHER: nodes[POCKET],  # the one that the others use stays in ComfyUI's cache
    }
    of = {key: {POCKET: nodes[POCKET], key: node} for key, node in extra.items()}
    of[ROUTER] = {POCKET: nodes[POCKET], ROUTER: nodes[ROUTER]}
    for key, prompt in of.items():
        prompt[SHOWN] = {"class_type": "PreviewAny", "inputs": {"source": [key, 0]}}
    of |= {SAMPLER: nodes, REPORT: nodes}
    return {key: of[key] for key in (SAMPLER, ROUTER, LOADER, SCHEDULE, ANOTHER, REPORT)}


def spoiled(random: Random, prompts: Mapping[str, Prompt], outside: str) -> tuple[Prompt, Any]:
    """Return one of the prompts with one to three of its node's inputs spoiled, and what comes as its workflow."""
    key = random.choice(list(prompts))
    prompt = copy.deepcopy(prompts[key])
    inputs = prompt[key]["inputs"]
    for _ in range(random.randrange(1, 4)):
        name = random.choice([*inputs, ""]) if random.random() < 0.85 else text(random, outside)
        deed = random.random()
        if deed < 0.1:
            inputs.pop(name, None)
        elif deed < 0.45:
            inputs[name] = [WIRE, 0]
            carried = "object" if random.random() < 0.1 else json.dumps(value(random, outside))
            prompt[WIRE] = {"class_type": "Anything", "inputs": {"value": carried}}
        else:
            inputs[name] = link(random) if deed < 0.55 else value(random, outside)
            checked = name in prompts[key][key]["inputs"] and not name.startswith(DYNAMIC)
            if isinstance(inputs[name], list) and len(inputs[name]) == 2 and not checked:
                inputs[name] = [POCKET, 0]
    return prompt, workflow(random, outside) if random.random() < 0.3 else {}


def link(random: Random) -> Any:
    """Return a wire from some output of another node, or from where there is none."""
    nodes = (POCKET, ROUTER, SAMPLER, "0", "", "\ud800", -1, None, 10**30)
    return [random.choice(nodes), random.choice((0, 1, 2, 3, 4, 5, 99, -1, "0", None, 1.5))]


def workflow(random: Random, outside: str) -> Any:
    """Return what a browser would send as the workflow."""
    node = {"type": "SDVG", "properties": {"cnr_id": "sdvg", "ver": value(random, outside)}}
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: value(random, outside),
        lambda: {"workflow": value(random, outside)},
        lambda: {"workflow": {"id": value(random, outside), "nodes": [node, value(random, outside)]}},
        lambda: {"workflow": {"nodes": [node], "definitions": {"subgraphs": value(random, outside)}}},
    )
    return random.choice(kinds)()


def value(random: Random, outside: str, depth: int = 0) -> Any:
    """Return a value that JSON can carry and hardly a node wants; none of them makes a long video."""
    if depth < 4 and random.random() < 0.3:
        inner = value(random, outside, depth + 1)
        return random.choice(([inner, inner], [], {text(random, outside)[:30]: inner}, {"__value__": inner}))
    return text(random, outside) if random.random() < 0.3 else random.choice(VALUES)


def text(random: Random, outside: str) -> str:
    """Return a string: no text, too much of it, or the way to a file that is nobody's business."""
    ways = (outside, f"../../../../../../../../../..{outside}", f"..\\..\\{outside}", f"file://{outside}")
    return random.choice(
        (
            *ways,
            *ways,
            *("", " ", "\x00", "a\x1b[31mred\x07", "\ud800 half", "\u202e\u200b\ufeff", "x" * 30_000, "{" * 500),
            *("policy", "policy.tau", "preset.", "..", "aar" * 2000, "__class__", "%s%n{0.__class__}"),
        )
    )
