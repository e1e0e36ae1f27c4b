"""Every field of the settings that a Python user fills in is checked by the value itself."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from sdvg_core import (
    BadInput,
    Execution,
    LoadOptions,
    ModelOptions,
    RouterConfig,
    VideoRequest,
    make,
    router_preset,
)
from sdvg_core.causal_wan.presets import Preset
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.settings import settings_of

SETTINGS: dict[type, dict[str, Any]] = {
    VideoRequest: {},
    LoadOptions: {},
    ModelOptions: {},
    Execution: {},
    ModelFiles: {"vae": Path("vae"), "text_encoder": Path("text")},
}
NOTHING_IS_THIS = (object(), b"bytes", {"a": 1}, {1}, 1j)


@pytest.mark.parametrize(("kind", "name"), [(kind, field.name) for kind in SETTINGS for field in fields(kind)])
def test_no_field_takes_a_value_of_another_kind(kind, name):
    """The kind: a value that only argparse or a widget checks, such as `make(drafter_context="Own")`.

    Catches: the same from Python, which makes something else, says that it did as asked, or ends in a traceback.
    """
    for value in (*NOTHING_IS_THIS, [[]]):
        with pytest.raises(BadInput, match=r"; (give|choose|use|write|add)"):
            kind(**{**SETTINGS[kind], name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value", "sentence"),
    [
        (VideoRequest, "drafter_context", "Own", "there is no drafter_context 'Own'; choose one of committed, own"),
        (VideoRequest, "blocks", True, "blocks is True; give a whole number"),
        (VideoRequest, "width", 16.0, "width is 16.0; give a whole number"),
        (VideoRequest, "height", -16, "height is -16; give 16 or more"),
        (VideoRequest, "fps", "16", "fps is '16'; give a number"),
        (VideoRequest, "fps", 10**400, "fps is 1000"),
        (VideoRequest, "fps", float("nan"), "fps is nan; give 0.001 to 1000"),
        (VideoRequest, "budget", 50, "budget is 50.0; give 0.01 to 1"),
        (VideoRequest, "router", "careful", "router is 'careful'; give a RouterConfig"),
        (VideoRequest, "start_image", "", "start_image is ''; give a path"),
        (VideoRequest, "colour_hold", float("inf"), "colour_hold is inf; give 0 to 1"),
        (VideoRequest, "control_strength", 0.5, "control strength has no effect without control"),
        (LoadOptions, "weight_dtype", "fp9", "there is no weight_dtype 'fp9'; choose one of default, fp8_e4m3fn"),
        (LoadOptions, "dtype", "float64", "there is no dtype 'float64'; choose one of float32, float16, bfloat16"),
        (LoadOptions, "text_dtype", "float16", "there is no text_dtype 'float16'; choose one of bfloat16, float32"),
        (LoadOptions, "reward_dtype", "bfloat16", "choose one of auto, float32, float16"),
        (LoadOptions, "dtype", "half", "there is no dtype 'half'; choose one of float32, float16, bfloat16"),
        (LoadOptions, "device", "cpu:1", "there is no device 'cpu:1'; use cpu"),
        (LoadOptions, "side_device", "meta", "there is no device 'meta'; use cpu"),
        (LoadOptions, "vram", "16", "vram is '16'; give auto or all or a number"),
        (LoadOptions, "vram", -1.0, "vram is -1.0; give 0.0001 to 1000000"),
        (LoadOptions, "vram", float("nan"), "vram is nan; give 0.0001 to 1000000"),
        (LoadOptions, "schedule", "five", "there is no schedule 'five'"),
        (LoadOptions, "loras", "style.safetensors", "loras is 'style.safetensors'; give a list, each item text"),
        (LoadOptions, "loras", ("a.safetensors:999",), "999"),
        (ModelOptions, "policy", "fast", "there is no policy 'fast'; choose one of recompute, incremental"),
        (ModelOptions, "recache", "yes", "recache is 'yes'; give True or False"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_in_a_sentence(kind, name, value, sentence):
    with pytest.raises(BadInput) as refusal:
        kind(**{name: value})
    assert sentence in str(refusal.value)


def test_what_a_python_user_writes_for_a_path_or_a_list_is_taken_as_one():
    request = VideoRequest(start_image="a.png")  # type: ignore[arg-type]
    assert request == VideoRequest(start_image=Path("a.png"))
    assert LoadOptions(loras=["a.safetensors:0.5"]).loras == ("a.safetensors:0.5",)  # type: ignore[arg-type]
    assert ModelFiles(vae="v", text_encoder="t", controls=["c"]).controls == (Path("c"),)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*SETTINGS, RouterConfig, Preset])
def test_every_default_is_one_of_the_values_that_are_allowed(kind):
    """Values that are the default are not checked again. Catches: 4 for a float, which a report would show so."""
    for declared in settings_of(kind).values():
        if declared.default is not MISSING:
            assert repr(declared.fitted(declared.default)) == repr(declared.default)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"drafter_context": "Own"}, "choose one of committed, own"),
        ({"start_image": "nowhere.png"}, "nowhere.png"),
        ({"continue_from": "nowhere.mp4"}, "nowhere.mp4"),
        ({"strength": "strong"}, "strength has no effect without restyle; add it"),
        ({"prompt": None}, "the prompt is empty; describe"),
        ({"nope": 1}, "a video has no setting nope"),
        ({"preset": "fast", "budget": 0.5}, "a preset chooses the route, and so does a budget"),
        ({"preset": "fast", "router": router_preset("fast")}, "a preset chooses the route, and so does a router"),
    ],
)
def test_make_refuses_them_before_it_writes_anything(tmp_path, asked, sentence):
    with pytest.raises(BadInput, match=sentence):
        make(**{"prompt": "a big red ball", "out": tmp_path / "out", "blocks": 1, **asked})
    assert list(tmp_path.iterdir()) == []
