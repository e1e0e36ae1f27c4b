"""Prompts that nobody means are refused in a sentence, and the server stays up.

With values of the wrong kind, out of every range, from wires that carry anything.
"""

import copy
import json
import re
import urllib.error
from collections import Counter
from random import Random
from typing import Any

import pytest
from running_server import KEPT, POCKET, REPORT, ROOT, ROUTER, SAMPLER, Refused, node, pocket

pytestmark = pytest.mark.comfyui

Prompt = dict[str, Any]
LOADER = "7"
SCHEDULE = "8"
VALUES = (
    *(None, True, False, -1, 0, 1, 17, 2**31, -(2**63), 2**64, -(10**30), 10**400),
    *(0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), json.loads("[" * 300 + "]" * 300)),
)
ANOTHER = "another pocket"
SHOWN = "shown"
WIRE = "wire"
# Into inputs that it does not look at, which these may be, ComfyUI 0.27 lets wires from nodes that are not
# there, and its worker then ends, whichever the node. So no such wire is made here.
DYNAMIC = ("policy", "preset")

LONGEST_SENTENCE = 2500
OURS = "custom_nodes/sdvg"


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A file of a kind that the nodes read, in no folder of the server."""
    file = tmp_path_factory.mktemp("outside") / "secret.safetensors"
    file.write_bytes(b"secret")
    return file


@pytest.fixture(scope="module", autouse=True)
def forgotten(server):
    """A page that is opened later need not read hundreds of broken prompts."""
    yield
    server.ask("/history", {"clear": True})


@pytest.fixture(scope="module")
def prompts():
    """A small prompt for every node of ours, by the node's id, made from the pocket workflow."""
    nodes = pocket(1, sampler__width=16, sampler__height=16, router__policy="always-target")
    del nodes[KEPT]
    schedule = {"from_block": 2, "conditioning": [POCKET, 2], "text": "a ball"}
    loader = {"file": "tiny_self_forcing.pt", "weight_dtype": "default", "preset": "custom"}
    loader |= {"preset.policy": "recompute", "preset.block_frames": 3, "preset.context_frames": 3}
    extra = {
        LOADER: node("SDVGDrafterLoader", **loader, **{"preset.window": 6, "preset.sink": 0}),
        SCHEDULE: node("SDVGPromptSchedule", **schedule),
        ANOTHER: nodes[POCKET],  # the one that the others use stays in ComfyUI's cache
        ROUTER: nodes[ROUTER],
    }
    shown = {
        key: {POCKET: nodes[POCKET], key: added, SHOWN: node("PreviewAny", source=[key, 0])}
        for key, added in extra.items()
    }
    return {SAMPLER: nodes, **shown, REPORT: nodes}


def test_unspoiled_prompts_run(server, prompts):
    """Without it, prompts that nothing comes of would prove nothing."""
    for prompt in prompts.values():
        server.make(prompt)


@pytest.mark.parametrize("seeds", [range(210), pytest.param(range(210, 5210), marks=pytest.mark.exhaustive)])
def test_spoiled_prompts_are_refused_by_a_living_server(seeds, server, prompts, outside):
    """In a sentence each. Catches: an error of Python's on a node, or a server that ends."""
    refusals = Counter()
    for seed in seeds:
        prompt, workflow = spoiled(Random(seed), prompts, str(outside))
        place, problem = outcome_of(server, prompt, {"extra_pnginfo": workflow})
        assert not problem, f"seed {seed}: {problem}"
        refusals[place] += 1
    server.make(prompts[SAMPLER])
    # Most get as far as a node of ours, or ComfyUI's look at its inputs.
    assert min(refusals["ours"], refusals["ComfyUI's"]) >= len(seeds) // 8, refusals


def outcome_of(server, prompt, extra_data):
    """Return who refused a prompt, if anybody did, and what is wrong with how it was done; empty if nothing."""
    try:
        done = server.wait(server.queue(prompt, extra_data=extra_data))
    except Refused as refused:
        return "ComfyUI's", refused_badly(refused)
    except urllib.error.URLError as error:
        return "ComfyUI's", f"the server is gone: {error}"
    except ValueError:  # an answer that is no JSON: ComfyUI's own handler gave up on it, before any node was asked
        return "ComfyUI's", ""
    error = done.message("execution_error")
    return ("taken", "") if error is None else ("ours", spoken_badly(done, error))


def refused_badly(refused):
    errors = [message for messages in refused.errors.values() for message in messages]
    if any(OURS in message for message in errors):
        return f"an error in our code: {errors!r:.600}"
    return "" if errors or "message" in str(refused) else f"a refusal without a word: {refused}"


def spoken_badly(done, error):
    """Return what is wrong with an error as a refusal; one of another pack's node is its own."""
    if not any(OURS in line or str(ROOT) in line for line in error["traceback"]):
        return ""
    sentence = str(error["exception_message"]).strip()
    if not str(error["exception_type"]).endswith("BadInput"):
        return f"{error['exception_type']}: {sentence:.300} {error['traceback'][-1]}"
    if not re.search(r"\w+ .*; \w+ ", sentence, re.DOTALL):
        return f"a refusal without fault or remedy: {sentence:.300}"
    if not all(c.isprintable() or c == "\n" for c in sentence):
        return f"a refusal with characters that are no text: {sentence!r:.300}"
    return f"a refusal of {len(sentence)} characters" if len(sentence) > LONGEST_SENTENCE else ""


# --- how they are spoiled


def spoiled(random, prompts, outside):
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


def link(random):
    """Return a wire from some output of another node, or from where there is none."""
    nodes = (POCKET, ROUTER, SAMPLER, "0", "", "\ud800", -1, None, 10**30)
    return [random.choice(nodes), random.choice((0, 1, 2, 3, 4, 5, 99, -1, "0", None, 1.5))]


def workflow(random, outside):
    """Return what a browser would send as the workflow."""
    node = {"type": "SDVG", "properties": {"cnr_id": "sdvg", "ver": value(random, outside)}}
    kinds = (
        lambda: value(random, outside),
        lambda: {"workflow": value(random, outside)},
        lambda: {"workflow": {"id": value(random, outside), "nodes": [node, value(random, outside)]}},
        lambda: {"workflow": {"nodes": [node], "definitions": {"subgraphs": value(random, outside)}}},
    )
    return random.choice(kinds)()


def value(random, outside, depth=0):
    """Return a value that JSON can carry and hardly a node wants; none of them makes a long video."""
    if depth < 4 and random.random() < 0.3:
        inner = value(random, outside, depth + 1)
        return random.choice(([inner, inner], [], {text(random, outside)[:30]: inner}, {"__value__": inner}))
    return text(random, outside) if random.random() < 0.3 else random.choice(VALUES)


def text(random, outside):
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
