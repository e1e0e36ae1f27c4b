"""The signature of a sampler: hashes of the node and everything upstream of it in the API prompt.

Node ids do not count, so the same settings have the same signature in every workflow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ...sdvg_core.errors import BadInput
from ...sdvg_core.text.prompts import read_prompt
from .route_inputs import OLDER_INPUTS

SAMPLER = "SDVGSpeculativeSampler"
PROMPTS = {"SDVGPrompt": "text", "SDVGPocketModels": "prompt"}
"""Class -> input of nodes whose prompt may have several lines."""
OF_BLOCKS = ("blocks", "directions", "takes", "kept_blocks", "until_block")
"""Inputs that say what is asked of single blocks."""
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, RecursionError, BadInput)
"""What reading a prompt raises if it is none."""


def signature(prompt: Any, node_id: str | None) -> dict[str, Any] | None:
    """Return the signature of a sampler in an API prompt, or None if `node_id` is not a valid sampler.

    `all`: hash of everything. `router`: of the router without `tau`; `tau`: None if it is not known. `scorer`: of
    what scores. `prompts`: pairs of first block, from 1, and hash. `wired`: of the inputs in `OF_BLOCKS` that come
    over a wire. `rest`: of all else; `positive`: of the part of it that is the video's own prompt.
    """
    try:
        if prompt[node_id]["class_type"] != SAMPLER:
            return None
        graph = _Graph(prompt)
        inputs = dict(prompt[node_id]["inputs"])
        prompts = [*graph.lines(inputs.get("positive")), *graph.schedule(inputs.pop("prompt_schedule", None))]
        prompts.sort()
        inputs.pop("reuse_gb", None)  # does not change the video
        rest = {name: graph.value(value) for name, value in inputs.items()}
        of_blocks = [rest.pop(name, "") for name in OF_BLOCKS]
        router, tau = graph.gate(rest.pop("router", None), inputs.get("router"))
        wired = [value for value in of_blocks if isinstance(value, list)]
        scorer = graph.scorer(inputs.get("router"))
    except UNREADABLE:
        return None
    parts = {"rest": _hash(rest), "router": _hash(router), "tau": tau, "wired": _hash(wired), "prompts": prompts}
    hashes = {"all": _hash([of_blocks, parts]), **parts}
    return {**hashes, "positive": _hash(rest.get("positive")), "scorer": _hash(scorer)}


def check_lines(prompt: Mapping[str, Any], node_id: str) -> None:
    """Raise `BadInput` for lines of a sampler's prompt that cannot be read."""
    inputs = prompt[node_id]["inputs"]
    graph = _Graph(prompt)
    graph.lines(inputs.get("positive"))
    graph.schedule(inputs.get("prompt_schedule"))


class _Graph:
    """Hashes of the nodes of an API prompt, each over everything upstream of it."""

    def __init__(self, prompt: Mapping[str, Any]) -> None:
        self._prompt = prompt
        self._hashes = dict[str, str]()

    def value(self, value: Any) -> Any:
        """Return the hash and output index of the node wired to an input, or its value as ComfyUI normalises it."""
        if isinstance(value, list):
            return [self.node(value[0]), value[1]]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def node(self, name: str) -> str:
        if name not in self._hashes:
            node = self._prompt[name]
            # The page sends an empty text for the picture below some nodes, such as a video to load, once it is there.
            inputs = {key: self.value(value) for key, value in node["inputs"].items() if value != ""}
            key = PROMPTS.get(node["class_type"])
            if key and isinstance(text := inputs.get(key), str) and text.strip():
                inputs[key] = read_prompt(text).texts[0]
            self._hashes[name] = _hash([node["class_type"], inputs])
        return self._hashes[name]

    def gate(self, known: Any, wire: Any) -> tuple[Any, float | None]:
        """Return a reward gate's inputs without tau, and tau; for any other router, `known` and None."""
        inputs = router_inputs(self._prompt, wire)
        tau = inputs.pop("policy.tau", None)
        plain = isinstance(tau, int | float) and not isinstance(tau, bool)
        if inputs.get("policy") not in ("reward", "hybrid") or not plain:
            return known, None
        return {name: self.value(value) for name, value in inputs.items()}, float(tau)

    def scorer(self, wire: Any) -> Any:
        """Return the inputs of the router that scores depend on; those of another pack's router all count."""
        if not router_inputs(self._prompt, wire):
            return self.value(wire)
        inputs = router_inputs(self._prompt, wire)
        decides = ("policy", *OLDER_INPUTS)
        return {
            name: self.value(value)
            for name, value in inputs.items()
            if name not in decides and not name.startswith("policy.")
        }

    def lines(self, wire: Any) -> list[tuple[int, str]]:
        """Return pairs of first block, from 1, and hash for the lines of a prompt after the first."""
        node: Mapping[str, Any] = self._prompt[wire[0]] if isinstance(wire, list) else {}
        inputs = node.get("inputs", {})
        if "positive" in inputs and node["class_type"] not in PROMPTS:
            return self.lines(inputs["positive"])  # WanVaceToVideo and others pass it on
        text = inputs.get(PROMPTS.get(node.get("class_type", "")))
        if not isinstance(text, str) or not text.strip():
            return []
        read = read_prompt(text)
        starts = sorted({at for at, _ in (*read.entries[1:], *read.strengths)})
        # A line's own words alone, whatever others there are.
        parts: list[Mapping[int, object]] = [
            dict(read.entries),
            dict(read.strengths),
            dict.fromkeys(read.cuts, True),
        ]
        return [(at + 1, _hash([part.get(at) for part in parts])) for at in starts]

    def schedule(self, wire: Any) -> list[tuple[int, str]]:
        """Return such pairs for a prompt schedule; an entry whose block is not known counts from block 1."""
        if not wire:
            return []
        name = self.node(wire[0])
        node = self._prompt[wire[0]]
        inputs = node["inputs"]
        if node["class_type"] != "SDVGPromptSchedule" or not isinstance(inputs["from_block"], int):
            return [(1, name)]
        text = [self.value(inputs["conditioning"]), self.value(inputs["text"])]
        here = [(inputs["from_block"], _hash(text)), *self.lines(inputs["conditioning"])]
        return [*self.schedule(inputs.get("schedule")), *here]


def router_inputs(prompt: Mapping[str, Any], wire: Any) -> dict[str, Any]:
    """Return the inputs of the Quality Router at the end of a wire; of any other node, none."""
    node = prompt[wire[0]] if isinstance(wire, list) else {}
    return dict(node["inputs"]) if node.get("class_type") == "SDVGQualityRouter" else {}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
