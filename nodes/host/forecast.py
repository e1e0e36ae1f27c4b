"""What the page needs to foretell a run: a signature of all that a sampler's video depends on, and what is remembered.

The signature is made of the prompt in API form, of the node and everything upstream of it, without running anything. Node
ids do not count, so the same settings have the same signature in every workflow.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import comfy.model_management as mm

from ...sdvg_core.text.prompts import read_prompt
from .identity import blocks_to_decode, newest_keys, still_kept
from .live import LiveRun, LiveRuns

SAMPLER, SCHEDULE = "SDVGSpeculativeSampler", "SDVGPromptSchedule"
PROMPTS = {"SDVGPrompt": "text", "SDVGPocketModels": "prompt"}
"""Nodes whose prompt may have lines, and its input."""
OF_BLOCKS = ("blocks", "directions", "takes", "kept_blocks", "until_block")
"""Inputs that the strip shows, and compares block by block."""
WITHOUT_EFFECT = ("overlap", "reuse_gb")  # on the video


def signature(prompt: Any, node_id: str | None) -> dict[str, Any] | None:
    """Return the signature of a sampler in an API prompt; None without such a node or a prompt.

    `all`: of everything; `router`: of the router; `prompts`: from which block on, and of what; `wired`: of those of
    `OF_BLOCKS` that come over a wire, whose values are not known; `rest`: of all else.
    """
    try:
        if prompt[node_id]["class_type"] != SAMPLER:
            return None
        graph, inputs = _Graph(prompt), dict(prompt[node_id]["inputs"])
        prompts = [*graph.lines(inputs.get("positive")), *graph.schedule(inputs.pop("prompt_schedule", None))]
        prompts.sort()
        rest = {name: graph.value(value) for name, value in inputs.items() if name not in WITHOUT_EFFECT}
        own = [rest.pop(name, "") for name in OF_BLOCKS]
        router, wired = rest.pop("router", None), [value for value in own if isinstance(value, list)]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None
    parts = {"rest": _hash(rest), "router": _hash(router), "wired": _hash(wired), "prompts": prompts}
    return {"all": _hash([own, parts]), **parts}


class _Graph:
    """Hashes of the nodes of an API prompt, each with everything upstream of it."""

    def __init__(self, prompt: Mapping[str, Any]) -> None:
        self._prompt, self._hashes = prompt, dict[str, str]()

    def value(self, value: Any) -> Any:
        """Return an input: what leads there, or its value as ComfyUI's validation leaves it."""
        if isinstance(value, list):
            return [self.node(value[0]), value[1]]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def node(self, name: str) -> str:
        if name not in self._hashes:
            node = self._prompt[name]
            inputs = {key: self.value(value) for key, value in node["inputs"].items()}
            if (key := PROMPTS.get(node["class_type"])) and isinstance(inputs[key], str) and inputs[key].strip():
                inputs[key] = read_prompt(inputs[key]).texts[0]
            self._hashes[name] = _hash([node["class_type"], inputs])
        return self._hashes[name]

    def lines(self, wire: Any) -> list[tuple[int, str]]:
        """Return what the lines of a prompt change, and from which block on."""
        node = self._prompt[wire[0]] if isinstance(wire, list) else {}
        inputs = node.get("inputs", {})
        if "positive" in inputs and node["class_type"] not in PROMPTS:
            return self.lines(inputs["positive"])  # as WanVaceToVideo hands it on
        text = inputs.get(PROMPTS.get(node.get("class_type")))
        if not isinstance(text, str) or not text.strip():
            return []
        read = read_prompt(text)
        starts = sorted({at for at, _ in (*read.entries[1:], *read.strengths)})
        said = dict(read.entries), dict(read.strengths), *([dict.fromkeys(read.cuts, True)] if read.cuts else [])
        return [(at + 1, _hash([part.get(at) for part in said])) for at in starts]

    def schedule(self, wire: Any) -> list[tuple[int, str]]:
        """Return the prompts of a schedule; one whose blocks are not known counts from the first block on."""
        if not wire:
            return []
        name, node = self.node(wire[0]), self._prompt[wire[0]]
        inputs = node["inputs"]
        if node["class_type"] != SCHEDULE or not isinstance(inputs["from_block"], int):
            return [(1, name)]
        text = [self.value(inputs["conditioning"]), self.value(inputs["text"])]
        here = [(inputs["from_block"], _hash(text)), *self.lines(inputs["conditioning"])]
        return [*self.schedule(inputs.get("schedule")), *here]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def ended(run: LiveRun, patchers: Iterable[Any], pixel_keys: Iterable[str]) -> None:
    """Remember what a run left behind for the next one."""
    run.pixel_keys = tuple(pixel_keys)
    run.models, run.keys = tuple(weakref.ref(patcher.model) for patcher in patchers), newest_keys()


def forecast(prompt: Any, runs: LiveRuns) -> dict[str, Any]:
    """Return what the page compares. Nothing is run or changed.

    `asked`: by node, the signature of each sampler of an API prompt, with the runs that were made of the same rest.
    `loading`: by run, the seconds until its models are loaded again, of those whose blocks can still be used again.
    `decoding`: of these, by how many blocks (those of a continued clip too) are left as they are, how many of them
    are decoded again.
    """
    asked = {node: signature(prompt, node) for node in prompt} if isinstance(prompt, dict) else {}
    loaded = {id(entry.model.model) for entry in mm.current_loaded_models if entry.model is not None}
    loading = {
        run.id: run.begin["loading"] * any(id(model()) not in loaded for model in run.models)
        for run in runs.now()
        if still_kept(run.keys) and all(model() is not None for model in run.models)
    }
    begun = [begin | (begin.get("signature") or {"rest": None}) for begin in list(runs.begun)]
    made = {node: [begin for begin in begun if begin["rest"] == one["rest"]] for node, one in asked.items() if one}
    decoding = {run.id: blocks_to_decode(run.pixel_keys) for run in runs.now() if run.id in loading}
    return {
        "asked": {node: {**asked[node], "made": made[node]} for node in made},
        "loading": loading,
        "decoding": decoding,
    }
