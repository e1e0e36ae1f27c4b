"""The shared workflows: as files, as the frontend and other programs read them, and run with tiny models.

A tiny UMT5 cannot go through Load CLIP (ComfyUI knows the encoder by its 24 layers and full width). So before a
run every text encoder becomes an SDVG Pocket Models node, whose conditioning stands in, with a prompt of its world.
"""

import io
import json
import re
from functools import cache

import pytest
from PIL import Image
from running_server import CHECKOUT, CNR, ROOT
from sdvg_pack.sdvg_core.weights.model_files import CONTROL_FILES, KNOWN_FILES, KNOWN_MODELS
from tiny_workflows import SMALL, TEXT, count_frames, names, with_tiny_models

pytestmark = pytest.mark.comfyui

FOLDER = ROOT / "workflows"
FILES = sorted(FOLDER.glob("*.json"))
API_FILES = sorted((FOLDER / "api").glob("*.json"))


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


@each(API_FILES)
def test_api_workflow_runs_and_leaves_its_record(path, server):
    """Catches: an input that was renamed in the nodes and not in the files."""
    prompt = with_tiny_models(load(path))
    done = server.make(prompt)
    by_type = {prompt[key]["class_type"]: output for key, output in done.outputs.items()}
    [video] = by_type["SaveVideo"]["images"]
    assert count_frames(server.view(video)) == 9 + 12
    record = json.loads(by_type["SDVGRouteReport"]["sdvg_report"][0])
    assert record["settings"]["blocks"] == len(record["blocks"]) == SMALL["blocks"]


def test_absent_second_gpu_stops_no_workflow(server):
    """Catches: a template for two GPUs that fails where there is one."""
    prompt = with_tiny_models(load(FOLDER / "api" / "sdvg_text_to_video.json"))
    [sampler] = [node for node in prompt.values() if node["class_type"] == "SDVGSpeculativeSampler"]
    for role, kind in (("drafter", "Model"), ("target", "Model"), ("vae", "VAE")):
        moved = {kind.lower(): sampler["inputs"][role], "device": "gpu:1"}
        prompt[f"on {role}"] = {"class_type": f"Select{kind}Device", "inputs": moved}
        sampler["inputs"][role] = [f"on {role}", 0]
    server.make(prompt)


@each(FILES)
def test_missing_model_is_named_with_its_source(path):
    """ComfyUI offers to download it. Catches: another file, folder or address than the command line knows."""
    for node in load(path)["nodes"]:
        entries = node.get("properties", {}).get("models", [])
        files = [v for v in node.get("widgets_values") or [] if str(v).endswith((".pt", ".safetensors"))]
        assert [entry["name"] for entry in entries] == files
        for entry in entries:
            folder, urls = place_of(entry["name"])
            if folder is None:
                assert entry["directory"] in ("frame_interpolation", "upscale_models")
                assert entry["url"] in blueprints()
            else:
                assert entry["directory"] == folder
                assert entry["url"] in urls


def place_of(name):
    """Return the folder of a file and its addresses; of one of ComfyUI's own kinds None."""
    known = [file for file in (*KNOWN_FILES, *CONTROL_FILES) if name in file.names]
    if not known:
        return None, ()
    [file] = known
    sources = [model for model in KNOWN_MODELS if name in model.files] or [file]
    places = [f"{source.repository}/resolve/main/{source.path}" for source in sources]
    return file.folder, tuple(f"https://huggingface.co/{place}" for place in places)


@cache
def blueprints():
    """Return the text of all workflows that ComfyUI comes with."""
    return "\n".join(path.read_text("utf-8") for path in (CHECKOUT / "blueprints").glob("*.json"))


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "api"], ids=["ui", "api"])
def test_only_paper_gate_asks_for_a_reward_model(folder):
    """Catches: a workflow whose policy looks at no score, and that asks for 1.8 GB all the same."""
    asking = [path.stem for path in sorted(folder.glob("*.json")) if "ImageReward.pt" in values_in(load(path))]
    assert [stem.rpartition("paper_gate")[1] for stem in asking] == ["paper_gate"]


def values_in(workflow):
    """Return the texts chosen in a workflow's widgets, in either form."""
    lists = [node.get("widgets_values") or [] for node in workflow.get("nodes", [])]
    lists += [node["inputs"].values() for node in workflow.values() if isinstance(node, dict) and "inputs" in node]
    return {value for values in lists for value in values if isinstance(value, str)}


@each(FILES)
def test_workflow_is_a_template_with_small_picture(path, server):
    """Catches: a template without a picture, or with one that makes the page slow."""
    assert path.stem in server.ask("/workflow_templates")[CNR]
    assert json.loads(server.raw(f"/api/workflow_templates/{CNR}/{path.name}")) == load(path)
    picture = server.raw(f"/api/workflow_templates/{CNR}/{path.stem}.jpg")
    assert len(picture) <= 60_000
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "JPEG"
        assert image.width >= 320


@pytest.mark.parametrize("number", [10, 11, 12])
def test_sound_of_a_loaded_clip_reaches_the_video(number):
    """Catches: a template that loses the sound."""
    [path] = FOLDER.glob(f"sdvg_{number}_*.json")
    workflow = load(path)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    [(source, slot, made, place)] = [link[1:5] for link in workflow["links"] if link[5] == "AUDIO"]
    assert nodes[source]["outputs"][slot]["name"] == nodes[made]["inputs"][place]["name"] == "audio"
    assert nodes[source]["type"] in ("SDVGStart", "GetVideoComponents")
    assert nodes[made]["type"] == "CreateVideo"


BROUGHT = {"LoadVideo": {"clip", "video"}, "LoadImage": {"picture", "pictures"}, "LoadAudio": {"sound"}}
"""What the nodes that read a user's file are given, as notes call it."""


@each([path for path in FILES if any(f'"{kind}"' in path.read_text(encoding="utf-8") for kind in BROUGHT)])
def test_first_note_says_what_to_bring(path):
    """Catches: a template that opens with a file that nobody has, and does not say which one to put there."""
    nodes = load(path)["nodes"]
    note, *_ = [node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"]
    [sentences] = re.findall(r"\*\*Bring .*", note)
    words = set(re.findall(r"\w+", sentences))
    assert [node["type"] for node in nodes if words.isdisjoint(BROUGHT.get(node["type"], words))] == []


APPS = {
    "sdvg_02_pocket_app": ["prompt", "policy", "blocks", "seed"],
    "sdvg_04_app": ["text", "policy.target_at", "blocks", "seed"],
}


@pytest.mark.parametrize("stem", APPS)
def test_app_shows_existing_widgets_and_real_outputs(stem, server):
    """Catches: an app that shows nothing for a widget that was renamed."""
    workflow = load(FOLDER / f"{stem}.json")
    nodes = {node["id"]: node for node in workflow["nodes"]}
    app = workflow["extra"]["linearData"]
    assert workflow["extra"]["linearMode"]
    assert [name for _, name in app["inputs"]] == APPS[stem]
    assert all(name in names(nodes[id_]) for id_, name in app["inputs"])
    known = server.ask("/object_info")
    assert [nodes[id_]["type"] for id_ in app["outputs"]] == ["SaveVideo", "SDVGRouteReport"]
    assert all(known[nodes[id_]["type"]]["output_node"] for id_ in app["outputs"])


HEAD = 30
WIDGETS_OF_SAVED = 100
"""Pixels above the video on the canvas, where a square one is 20 narrower than its node."""


@each(FILES)
def test_saved_video_has_room_to_grow(path):
    """Catches: a note that a square video covers once it is made. The kind: what is below a node that grows."""
    nodes = load(path)["nodes"]
    boxes = [(*node["pos"], *node["size"]) for node in nodes]
    saved = [box for node, box in zip(nodes, boxes, strict=True) if node["type"] == "SaveVideo"]
    for left, top, width, _ in saved:
        bottom = top + WIDGETS_OF_SAVED + width
        beside = [x for x in boxes if x[0] < left + width and left < x[0] + x[2] and x[1] > top]
        assert [x for x in beside if x[1] - HEAD < bottom] == []


@each(FILES)
def test_prompt_is_written_in_one_place(path):
    """Catches: the scorer reading another text than the one the video shows."""
    nodes = load(path)["nodes"]
    assert not {TEXT, "CLIPTextEncode"} & {node["type"] for node in nodes}
    for node in nodes:
        for slot in node["inputs"]:
            assert slot["type"] != "STRING" or slot["link"] is None
        if node["type"] == "SDVGSpeculativeSampler":
            assert dict(zip(names(node), node["widgets_values"], strict=True))["prompt"] == ""


OF_REAL_MODELS = [path for path in FILES if "SDVGTargetLoader" in path.read_text(encoding="utf-8")]


@each(OF_REAL_MODELS)
def test_note_lists_files_as_the_readme_does(path):
    """What fits a card, tests/memory/test_plan.py compares."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    texts = [node["widgets_values"][0] for node in load(path)["nodes"] if node["type"] == "MarkdownNote"]
    [files] = [text.replace("\xa0", " ") for text in texts if "not for commercial use" in text]
    sizes = dict(re.findall(r"^ +(\S+) +([\d.]+ GB)", readme, re.MULTILINE))
    listed = dict(re.findall(r"^- \[(\S+)\]\(\S+\), ([\d.]+ [GM]B), in \*\w+\*: ", files, re.MULTILINE))
    assert len(listed) >= 4
    assert {name: sizes.get(name, size) for name, size in listed.items()} == listed
