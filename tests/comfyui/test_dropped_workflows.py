"""The shared workflows in ComfyUI's page: dropped on the canvas, and as older versions saved them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from comfy_page import browse
from running_server import ROOT, Server, needs_device_nodes
from test_workflows import names, with_tiny_models

pytestmark = pytest.mark.comfyui

HERE = Path(__file__).resolve().parent
WORKFLOWS = sorted((ROOT / "workflows").glob("*.json"))
POCKET_DEMO = ROOT / "workflows" / "sdvg_1_pocket_demo.json"
API_DEMO = ROOT / "workflows" / "api" / "sdvg_pocket_demo.json"
PAPER_GATE = ROOT / "workflows" / "sdvg_6_paper_gate.json"
TEXT_TO_VIDEO = ROOT / "workflows" / "sdvg_3_text_to_video.json"
FOR_REAL_MODELS = [path for path in WORKFLOWS if not path.stem.endswith(("_pocket_demo", "_app"))]


RENDERERS = pytest.mark.parametrize(
    "renderer", ["dropped", pytest.param("dropped_in_nodes_2", marks=pytest.mark.exhaustive)]
)


@pytest.fixture(scope="module")
def dropped(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of all workflows, dropped on one page; the pocket demo was run as it is."""
    files, runs = [str(path) for path in WORKFLOWS], WORKFLOWS.index(POCKET_DEMO)
    return browse(server, tmp_path_factory.mktemp("page"), "drop.js", files=files, runs=runs)


@pytest.fixture(scope="module")
def dropped_in_nodes_2(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same of two; the demo with a seed of its own, for from the cache a sampler shows no preview."""
    folder = tmp_path_factory.mktemp("page")
    workflow = json.loads(POCKET_DEMO.read_text(encoding="utf-8"))
    [sampler] = [node for node in workflow["nodes"] if node["type"] == "SDVGSpeculativeSampler"]
    sampler["widgets_values"] = [43 if value == 42 else value for value in sampler["widgets_values"]]
    demo = folder / POCKET_DEMO.name
    demo.write_text(json.dumps(workflow), encoding="utf-8")
    return browse(server, folder, "drop.js", vue=True, files=[str(demo), str(PAPER_GATE)], runs=0)


@RENDERERS
def test_words_of_an_opened_workflow_can_be_read(renderer: str, request: pytest.FixtureRequest) -> None:
    """Below a scale of 0.571 the classic canvas draws no text. Markdown of the page is 10 pixels high and up."""
    for page in request.getfixturevalue(renderer)["dropped"]:
        assert 0.8 <= page["scale"] <= 1
        assert page["notes"]
        assert [note for note in page["notes"] if note["contrast"] < 4.5 or note["pixels"] < 10] == []
        assert [lines for lines in page["hidden"] if lines > 2] == []


@RENDERERS
def test_nodes_stay_in_their_groups_also_after_a_run(renderer: str, request: pytest.FixtureRequest) -> None:
    seen = request.getfixturevalue(renderer)
    assert [page["astray"] for page in seen["dropped"]] == [[]] * len(seen["dropped"])
    assert seen["ran"]["astray"] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_dropped_on_the_canvas_opens_with_all_its_nodes(path: Path, dropped: dict[str, Any]) -> None:
    """The pocket demo is run as well; the others need models that are not here."""
    needs_device_nodes(path)
    page, saved = dropped["dropped"][WORKFLOWS.index(path)], json.loads(path.read_text(encoding="utf-8"))
    assert sorted(page["types"]) == sorted(node["type"] for node in saved["nodes"])
    assert page["missing"] == []
    assert not any("newer SDVG" in told for told in page["told"])
    assert dropped["errors"] == []
    if path == POCKET_DEMO:
        assert len(dropped["ran"]["fates"]) == 9
        assert None not in dropped["ran"]["fates"]
        assert dropped["ran"]["seconds"] == pytest.approx(105 / 16, abs=0.1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("vue", [False, True], ids=["canvas", "nodes 2.0"])
@pytest.mark.parametrize("path", FOR_REAL_MODELS, ids=[path.stem for path in FOR_REAL_MODELS])
def test_graphs_for_the_real_models_keep_their_groups_too(
    path: Path, vue: bool, server: Server, tmp_path: Path
) -> None:
    """With tiny models and frames of the real shape. Pocket Models itself is too large here."""
    needs_device_nodes(path)
    workflow = with_tiny_models(json.loads(path.read_text(encoding="utf-8")))
    for node in workflow["nodes"]:
        if node["type"] == "SDVGSpeculativeSampler":
            # From the cache it shows no preview.
            changes = {"seed": 1000 + vue, "width": 112, "height": 64}
            node["widgets_values"] = [
                changes.get(n, v) for n, v in zip(names(node), node["widgets_values"], strict=True)
            ]
    file = tmp_path / path.name
    file.write_text(json.dumps(workflow), encoding="utf-8")
    seen = browse(server, tmp_path, "drop.js", vue=vue, files=[str(file)], runs=0)
    assert [node for node in seen["ran"]["astray"] if node[0] != "SDVGPocketModels"] == []


@pytest.mark.parametrize("vue", [False, True], ids=["canvas", "nodes 2.0"])
def test_the_seed_stays_in_a_new_sampler_and_in_one_from_an_api_file(
    vue: bool, server: Server, tmp_path: Path
) -> None:
    """A workflow in API form has no word for it, so the page takes that of a new node."""
    [page] = browse(server, tmp_path, "drop.js", vue=vue, files=[str(API_DEMO)])["dropped"]
    assert (page["newSeed"], page["seeds"]) == ("fixed", ["fixed"])


# --- saved by older versions


def test_a_workflow_saved_before_there_were_weights_takes_auto(server: Server, tmp_path: Path) -> None:
    """Catches a new input of the loaders that is not the last: values are saved by their place alone."""
    now = json.loads(TEXT_TO_VIDEO.read_text(encoding="utf-8"))
    before = json.loads(json.dumps(now))
    for node in before["nodes"]:
        if node["type"] in ("SDVGDrafterLoader", "SDVGTargetLoader"):
            node["inputs"] = [slot for slot in node["inputs"] if slot["name"] != "weights"]
            assert node["widgets_values"].pop() == "auto"
    one, other = browse(server, tmp_path, "convert.js", workflows=[before, now])["prompts"]
    assert one == other
    assert json.dumps(one).count('"weights": "auto"') == 2


@pytest.fixture(scope="module")
def converted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The prompts of saved workflows, opened in the page: each as it was, then as it is now."""
    pairs = ("before_directions", POCKET_DEMO), ("before_sdvg_prompt", TEXT_TO_VIDEO)
    paths = [path for saved, now in pairs for path in (HERE / "saved" / f"{saved}.json", now)]
    workflows = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    workflows[2:] = map(with_tiny_models, workflows[2:])
    return browse(server, tmp_path_factory.mktemp("page"), "convert.js", workflows=workflows)["prompts"]


def latents_of(server: Server, prompt: dict[str, Any]) -> torch.Tensor:
    """Run a prompt's sampler over two blocks, and return the latents as the server saved them."""
    [sampler] = [key for key, node in prompt.items() if node["class_type"] == "SDVGSpeculativeSampler"]
    prompt[sampler]["inputs"]["blocks"] = 2
    ends = ("SaveVideo", "SDVGRouteReport")
    kept = {key: node for key, node in prompt.items() if node["class_type"] not in ends}
    kept["kept"] = {"class_type": "SaveLatent", "inputs": {"samples": [sampler, 1], "filename_prefix": "saved"}}
    done = server.run(kept)
    assert done.status == "success", done.message("execution_error")
    [file] = done.outputs["kept"]["latents"]
    return safetensors.torch.load(server.view(file))["latent_tensor"]


@pytest.mark.parametrize("pair", [0, 1], ids=["before_directions", "before_sdvg_prompt"])
def test_a_workflow_saved_by_an_older_version_makes_the_same_video(
    pair: int, converted: list[dict[str, Any]], server: Server
) -> None:
    """Both had the prompt's text over a wire of its own, which the shared ones no longer have."""
    before, now = converted[2 * pair : 2 * pair + 2]
    [wired] = [n["inputs"]["prompt"] for n in before.values() if n["class_type"] == "SDVGSpeculativeSampler"]
    assert isinstance(wired, list)
    assert torch.equal(latents_of(server, before), latents_of(server, now))
