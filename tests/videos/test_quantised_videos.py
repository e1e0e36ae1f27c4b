"""Videos of models in int8 and 4 bits on the command line: whole, streamed, as reported."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sdvg_core.cli import main
from sdvg_core.loading.headers import check_models
from sdvg_core.loading.load import load_models, plan_memory
from sdvg_core.pocket.trained_set import pocket_options, trained_set
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import ROUTE_PRESETS
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos.batch import Batch
from sdvg_core.videos.maker import make_videos
from sdvg_core.weights.latents import load_latents
from sdvg_core.weights.model_files import converted_name

pytest.importorskip("comfy_kitchen")
PROMPT = "a big blue ball drifts right from the left over sand"
REQUEST = VideoRequest(blocks=3, width=64, height=64, route=ROUTE_PRESETS["balanced"])
FORMATS = {"drafter": "int8", "target": "int8"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The embedded set, its transformers converted."""
    folder = tmp_path_factory.mktemp("converted")
    models = trained_set()
    converted = {}
    for role, form in FORMATS.items():
        source = getattr(models, role)
        converted[role] = folder / Path(converted_name(source, form)).name
        assert main(["convert", str(source), "--format", form, "--output", str(converted[role])]) == 0
    return replace(models, **converted)


def render(files, folder, **changes: object):
    load = replace(pocket_options(), **changes)
    batch = Batch(files=files, load=load, request=REQUEST, prompts=(one_prompt(PROMPT),), output=folder)
    ((_, report),) = make_videos(batch)
    return load_latents(folder / "latents.safetensors").latents, report


def test_quantised_pair_streams_to_the_same_bits(files, tmp_path):
    """Catches a video far from the plain one's, a report of other weights, layers streamed to other bits."""
    latents, report = render(files, tmp_path / "whole")
    plain, usual = render(trained_set(), tmp_path / "plain")
    for role, form in FORMATS.items():
        assert report.settings[role]["quantisation"] == form
        assert report.settings[role]["bytes"] < usual.settings[role]["bytes"]
    assert 0 < float((latents - plain).norm() / plain.norm()) < 0.5
    streamed, report = render(files, tmp_path / "streamed", vram=0.031)
    assert any("copied over in every pass" in note for note in report.notes)
    assert torch.equal(streamed, latents)


def test_a_plan_counts_the_bytes_of_both_files(files):
    """Catches a drafter that is planned in bfloat16 though its file is int8, so that more of it is copied."""
    load = replace(pocket_options(), vram=4.0)
    headers = check_models(files, load)
    layout = plan_memory(headers, load, REQUEST.width, REQUEST.height, REQUEST.blocks)
    models = load_models(files, load, headers)
    for role in FORMATS:
        planned = layout.sizes.weights[role]
        assert planned == pytest.approx(models.settings[role]["bytes"], rel=0.01), role


def test_a_quantised_target_is_not_rounded_to_fp8(files, tmp_path):
    with pytest.raises(ValueError, match="int8 already"):
        render(files, tmp_path / "out", weight_dtype="fp8_e4m3fn")
