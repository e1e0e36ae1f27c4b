"""The workflow that servers are sent, and where prompt and seed go in it.

It is in API form: an object of nodes by id, each with `class_type` and `inputs`. An input is a value, or the output
of another node as `[id, number]`. The prompt is found by following the sampler's inputs to the text they come from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput, why
from ..files.small_files import MEGABYTE, parse_json, read_small

SAMPLER, REPORT_NODE = "SDVGSpeculativeSampler", "SDVGRouteReport"
LARGEST_FILE = 16 * MEGABYTE
# What text is called where nodes take it or hand it on, and the wires on which a prompt travels when it is encoded.
TEXTS, WIRES = ("prompt", "text", "value", "string"), ("positive", "conditioning", "source")
NUMBERS = ("seed", "value", "noise_seed")
FARTHEST = 64
"""Nodes between the sampler and its text."""

Place = tuple[str, str]
"""A node's id, and the name of one of its inputs."""
NOWHERE: Place = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workflow:
    """A workflow in API form. `prompts`, `seed`: the inputs they go into. `blocks`: of a video, None if unknown."""

    nodes: dict[str, dict[str, Any]]
    prompts: tuple[Place, ...]
    seed: Place
    blocks: int | None = None

    @property
    def own_seed(self) -> int:
        """The seed that it was saved with."""
        node, name = self.seed
        return int(self.nodes[node]["inputs"][name])

    def filled(self, prompt: str, seed: int) -> dict[str, Any]:
        """Return the nodes with a prompt and a seed."""
        nodes = {key: {**node, "inputs": dict(node["inputs"])} for key, node in self.nodes.items()}
        for node, name in self.prompts:
            nodes[node]["inputs"][name] = prompt
        nodes[self.seed[0]]["inputs"][self.seed[1]] = seed
        return nodes


def digest_of(nodes: dict[str, Any]) -> str:
    """Return a hash of what is sent to a server; titles and places of nodes do not count."""
    plain = {key: (node["class_type"], node["inputs"]) for key, node in nodes.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_workflow(path: Path, prompt_node: str | None = None) -> Workflow:
    """Read a workflow in API form. `prompt_node`: `ID` or `ID.input`, where the prompt goes.

    Raises `BadInput` if it is none, has not exactly one sampler and a report, or if prompt and seed have no place.
    """
    nodes = _read_nodes(path)
    samplers = [key for key, node in nodes.items() if node["class_type"] == SAMPLER]
    if len(samplers) != 1:
        raise BadInput(
            f"a workflow needs one {SAMPLER}, which makes the video, but {path.name} has {len(samplers)}; "
            "give one with one"
        )
    if not any(node["class_type"] == REPORT_NODE for node in nodes.values()):
        raise BadInput(
            f"the report of a video comes from a {REPORT_NODE}, but {path.name} has none; wire one to the sampler"
        )
    (sampler,) = samplers
    blocks = nodes[sampler]["inputs"].get("blocks")
    return Workflow(
        nodes=nodes,
        prompts=_named(nodes, prompt_node) if prompt_node else _find_prompts(nodes, sampler),
        seed=_find_seed(nodes, sampler),
        blocks=blocks if isinstance(blocks, int) else None,
    )


def _read_nodes(path: Path) -> dict[str, dict[str, Any]]:
    try:
        nodes = parse_json(read_small(path, LARGEST_FILE))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"the workflow must be a JSON file, but {path.name} cannot be read ({why(error)}); check the file"
        ) from error
    if isinstance(nodes, dict) and isinstance(nodes.get("nodes"), list):
        raise BadInput(
            f"a server takes workflows in API form, but {path.name} is in the form of the editor; save it there "
            "with File, Export (API)"
        )
    if not isinstance(nodes, dict) or not nodes or not all(map(_is_node, nodes.values())):
        raise BadInput(
            f"a workflow in API form has nodes with class_type and inputs, but {path.name} has something else; "
            "save it with File, Export (API)"
        )
    return nodes


def _is_node(node: Any) -> bool:
    return (
        isinstance(node, dict) and isinstance(node.get("class_type"), str) and isinstance(node.get("inputs"), dict)
    )


def _find_prompts(nodes: dict[str, dict[str, Any]], sampler: str) -> tuple[Place, ...]:
    """Return where the texts lie that the scorer reads and that the models see: one place, or two with one text."""
    # An empty prompt of the sampler stands for the text that comes with its conditioning.
    given = {
        name for name, value in nodes[sampler]["inputs"].items() if not isinstance(value, str) or value.strip()
    }
    starts = [(sampler, name) for name in ("prompt", "positive") if name in given]
    places = tuple(dict.fromkeys(_follow(nodes, start, str, TEXTS, WIRES) for start in starts))
    texts = {nodes[node]["inputs"][name] for node, name in places if node}
    if NOWHERE in places or len(texts) != 1:
        found = ", ".join(f"{node}.{name}" for node, name in places if node) or "nothing"
        raise BadInput(
            f"the sampler's prompt and its conditioning must come from one text, but lead to {found:.120}; wire "
            "one text into both, or name its node with --prompt-node ID or ID.input"
        )
    return places


def _find_seed(nodes: dict[str, dict[str, Any]], sampler: str) -> Place:
    place = _follow(nodes, (sampler, "seed"), int, NUMBERS, ())
    if not place[0]:
        raise BadInput(
            f"the seed is an input of the sampler, but that of node {sampler} is not a number nor comes from one; "
            "take the wire off"
        )
    return place


def _follow(
    nodes: dict[str, dict[str, Any]], place: Place, kind: type, names: tuple[str, ...], wires: tuple[str, ...]
) -> Place:
    """Return the input that holds the value of another, or `NOWHERE` if that is not one for certain.

    `names`: inputs that hold such a value or hand it on. `wires`: inputs to follow where there are none of these.
    """
    for _ in range(FARTHEST):
        node, name = place
        value = nodes[node]["inputs"].get(name)
        if isinstance(value, kind) and not isinstance(value, bool):
            return place
        if not _is_link(value) or value[0] not in nodes:
            return NOWHERE
        inputs = nodes[value[0]]["inputs"]
        further = [name for name in names if name in inputs] or [name for name in wires if name in inputs]
        if len(further) != 1:
            return NOWHERE
        place = value[0], further[0]
    return NOWHERE


def _is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


def _named(nodes: dict[str, dict[str, Any]], prompt_node: str) -> tuple[Place, ...]:
    """Return the input that a user named."""
    # Ids of nodes inside subgraphs have colons, and names of inputs may have dots.
    node, _, name = prompt_node.partition(".")
    if node not in nodes:
        ids = ", ".join(_sorted_ids(nodes))
        raise BadInput(f"--prompt-node names a node, but the workflow has no {node!r:.60}; it has {ids:.200}")
    inputs = nodes[node]["inputs"]
    texts = [key for key, value in inputs.items() if isinstance(value, str)]
    known = [key for key in texts if key in TEXTS] or texts
    chosen = [name] if name in texts else [] if name else known
    if len(chosen) != 1:
        raise BadInput(
            f"--prompt-node names one input that holds text, but {prompt_node!r:.60} does not; node {node} has "
            f"{', '.join(texts) or 'no such input':.120}; give for example {node}.{(known or ['text'])[0]}"
        )
    return ((node, chosen[0]),)


def _sorted_ids(nodes: dict[str, Any]) -> Iterator[str]:
    yield from sorted(nodes, key=lambda key: [int(part) for part in re.findall(r"\d+", key)])
