"""What the Route Report leaves behind can be passed on: no prompt is in it unless that was asked for."""

import json
from dataclasses import replace
from errno import ENOSPC

import comfy.utils
import folder_paths
import pytest
import torch
from comfy_api.latest import ui
from host_run import TEXT, make_job, video_of
from PIL import Image
from sdvg_pack.nodes.host.job import fit
from sdvg_pack.nodes.report import RouteReport
from sdvg_pack.nodes.sockets import PromptEntry
from sdvg_pack.sdvg_core.errors import BadInput

pytestmark = pytest.mark.comfyui

WORKFLOW = {"workflow": {"nodes": [{"type": "PrimitiveString", "widgets_values": [TEXT]}]}}


class Hidden:
    """What ComfyUI tells a node beside its inputs."""

    unique_id = "6"
    prompt = {"1": {"class_type": "PrimitiveString", "inputs": {"value": TEXT}}}  # noqa: RUF012
    extra_pnginfo = WORKFLOW


@pytest.fixture(scope="module")
def report(parts):
    return video_of(make_job(parts, script="ra"))[2]


def show(report, folder, monkeypatch, **inputs):
    """Execute the node as ComfyUI does; return what it hands on, and the file of its preview."""
    monkeypatch.setattr(folder_paths, "temp_directory", str(folder))
    node = type("Report", (RouteReport,), {"hidden": Hidden()})
    output = node.execute(report=report, **inputs)
    [preview] = folder.rglob("*.png")
    return output, preview


def test_a_prompt_is_in_what_the_route_report_shows_and_hands_on_only_if_it_was_asked_for(
    report, tmp_path, monkeypatch
):
    """Catches the workflow in the preview's file, where ComfyUI writes it if it is told the node."""
    output, hidden = show(report, tmp_path / "off", monkeypatch)
    asked, shown = show(report, tmp_path / "on", monkeypatch, prompt_in_report=True)
    for preview in (hidden, shown):
        with Image.open(preview) as picture:
            assert picture.info == {}
    words = json.dumps([output.ui, output.result[1]], default=str)
    assert TEXT in report.to_json()
    assert TEXT not in words
    assert [block["prompt"].partition(":")[0] for block in json.loads(output.result[1])["blocks"]] == ["sha256"] * 2
    assert json.loads(asked.result[1])["blocks"][0]["prompt"].startswith(TEXT)
    assert asked.result[0].shape[1] > output.result[0].shape[1]  # by the line with the prompt


# --- what a run begins with


CROPS = [((40, 64), (80, 48)), ((64, 40), (48, 80)), ((33, 57), (32, 32)), ((1, 90), (48, 80))]


@pytest.mark.parametrize("picture, size", CROPS)
def test_a_picture_is_cropped_as_comfyui_crops_it(picture, size):
    images = torch.rand(2, *picture, 4, generator=torch.Generator().manual_seed(1))
    theirs = comfy.utils.common_upscale(images[:1, :, :, :3].movedim(-1, 1), *size, "lanczos", "center")
    assert torch.equal(fit(images, *size)[:, 0], theirs)


def test_a_cropped_picture_and_a_prompt_that_never_comes_are_told_in_the_report(parts):
    job = make_job(parts, script="d", start_image=torch.full((1, 40, 64, 3), 0.5))
    [prompt] = job.prompts
    job = replace(job, prompts=(prompt, PromptEntry(1, prompt.conditioning, "a storm")))
    notes = video_of(job)[2].notes
    assert (
        "The start image was cropped at its centre from 64 x 40 to 40 x 40, the shape of the video of 32 x 32."
        in (notes)
    )
    assert "The prompt from block 2 on is not shown: the video ends with block 1." in notes


def test_a_full_folder_for_the_preview_is_one_sentence(report, tmp_path, monkeypatch):
    """Catches the system's own error, after the video was made."""

    def full(*_, **__):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(ui, "PreviewImage", full)
    with pytest.raises(BadInput, match=r"temp folder \(No space left on device\); make room there and queue"):
        show(report, tmp_path, monkeypatch)
