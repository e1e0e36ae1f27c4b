"""The signature of a sampler: hashes of the node and everything upstream of it in the API prompt.

Node ids do not count, so the same settings have the same signature in every workflow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...sdvg_core.errors import BadInput
from ...sdvg_core.settings.request import TWO_STARTS, Shot, ShownClip, check_names, read_shots, shots_text
from ...sdvg_core.text.prompts import PromptSchedule, read_prompt
from .route_inputs import OLDER_INPUTS

SAMPLER = "SDVGSpeculativeSampler"
PROMPTS = {"SDVGPrompt": "text", "SDVGPocketModels": "prompt"}
"""Class -> input of nodes whose prompt may have several lines."""
OF_BLOCKS = ("blocks", "directions", "takes", "kept_blocks", "until_block")
"""Inputs that say what is asked of single blocks."""
NOT_OF_VIDEO = ("reuse_gb", "live", "live_blocks")
"""Inputs that change nothing of a video that is not live."""
ANY_BLOCK = 0
"""Block of a prompt that may begin at any."""
START_NODE = "SDVGStart"
CLIP_INPUTS = "clips."
"""Beginning of its inputs for clips that are shown between shots."""
STARTS = ("continue_from", "start_image", "start")
"""Inputs of which one says what the film begins with."""
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, RecursionError, BadInput)
"""What reading a prompt raises if it is none."""


def signature(prompt: Any, node_id: str | None) -> dict[str, Any] | None:
    """Return the signature of a sampler in an API prompt, or None if `node_id` is not a valid sampler.

    `all`: hash of everything. `router`: of the router without `tau`; `tau`: None if it is not known. `scorer`: of
    what scores. `prompts`: pairs of first block, from 1 (see `ANY_BLOCK`), and hash. `strengths`: pairs of first block, from 1, and
    strength that the lines state. `shots`: as text, see `read_shots`. `clips`: hash of each that is shown, by name. `wired`: of the inputs in `OF_BLOCKS` that come
    over a wire. `rest`: of all else; `positive`: of the part of it that encodes the video's prompts, without those
    that can be read; `start`: of what the film begins with.
    """
    try:
        if prompt[node_id]["class_type"] != SAMPLER:
            return None
        inputs = dict(prompt[node_id]["inputs"])
        graph = _Graph(prompt, inputs.get("positive"))
        schedule = inputs.pop("prompt_schedule", None)
        prompts = sorted([*graph.lines(inputs.get("positive")), *graph.schedule(schedule)])
        texts = graph.texts(inputs.get("positive"), schedule)
        for name in NOT_OF_VIDEO:
            inputs.pop(name, None)
        of_clips = inputs.get("start")
        # A Start with clips alone begins nothing, and no block depends on it.
        inputs = {name: value for name, value in inputs.items() if name not in STARTS or graph.starts(value)}
        rest = {name: graph.value(value) for name, value in inputs.items()}
        of_blocks = [rest.pop(name, "") for name in OF_BLOCKS]
        router, tau = graph.gate(rest.pop("router", None), inputs.get("router"))
        wired = [value for value in of_blocks if isinstance(value, list)]
        scorer = graph.scorer(inputs.get("router"))
    except UNREADABLE:
        return None
    parts = {
        "rest": _hash(rest),
        "router": _hash(router),
        "tau": tau,
        "wired": _hash(wired),
        "prompts": prompts,
        "strengths": sorted((at + 1, strength) for text in texts for at, strength in text.strengths),
        "shots": shots_text(_shots(texts)),
        "clips": graph.clips(of_clips, (clip for text in texts for clip in text.clips)),
    }
    hashes = {"all": _hash([of_blocks, parts]), **parts}
    start = [rest[name] for name in STARTS if name in rest]
    return {
        **hashes,
        "positive": _hash(rest.get("positive")),
        "start": _hash(start) if start else "",
        "scorer": _hash(scorer),
    }


def check_lines(prompt: Mapping[str, Any], node_id: str) -> None:
    """Raise `BadInput` for lines of a sampler's prompt that cannot be read."""
    inputs = prompt[node_id]["inputs"]
    texts = _Graph(prompt).texts(inputs.get("positive"), inputs.get("prompt_schedule"))
    check_names(read_shots(shots_text(_shots(texts))), [clip for text in texts for clip in text.clips])


def check_starts(prompt: Mapping[str, Any], node_id: str) -> None:
    """Raise `BadInput` if a sampler is wired to two starts; ComfyUI shows a node its own inputs alone."""
    inputs = prompt[node_id]["inputs"]
    graph = _Graph(prompt)
    if sum(graph.starts(inputs.get(name)) for name in STARTS) > 1:
        raise BadInput(TWO_STARTS)


def _shots(texts: Iterable[PromptSchedule]) -> list[Shot]:
    """Return the shots that lines of prompts begin."""
    fresh = {shot.start: shot for text in texts for shot in text.shots if shot != Shot()}
    return [shot for _, shot in sorted(({0: Shot()} | fresh).items())]


class _Graph:
    """Hashes of the nodes of an API prompt, each over everything upstream of it."""

    def __init__(self, prompt: Mapping[str, Any], positive: Any = None) -> None:
        self._prompt = prompt
        self._hashes = dict[str, str]()
        self.read = self._prompt_node(positive)  # its text is compared by block, and no part of its hash

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
            if node["class_type"] == START_NODE:
                inputs = {key: value for key, value in inputs.items() if not key.startswith(CLIP_INPUTS)}
            key = PROMPTS.get(node["class_type"])
            if key and isinstance(text := inputs.get(key), str) and text.strip():
                inputs[key] = "" if name == self.read else read_prompt(text).texts[0]
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

    def clips(self, wire: Any, shown: Iterable[ShownClip]) -> dict[str, str]:
        """Return the hash of each clip that is shown, of those wired into the Start at the end of a wire."""
        inputs = self._start(wire)
        return {
            clip.name: _hash([self.value(inputs.get(CLIP_INPUTS + clip.name[1:])), clip.part]) for clip in shown
        }

    def starts(self, wire: Any) -> bool:
        """True if what is at the end of a wire says what the film begins with; a Start may have only clips."""
        inputs = self._start(wire)
        return bool(wire) and (not inputs or any(inputs.get(name) for name in ("images", "video")))

    def _start(self, wire: Any) -> dict[str, Any]:
        """Return the inputs of the Start at the end of a wire; of any other node, none."""
        node = self._prompt[wire[0]] if isinstance(wire, list) else {}
        return dict(node["inputs"]) if node.get("class_type") == START_NODE else {}

    def _prompt_node(self, wire: Any) -> str | None:
        """Return the node that encodes the prompt at the end of a wire; None for one that we cannot read."""
        node: Mapping[str, Any] = self._prompt[wire[0]] if isinstance(wire, list) else {}
        inputs = node.get("inputs", {})
        if "positive" in inputs and node["class_type"] not in PROMPTS:
            return self._prompt_node(inputs["positive"])  # WanVaceToVideo and others pass it on
        return wire[0] if node.get("class_type") in PROMPTS else None

    def texts(self, wire: Any, schedule: Any) -> list[PromptSchedule]:
        """Return the prompts that can be read, of a wire and of the prompt schedule at the end of another."""
        name = self._prompt_node(wire)
        node: Mapping[str, Any] = self._prompt[name] if name else {}
        text = node.get("inputs", {}).get(PROMPTS.get(node.get("class_type", "")))
        here = [read_prompt(text)] if isinstance(text, str) and text.strip() else []
        entry: Mapping[str, Any] = self._prompt[schedule[0]]["inputs"] if isinstance(schedule, list) else {}
        return [*here, *(self.texts(entry.get("conditioning"), entry.get("schedule")) if entry else [])]

    def lines(self, wire: Any) -> list[tuple[int, str]]:
        """Return pairs of first block, from 1, and hash for the lines of a prompt."""
        texts = self.texts(wire, None)
        if not texts:
            return []
        (read,) = texts
        starts = {at for at, _ in (*read.entries, *read.strengths)}
        # A line's own words alone, whatever others there are.
        parts: list[Mapping[int, object]] = [
            dict(read.entries),
            dict(read.strengths),
            dict.fromkeys(read.cuts, True),
        ]
        return [(at + 1, _hash([part.get(at) for part in parts])) for at in starts]

    def schedule(self, wire: Any) -> list[tuple[int, str]]:
        """Return such pairs for a prompt schedule; an entry whose block is not known counts for all."""
        if not wire:
            return []
        name = self.node(wire[0])
        node = self._prompt[wire[0]]
        inputs = node["inputs"]
        if node["class_type"] != "SDVGPromptSchedule" or not isinstance(inputs["from_block"], int):
            return [(ANY_BLOCK, name)]
        text = [self.value(inputs["conditioning"]), self.value(inputs["text"])]
        lines = [line for line in self.lines(inputs["conditioning"]) if line[0] > 1]
        here = [(inputs["from_block"], _hash(text)), *lines]
        return [*self.schedule(inputs.get("schedule")), *here]


def prompt_node(prompt: Mapping[str, Any], wire: Any) -> str | None:
    """Return the node that encodes the prompt at the end of a wire; None for one that we cannot read."""
    return _Graph(prompt, wire).read


def router_inputs(prompt: Mapping[str, Any], wire: Any) -> dict[str, Any]:
    """Return the inputs of the Quality Router at the end of a wire; of any other node, none."""
    node = prompt[wire[0]] if isinstance(wire, list) else {}
    return dict(node["inputs"]) if node.get("class_type") == "SDVGQualityRouter" else {}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
