"""What the Route Report leaves behind can be passed on: no prompt is in it unless that was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folder_paths
import pytest
from comfy_api.latest import io
from host_run import TEXT, load_parts, make_job, video_of
from PIL import Image
from sdvg_pack.nodes.report import RouteReport
from sdvg_pack.sdvg_core.report.run_report import RunReport

pytestmark = pytest.mark.comfyui

WORKFLOW = {"workflow": {"nodes": [{"type": "PrimitiveString", "widgets_values": [TEXT]}]}}


class Hidden:
    """What ComfyUI tells a node beside its inputs."""

    unique_id = "6"
    prompt = {"1": {"class_type": "PrimitiveString", "inputs": {"value": TEXT}}}  # noqa: RUF012
    extra_pnginfo = WORKFLOW


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return video_of(make_job(load_parts(tmp_path_factory.mktemp("models")), script="ra"))[2]


def show(
    report: RunReport, folder: Path, monkeypatch: pytest.MonkeyPatch, **inputs: Any
) -> tuple[io.NodeOutput, Path]:
    """Execute the node as ComfyUI does; return what it hands on, and the file of its preview."""
    monkeypatch.setattr(folder_paths, "temp_directory", str(folder))
    node = type("Report", (RouteReport,), {"hidden": Hidden()})
    output = node.execute(report=report, **inputs)
    [preview] = folder.rglob("*.png")
    return output, preview


def test_no_prompt_is_in_what_the_route_report_shows_and_hands_on(
    report: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches the workflow in the preview's file, where ComfyUI writes it if it is told the node."""
    output, preview = show(report, tmp_path, monkeypatch)
    with Image.open(preview) as picture:
        assert picture.info == {}
    words = json.dumps([output.ui, output.result[1]], default=str)
    assert TEXT in report.to_json()
    assert TEXT not in words
    assert [block["prompt"].partition(":")[0] for block in json.loads(output.result[1])["blocks"]] == ["sha256"] * 2


def test_prompts_are_in_record_and_picture_if_asked_for(
    report: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, _ = show(report, tmp_path / "off", monkeypatch)
    shown, preview = show(report, tmp_path / "on", monkeypatch, prompt_in_report=True)
    assert json.loads(shown.result[1])["blocks"][0]["prompt"].startswith(TEXT)
    assert shown.result[0].shape[1] > hidden.result[0].shape[1]  # by the line with the prompt
    with Image.open(preview) as picture:
        assert picture.info == {}
