"""The shared workflows in ComfyUI's page: dropped on the canvas; and the subgraph blueprints."""

import io
import json
import sys
from importlib.metadata import version

import av
import numpy as np
import pytest
import torch
from comfy_page import browse
from PIL import Image
from running_server import ROOT
from tiny_workflows import count_frames, with_tiny_models

sys.path.insert(0, str(ROOT / "tools" / "release"))
import subgraphs

pytestmark = pytest.mark.comfyui

WORKFLOWS = sorted((ROOT / "workflows").glob("*.json"))
RUN = {"sdvg_01_pocket_demo": 9, "sdvg_18_pocket_extend_video": 4 + 9, "sdvg_19_pocket_restyle_video": 9 + 9}
"""The workflows that are run on the page, with their blocks."""
API_DEMO = ROOT / "workflows" / "api" / "sdvg_pocket_demo.json"
NAMES = list(subgraphs.BLUEPRINTS)
FRONTEND = tuple(map(int, version("comfyui-frontend-package").split(".")[:2]))


@pytest.fixture(scope="module")
def dropped(server, tmp_path_factory):
    """What was seen on one page of all workflows, of one in API form, and of blueprints; some were run."""
    options = {"files": [str(path) for path in (*WORKFLOWS, API_DEMO)]}
    options["runs"] = [str(path) for path in WORKFLOWS if path.stem in RUN]
    options["blueprints"] = [str(subgraphs.FOLDER / f"{name}.json") for name in NAMES]
    return browse(server, tmp_path_factory.mktemp("page"), "drop.js", **options)


def test_words_of_an_opened_workflow_can_be_read(dropped):
    """Below a scale of 0.571 the classic canvas draws no text. Markdown of the page is 10 pixels high and up."""
    for page in dropped["dropped"][:-1]:
        assert 0.8 <= page["scale"] <= 1
        assert page["notes"]
        assert [note for note in page["notes"] if note["contrast"] < 4.5 or note["pixels"] < 10] == []
        assert [lines for lines in page["hidden"] if lines > 2] == []


def test_nodes_stay_in_their_groups_after_runs(dropped):
    assert [page["astray"] for page in dropped["dropped"][:-1]] == [[]] * (len(dropped["dropped"]) - 1)
    assert [page["astray"] for page in dropped["ran"].values()] == [[]] * len(RUN)


def test_no_node_lies_on_another(dropped):
    """Catches: a loader's foot under the head of the next one, in either renderer."""
    assert [page["overlaps"] for page in dropped["dropped"][:-1]] == [[]] * (len(dropped["dropped"]) - 1)
    assert [page["overlaps"] for page in dropped["ran"].values()] == [[]] * len(RUN)
    assert [page["overlaps"] for page in dropped["tall"][:-1]] == [[]] * (len(dropped["tall"]) - 1)
    assert [page["astray"] for page in dropped["tall"][:-1]] == [[]] * (len(dropped["tall"]) - 1)


def test_nodes_have_the_sizes_their_file_gives(dropped):
    """And after runs. Catches: a node that grows, which is a step to undo and ends redoing.

    In Nodes 2.0 the heights are those of 1.46 and later; nodes of the frontend before are a little taller.
    """
    in_vue = dropped["tall"][:-1] if FRONTEND >= (1, 46) else []
    opened = [page["resized"] for page in (*dropped["dropped"][:-1], *in_vue)]
    assert opened == [[]] * len(opened)
    assert [page["resized"] for page in dropped["ran"].values()] == [[]] * len(RUN)


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_page_sends_the_api_form_which_runs(path, dropped, server):
    """Catches a change to a workflow's settings that its other form did not get."""
    prompt = dropped["dropped"][WORKFLOWS.index(path)]["prompt"]
    api = API_DEMO.parent / f"sdvg_{path.stem.split('_', 2)[2]}.json"
    if api.is_file():  # which test_workflows.py runs
        expected = json.loads(api.read_text(encoding="utf-8"))
        assert {key: sent(node) for key, node in prompt.items()} == {key: sent(n) for key, n in expected.items()}
        return
    done = server.make(with_tiny_models(prompt))
    videos = [output["images"][0] for output in done.outputs.values() if "mp4" in str(output)]
    # A block shows 12 pixel frames, a clip's first 9; a start image shows one and leaves 12 for every block. A clip
    # that is extended comes first.
    frames = {
        "sdvg_07_continue_and_image": 1 + 4 * 12,
        "sdvg_10_extend_video": 21 + 2 * 12,
        "sdvg_14_first_and_last_frame": 1 + 2 * 12,
        "sdvg_15_long_video": 9 + 12 + 2 * (2 * 12),  # each later part without the frames that it was given
        "sdvg_16_finish_a_clip": 21 + 20,  # one between each two
        "sdvg_18_pocket_extend_video": 21 + 2 * 12,
    }
    assert sum(count_frames(server.view(video)) for video in videos) == frames.get(path.stem, 9 + 12)


def saved_pictures(prompt, server, *wires):
    """Run a dropped workflow; return what comes into inputs of its nodes, each `f h w`, as saved in PNG."""
    prompt = with_tiny_models(prompt)
    names = [f"saved {number}" for number in range(len(wires))]
    for name, (kind, into) in zip(names, wires, strict=True):
        [wire] = [node["inputs"][into] for node in prompt.values() if node["class_type"] == kind]
        prompt[name] = {"class_type": "SaveImage", "inputs": {"images": wire, "filename_prefix": "seen"}}
    saved = server.make(prompt).outputs
    files = [[server.view(file) for file in saved[name]["images"]] for name in names]
    return [
        torch.stack([torch.tensor(np.asarray(Image.open(io.BytesIO(png)).convert("L"))) for png in pictures])
        for pictures in files
    ]


def test_inpainting_keeps_pixels_under_a_black_mask(dropped, server):
    """Catches: what is made and what is kept changed over; a mask that is fitted in another way than the clip."""
    [prompt] = [page["prompt"] for page in dropped["dropped"] if "ImageCompositeMasked" in page["types"]]
    composite = ("ImageCompositeMasked", "source")
    masked = ("ImageCompositeMasked", "destination")
    clip, made, pasted, mask = saved_pictures(
        prompt, server, composite, masked, ("CreateVideo", "images"), ("ImageToMask", "image")
    )
    share = mask.float() / 255
    assert share.min() < 0.01
    assert share.max() > 0.99
    assert (pasted - (share * made + (1 - share) * clip)).abs().max() <= 4  # rounded four times
    assert (clip.float() - made).abs().mean() > 10


def test_mask_keeps_the_last_picture_alone(dropped, server):
    [prompt] = [
        page["prompt"]
        for page in dropped["dropped"]
        if "RepeatImageBatch" in page["types"] and "SDVGStart" in page["types"]
    ]
    frames, mask = saved_pictures(prompt, server, ("WanVaceToVideo", "control_video"), ("ImageToMask", "image"))
    assert [set(frame.unique().tolist()) for frame in mask] == [{255}] * 21 + [{0}] * 4
    assert [len(frame.unique()) for frame in frames[:21]] == [1] * 21
    assert all(torch.equal(frame, frames[24]) for frame in frames[21:])
    assert len(frames[24].unique()) > 20


def sent(node):
    """Return a node's type and inputs; a ComfyUI node's without the widget a later version puts them under.

    And without the colours of the report's picture, which are the page's.
    """
    kind = node["class_type"]
    inputs = {n: v for n, v in node["inputs"].items() if n != "theme"}
    return kind, inputs if kind.startswith("SDVG") else {n.rpartition(".")[2]: v for n, v in inputs.items()}


def test_seed_stays_in_new_and_api_samplers(dropped):
    """A workflow in API form has no word for it, so the page takes that of a new node."""
    page = dropped["dropped"][-1]
    assert (page["newSeed"], page["seeds"]) == ("fixed", ["fixed"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_dropped_workflow_opens_with_all_its_nodes(path, dropped):
    page = dropped["dropped"][WORKFLOWS.index(path)]
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert sorted(page["types"]) == sorted(node["type"] for node in saved["nodes"])
    assert page["missing"] == []
    assert not page["asksForText"], "a text box that is of no use, as the prompt comes over the wire"
    assert not any("newer SDVG" in told for told in page["told"])
    assert dropped["errors"] == []


@pytest.mark.parametrize("stem", RUN)
def test_template_without_files_runs_when_opened(stem, dropped):
    """Catches: a template that promises to need no file, and then asks for one. Run is pressed as it was opened."""
    opened = dropped["dropped"][[path.stem for path in WORKFLOWS].index(stem)]
    assert [kind for kind in opened["types"] if "Load" in kind] == []
    outcomes = dropped["ran"][stem]["outcomes"]
    assert len(outcomes) == RUN[stem]
    assert None not in outcomes


def saved_clip(page, server):
    """Return the frames of the video that a page's run saved, `f h w c` in [0, 1]."""
    with av.open(io.BytesIO(server.view(page["file"]))) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.tensor(np.stack(frames)) / 255


def paths_of(clip):
    """Return where the warm thing of each frame is, in pixels down and across: `f 2`."""
    warm = clip[..., 0] - clip[..., 2] > 0.25
    assert warm.sum(dim=(1, 2)).min() > 50
    return torch.stack([frame.nonzero().float().mean(dim=0) for frame in warm])


def grounds_of(clip):
    """Return the colour of each frame's cooler half, `f c`."""
    pixels = clip.flatten(1, 2)
    coolest = (pixels[..., 0] - pixels[..., 2]).argsort(dim=1)[:, : pixels.shape[1] // 2]
    return pixels.gather(1, coolest[..., None].expand(-1, -1, 3)).mean(dim=1)


def test_pocket_demo_saves_all_its_frames(dropped, server):
    assert len(saved_clip(dropped["ran"]["sdvg_01_pocket_demo"], server)) == 9 + 8 * 12


def test_extended_pocket_clip_goes_on(dropped, server):
    """Catches: a clip that does not reach the sampler; a ball that jumps; a second prompt that is not read."""
    clip = saved_clip(dropped["ran"]["sdvg_18_pocket_extend_video"], server)
    given = 9 + 3 * 12
    assert len(clip) == given + 9 * 12
    path = paths_of(clip)
    assert path.diff(dim=0).norm(dim=1).max() < 5
    ground = grounds_of(clip)
    assert (ground[1:given] - ground[0]).abs().max() < 0.05
    assert (ground[-24:] - ground[0]).norm(dim=1).min() > 0.3


def test_restyled_pocket_clip_keeps_its_path(dropped, server):
    """Catches: a strength at which the prompt alone says where the ball goes. The clip is on the left."""
    clip = saved_clip(dropped["ran"]["sdvg_19_pocket_restyle_video"], server)
    assert len(clip) == 9 + 8 * 12
    given = clip[:, :, :64]
    restyled = clip[:, :, -64:]
    assert (paths_of(given) - paths_of(restyled)).norm(dim=1).mean() < 1
    assert (grounds_of(given) - grounds_of(restyled)).norm(dim=1).min() > 0.3


# --- subgraph blueprints


API = {"SDVG text to video": "sdvg_text_to_video.json", "SDVG pocket demo": "sdvg_pocket_demo.json"}


@pytest.mark.parametrize("name", NAMES)
def test_api_file_is_what_the_script_writes(name):
    assert (subgraphs.FOLDER / f"{name}.json").read_text(encoding="utf-8") == subgraphs.text_of(name)


def test_the_server_offers_them(server):
    offered = {
        entry["name"] for entry in server.ask("/global_subgraphs").values() if "sdvg" in entry["info"]["node_pack"]
    }
    assert offered == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_page_sends_an_api_file_as_its_workflow(name, dropped):
    """Inside the subgraph ids have a prefix. Catches a lost wire, and a widget whose value is another's."""
    expected = json.loads((ROOT / "workflows" / "api" / API[name]).read_text(encoding="utf-8"))
    wanted = {key: node for key, node in expected.items() if node["class_type"] not in subgraphs.OUTSIDE}
    placed = dropped["blueprints"][name]
    assert plain(placed["prompt"]) == plain(wanted)
    assert placed["outputs"] == [output for _, output in subgraphs.OUTPUTS]


def plain(prompt):
    """Return the nodes by their number in the subgraph, and their inputs without what only the page adds."""

    def inner(value):
        return [value[0].rpartition(":")[2], value[1]] if isinstance(value, list) and len(value) == 2 else value

    return {
        key.rpartition(":")[2]: (
            node["class_type"],
            {name.rpartition(".")[2]: inner(value) for name, value in node["inputs"].items()},
        )
        for key, node in prompt.items()
    }
