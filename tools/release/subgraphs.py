"""Write the subgraph blueprints that ComfyUI's node library shows, from the workflows of the same purpose.

    python3 tools/release/subgraphs.py

All of a workflow between its files and its video becomes one node, with the widgets that people change on its face.
ComfyUI looks for them in the pack's folder `subgraphs`; the file's name is what people read.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "subgraphs"
SAMPLER = "SDVGSpeculativeSampler"
INPUT = -10
OUTPUT = -20
"""The ids of a subgraph's two ends."""
BLUEPRINTS: dict[str, dict[str, Any]] = {
    "SDVG text to video": {
        "workflow": "sdvg_03_text_to_video.json",
        "description": "A video from a prompt: a small model drafts, and a large one makes the blocks that matter.",
        "widgets": {
            "SDVGPrompt": ("text",),
            SAMPLER: ("blocks", "width", "height", "seed", "control_after_generate"),
            "SDVGQualityRouter": ("policy",),
            "SDVGDrafterLoader": ("file",),
            "SDVGTargetLoader": ("file",),
            "CLIPLoader": ("clip_name",),
            "VAELoader": ("vae_name",),
        },
    },
    "SDVG pocket demo": {
        "workflow": "sdvg_01_pocket_demo.json",
        "description": "Two tiny models make a video of a small world on any machine; nothing is downloaded.",
        "widgets": {
            "SDVGPocketModels": ("prompt",),
            SAMPLER: ("blocks", "seed", "control_after_generate"),
            "SDVGQualityRouter": ("policy",),
        },
    },
}
OUTPUTS = (("CreateVideo", "VIDEO"), (SAMPLER, "frames"), (SAMPLER, "report"))
OUTSIDE = ("SaveVideo", "SDVGRouteReport", "MarkdownNote")
"""Nodes of a workflow that its blueprint lacks."""


def blueprint(name: str) -> dict[str, Any]:
    """Return a blueprint as ComfyUI reads it: a workflow of one node, and the subgraph that the node stands for."""
    about = BLUEPRINTS[name]
    workflow = json.loads((ROOT / "workflows" / about["workflow"]).read_text(encoding="utf-8"))
    nodes = {node["type"]: node for node in workflow["nodes"] if node["type"] not in OUTSIDE}
    last = workflow["last_node_id"] + 1
    ends = [_end(nodes, slot, workflow["last_link_id"] + 1 + slot) for slot in range(len(OUTPUTS))]
    links = [*_wires(workflow["links"], {node["id"] for node in nodes.values()}), *ends]
    _keep_only({link["id"] for link in links}, list(nodes.values()))
    left = min(node["pos"][0] for node in nodes.values())
    right = max(node["pos"][0] + node["size"][0] for node in nodes.values())
    subgraph = {
        "id": _identity(name),
        "version": 1,
        "state": {"lastGroupId": 0, "lastNodeId": last, "lastLinkId": ends[-1]["id"], "lastRerouteId": 0},
        "revision": 0,
        "config": {},
        "name": name,
        "inputNode": {"id": INPUT, "bounding": [left - 180, 74, 120, 60]},
        "outputNode": {"id": OUTPUT, "bounding": [right + 60, 74, 120, 100]},
        "inputs": [],
        "outputs": [
            {"id": _identity(f"{name} {port}"), "name": port, "type": link["type"], "linkIds": [link["id"]]}
            for (_, port), link in zip(OUTPUTS, ends, strict=True)
        ],
        "widgets": [],
        "nodes": list(nodes.values()),
        "groups": [],
        "links": links,
        "extra": {},
        "category": "SDVG",
        "description": about["description"],
    }
    faces = [[str(nodes[kind]["id"]), widget] for kind, widgets in about["widgets"].items() for widget in widgets]
    node = {
        "id": last,
        "type": subgraph["id"],
        "pos": [0, 0],
        "size": [400, 460],
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": [],
        "outputs": [{"name": port["name"], "type": port["type"], "links": None} for port in subgraph["outputs"]],
        "properties": {"proxyWidgets": faces, "cnr_id": "sdvg"},
        "widgets_values": [],
    }
    return {
        "revision": 0,
        "last_node_id": last,
        "last_link_id": 0,
        "nodes": [node],
        "links": [],
        "version": 0.4,
        "definitions": {"subgraphs": [subgraph]},
        "extra": {"frontendVersion": workflow["extra"]["frontendVersion"]},
    }


def _identity(text: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


def _wires(links: list[list[Any]], ids: set[int]) -> list[dict[str, Any]]:
    """Return the links between some nodes, as a subgraph writes them."""
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return [dict(zip(names, link, strict=True)) for link in links if {link[1], link[3]} <= ids]


def _end(nodes: dict[str, Any], slot: int, number: int) -> dict[str, Any]:
    """Return the link to an output of the subgraph, and wire it to its node."""
    kind, output = OUTPUTS[slot]
    ports = nodes[kind]["outputs"]
    origin = [port["name"] for port in ports].index(output)
    ports[origin]["links"] = [*(ports[origin]["links"] or ()), number]
    begins = {"id": number, "origin_id": nodes[kind]["id"], "origin_slot": origin}
    return {**begins, "target_id": OUTPUT, "target_slot": slot, "type": ports[origin]["type"]}


def _keep_only(links: set[int], nodes: list[dict[str, Any]]) -> None:
    """Take the wires to nodes outside from the nodes' outputs."""
    for node in nodes:
        for port in node["outputs"]:
            port["links"] = [link for link in port["links"] or () if link in links] or None


def text_of(name: str) -> str:
    """Return the file of a blueprint."""
    return json.dumps(blueprint(name), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for title in BLUEPRINTS:
        (FOLDER / f"{title}.json").write_text(text_of(title), encoding="utf-8")
