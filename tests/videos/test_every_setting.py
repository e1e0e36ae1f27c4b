"""Every setting of a run is in the keys of what follows from it, and checked by the value itself."""

from dataclasses import MISSING, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sdvg_core import Route, make, route_preset
from sdvg_core.decoders.open import open_vae
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models, file_part_keys
from sdvg_core.loading.load import load_models
from sdvg_core.settings.context import Preset
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.fields import Setting, settings_of
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import ClipFile, VideoRequest
from sdvg_core.settings.route import Budget, First, Gate, Quantile, Stride, WorstFrame
from sdvg_core.text.prompts import one_prompt, read_prompt
from sdvg_core.videos.fingerprint import Fingerprint, request_fingerprint
from sdvg_core.weights.model_files import ModelFiles
from tests.support.random_set import write_controls

EVERYTHING = {"drafter", "target", "codec", "scorer"}
MODELS = {"drafter", "target"}
CODEC = {"codec"}
NOTHING = set[str]()
# Another value of each setting, and the parts whose results follow from it.
EXECUTION: dict[str, tuple[Any, set[str]]] = {
    "attention": ("sdpa", MODELS),
    "kv_dtype": ("float8_e4m3fn", MODELS),
    "vae_layers": ("diffusers", CODEC),
    "compile": ("default", MODELS | CODEC),
}
LOAD: dict[str, tuple[Any, set[str]]] = {
    "schedule": ("1000,500", MODELS),
    "device": ("elsewhere", EVERYTHING),
    "side_device": ("elsewhere", {"codec", "scorer"}),
    "dtype": ("bfloat16", MODELS),
    "vae_dtype": ("float16", CODEC),
    "tae_kind": ("taew2_1", CODEC),
    "text_dtype": ("float32", NOTHING),  # a prompt is told by its embedding
    "reward_dtype": ("float16", {"scorer"}),
    "weight_dtype": ("fp8_e4m3fn", {"target"}),
    "vram": (1.0, NOTHING),  # see test_layouts
}
MODEL: dict[str, Any] = {
    "preset": "longlive-1.0",
    "policy": "incremental",
    "block_frames": 1,
    "context_frames": 4,
    "window": 9,
    "sink": 1,
    "recache": True,
    "relative": False,
    "flush": True,
    "keep_first_frame": True,
    "context_memory": "memrope",
    "schedule": "1000,500",
    "first_schedule": "1000,500",
}
ROLLING = ModelOptions(preset="causal-forcing")
WITH_A_WINDOW = ("window", "sink", "recache", "relative", "flush", "context_memory")


def usual(**changes: Any) -> LoadOptions:
    drafter = ModelOptions(preset="self-forcing-1.3b")
    target = ModelOptions(preset="krea-14b")
    return replace(LoadOptions(drafter=drafter, target=target), **changes)


def request_of(files: ModelFiles, load: LoadOptions, request: VideoRequest | None = None) -> Fingerprint:
    return request_fingerprint(files, load, request or VideoRequest(), one_prompt("a ball"))


def changed_parts(files: ModelFiles, load: LoadOptions, other: LoadOptions) -> set[str]:
    """Return the parts whose keys differ. Where any does, the request must differ too."""
    keys = file_part_keys(files, load, check_models(files, load).models)
    other_keys = file_part_keys(files, other, check_models(files, other).models)
    changed = {part for part in EVERYTHING if getattr(keys, part) != getattr(other_keys, part)}
    assert not changed or request_of(files, load) != request_of(files, other)
    return changed


@pytest.fixture
def elsewhere(monkeypatch) -> None:
    """A second CPU, which rounds in another way."""
    for module in ("videos.fingerprint", "loading.headers", "devices.device"):
        monkeypatch.setattr(f"sdvg_core.{module}.check_device", lambda name: name, raising=False)
    monkeypatch.setattr(Setting, "fitted", lambda _, value: value)
    for module in ("videos.fingerprint", "loading.headers"):
        monkeypatch.setattr(f"sdvg_core.{module}.arithmetic_on", lambda device: {"on": str(device)})
    monkeypatch.setattr("sdvg_core.loading.headers.choose_attention", lambda *_, **__: None)
    monkeypatch.setattr("sdvg_core.loading.headers.check_compile", lambda *_: None)
    monkeypatch.setattr("sdvg_core.loading.headers.open_vae", lambda path, tae_kind: open_vae(path))


def test_each_setting_has_a_case_here():
    """Catches: a new setting that nobody thought of here, nor where keys are made."""
    assert {f.name for f in fields(Execution)} == set(EXECUTION)
    assert {f.name for f in fields(LoadOptions)} == {
        *LOAD,
        "drafter",
        "target",
        "execution",
        "loras",
        "lora_mode",
    }  # LoRAs: see test_lora, test_lora_beside
    assert {f.name for f in fields(ModelOptions)} == {*MODEL, "draft_steps", "weights"}  # see test_fewer_models


@pytest.mark.parametrize("name", [*LOAD, *EXECUTION])
def test_load_setting_changes_keys_of_its_parts(files, elsewhere, name):
    value, parts = (LOAD | EXECUTION)[name]
    change = {"execution": Execution(**{name: value})} if name in EXECUTION else {name: value}
    assert changed_parts(files, usual(), usual(**change)) == parts


ASKED: dict[str, Any] = {
    "blocks": 2,
    "seed": 7,
    "width": 64,
    "height": 64,
    "fps": 24.0,
    "drafter_context": "own",
    "route": Route(Gate(-1.0)),
    "directions": "t" * 9,
    "takes": "2:2",
    "shots": "1:#0,3:#k3f",
    "shown_clips": "3:#a 1-2",
    "clips": (ClipFile("#a", Path("clip.mp4")),),
    "continue_from": Path("clip.mp4"),
    "context_blocks": 2,
    "block_length": 6,
    "start_image": Path("picture.png"),
    "restyle": Path("clip.mp4"),
    "colour_hold": 0.5,
    "control": Path("depth.mp4"),
}
WITH_A_CLIP: dict[str, Any] = {
    "strength": "light",
    "control_mask": "alpha",
    "control_strength": 0.5,
    "control_edge": 4,
}
"""Another value of each field of a request; the last need a clip to restyle, a control and its mask."""


def test_each_field_of_a_request_changes_it(files, monkeypatch):
    """`vram` alone, of all that is asked, cannot (see `LOAD`). Catches: a changed video taken for the old one."""
    monkeypatch.setattr("sdvg_core.videos.fingerprint.named", str)
    clips = {"restyle": Path("clip.mp4"), "control": Path("depth.mp4"), "control_mask": Path("mask.png")}
    assert {*ASKED, *WITH_A_CLIP} == {field.name for field in fields(VideoRequest)}
    for base, changes in (({}, ASKED), (clips, WITH_A_CLIP)):
        plain = request_of(files, usual(), VideoRequest(**base))
        for name, value in changes.items():
            assert request_of(files, usual(), VideoRequest(**{**base, name: value})) != plain, name


@pytest.mark.parametrize(
    "lines",
    [
        "a sea\n3: a lake",
        "a ball\n4: a lake",
        "a ball\n3: a sea",
        "a ball\n3 cut: a lake",
        "a ball\n3: a lake\n5: a sea",
    ],
)
def test_each_part_of_a_prompt_changes_the_request(files, lines):
    """Catches: a cut, a text or its block that the key of a finished video misses."""
    prompts = [read_prompt(text) for text in ("a ball\n3: a lake", lines)]
    first, second = (request_fingerprint(files, usual(), VideoRequest(), prompt) for prompt in prompts)
    assert first != second


@pytest.mark.parametrize("name", [*LOAD, *EXECUTION])
def test_load_option_except_memory_changes_the_request(files, elsewhere, name):
    value, _ = (LOAD | EXECUTION)[name]
    change = {"execution": Execution(**{name: value})} if name in EXECUTION else {name: value}
    changed = request_of(files, usual(**change)) != request_of(files, usual())
    assert changed == (name != "vram")


def test_shorter_drafts_change_the_drafters_key(files, elsewhere):
    shorter = ModelOptions(preset="self-forcing-1.3b", draft_steps=2)
    assert changed_parts(files, usual(), usual(drafter=shorter)) == {"drafter"}


@pytest.mark.parametrize("role", ["drafter", "target"])
@pytest.mark.parametrize("name", MODEL)
def test_model_setting_changes_the_key_of_its_model(files, elsewhere, role, name):
    plain = ROLLING if name in WITH_A_WINDOW else ModelOptions(preset="self-forcing-1.3b")
    changed = replace(plain, **{name: MODEL[name]})
    assert changed_parts(files, usual(**{role: plain}), usual(**{role: changed})) == {role}


@pytest.mark.parametrize("role", [field.name for field in fields(ModelFiles) if field.name != "controls"])
def test_other_file_of_a_role_changes_the_request(files, role):
    other = replace(files, **{role: files.reward if role == "target" else files.target})
    plain = request_of(files, usual())
    changed = request_of(other, usual())
    assert {name for name in plain if plain[name] != changed[name]} == {role.replace("_", " ")}


def test_control_module_changes_keys_and_request(files, tmp_path):
    """And one of the same name with other weights. Catches: blocks and videos of another module used again."""
    module = tmp_path / "tiny_vace_drafter.safetensors"
    controlled = replace(files, controls=(module,))
    keys = [file_part_keys(files, usual(), check_models(files, usual()).models)]
    requests = [request_of(files, usual())]
    for seed in (0, 1):
        write_controls(tmp_path, seed)
        keys.append(file_part_keys(controlled, usual(), check_models(controlled, usual()).models))
        requests.append(request_of(controlled, usual()))
    assert len({of_parts.drafter for of_parts in keys}) == 3
    assert len({of_parts.target for of_parts in keys}) == 1
    assert all(before != after for before, after in pairwise(requests))


SETTINGS: dict[type, dict[str, Any]] = {
    VideoRequest: {},
    ClipFile: {"name": "#a", "path": Path("clip.mp4")},
    LoadOptions: {},
    ModelOptions: {},
    Execution: {},
    Route: {},
    Gate: {},
    First: {},
    Stride: {},
    WorstFrame: {},
    Quantile: {},
    Budget: {"share": 0.5},
    ModelFiles: {"vae": Path("vae"), "text_encoder": Path("text")},
}
NOTHING_IS_THIS = (object(), b"bytes", {"a": 1}, {1}, 1j)


@pytest.mark.parametrize(("kind", "name"), [(kind, field.name) for kind in SETTINGS for field in fields(kind)])
def test_field_refuses_a_value_of_another_type(kind, name):
    """The kind: a value that only argparse or a widget checks, such as `make(drafter_context="Own")`.

    Catches: the same from Python, which makes something else, says that it did as asked, or ends in a traceback.
    """
    for value in (*NOTHING_IS_THIS, [[]]):
        with pytest.raises(BadInput, match=r"; (give|choose|use|write|add)"):
            kind(**{**SETTINGS[kind], name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value", "keyword"),
    [
        (VideoRequest, "drafter_context", "Own", "there is no drafter_context 'Own'"),
        (VideoRequest, "blocks", True, "blocks is True; give a whole number"),
        (VideoRequest, "width", 16.0, "width is 16.0; give a whole number"),
        (VideoRequest, "height", -16, "height is -16; give 16 or more"),
        (VideoRequest, "fps", "16", "fps is '16'; give a number"),
        (VideoRequest, "fps", 10**400, "fps is 1000"),
        (VideoRequest, "fps", float("nan"), "fps is nan; give 0.001 to 1000"),
        (Budget, "share", 50, "budget is 50.0; give 0.01 to 1"),
        (VideoRequest, "route", "careful", "route is 'careful'; give a Route"),
        (VideoRequest, "start_image", "", "start_image is ''; give a path"),
        (VideoRequest, "colour_hold", float("inf"), "colour_hold is inf; give 0 to 1"),
        (VideoRequest, "colour_hold", -0.1, "colour_hold is -0.1; give 0 to 1"),
        (Gate, "tau", float("nan"), "tau is nan; give a number"),
        (WorstFrame, "margin", -0.1, "cascade is -0.1; give 0 or more"),
        (Quantile, "q", 1.1, "quantile is 1.1; give 0 to 1"),
        (Stride, "n", 0, "stride is 0.0; give 1 to 4096"),
        (First, "n", -1, "first blocks is -1; give 0 or more"),
        (Route, "policy", "rewrad", "policy is 'rewrad'; give a Gate or a First"),
        (Gate, "by", "max", "by is 'max'; give a WorstFrame or a Mean or a Quantile"),
        (Route, "handover", -1, "handover is -1; give 0"),
        (VideoRequest, "directions", "r a", "letters"),
        (VideoRequest, "control_strength", 0.5, "control strength has no effect without control"),
        (LoadOptions, "weight_dtype", "fp9", "there is no weight_dtype 'fp9'"),
        (LoadOptions, "dtype", "float64", "there is no dtype 'float64'"),
        (LoadOptions, "text_dtype", "float16", "there is no text_dtype 'float16'"),
        (LoadOptions, "reward_dtype", "bfloat16", "choose one of auto, float32, float16"),
        (LoadOptions, "dtype", "half", "there is no dtype 'half'"),
        (LoadOptions, "device", "cpu:1", "there is no device 'cpu:1'"),
        (LoadOptions, "side_device", "meta", "there is no device 'meta'"),
        (LoadOptions, "vram", "16", "vram is '16'; give auto or all or a number"),
        (LoadOptions, "vram", -1.0, "vram is -1.0; give 0.0001 to 1000000"),
        (LoadOptions, "vram", float("nan"), "vram is nan; give 0.0001 to 1000000"),
        (LoadOptions, "schedule", "five", "there is no schedule 'five'"),
        (LoadOptions, "loras", "style.safetensors", "loras is 'style.safetensors'; give a list, each item text"),
        (LoadOptions, "loras", ("a.safetensors:999",), "999"),
        (ModelOptions, "policy", "fast", "there is no policy 'fast'"),
        (ModelOptions, "recache", "yes", "recache is 'yes'; give True or False"),
    ],
)
def test_impossible_value_is_refused(kind, name, value, keyword):
    with pytest.raises(BadInput) as refusal:
        kind(**{name: value})
    assert keyword in str(refusal.value)


def test_text_is_a_path_and_list_a_tuple():
    request = VideoRequest(start_image="a.png")  # type: ignore[arg-type]
    assert request == VideoRequest(start_image=Path("a.png"))
    assert LoadOptions(loras=["a.safetensors:0.5"]).loras == ("a.safetensors:0.5",)  # type: ignore[arg-type]
    assert ModelFiles(vae="v", text_encoder="t", controls=["c"]).controls == (Path("c"),)  # type: ignore[arg-type]


def test_report_states_how_models_were_loaded(files):
    """Catches: file, dtype or kernel of one part, stated for another."""
    presets = {"drafter": "self-forcing-1.3b", "target": "krea-14b"}
    chosen = LoadOptions(
        **{role: ModelOptions(preset=preset) for role, preset in presets.items()},
        dtype="float16",
        vae_dtype="bfloat16",
        text_dtype="float32",
        execution=Execution(attention="sdpa", kv_dtype="float8_e4m3fn", vae_layers="diffusers"),
    )
    stated = load_models(files, chosen, check_models(files, chosen)).settings
    assert stated["vae"] == {
        "file": files.vae.name,
        "dtype": "bfloat16",
        "layers": "diffusers",
        "tae_kind": None,
    }
    assert stated["text_encoder"] == {"file": files.text_encoder.name, "dtype": "float32"}
    assert (stated["device"], stated["side_device"], stated["compile"]) == ("cpu", "cpu", "off")
    for role, preset in presets.items():
        model = stated[role]
        assert (model["file"], model["preset"]) == (getattr(files, role).name, preset)
        assert (model["dtype"], model["kv_dtype"]) == ("float16", "float8_e4m3fn")
        assert (model["attention"], model["quantisation"], model["loras"]) == ("sdpa", "none", [])


@pytest.mark.parametrize("kind", [*SETTINGS, Preset])
def test_each_default_is_an_allowed_value(kind):
    """Values that are the default are not checked again. Catches: 4 for a float, which a report would show so."""
    for declared in settings_of(kind).values():
        if declared.default is not MISSING:
            assert repr(declared.fitted(declared.default)) == repr(declared.default)


@pytest.mark.parametrize(
    ("asked", "keyword"),
    [
        ({"drafter_context": "Own"}, "choose one of committed, own"),
        ({"start_image": "nowhere.png"}, "nowhere.png"),
        ({"continue_from": "nowhere.mp4"}, "nowhere.mp4"),
        ({"strength": "strong"}, "strength has no effect without restyle"),
        ({"prompt": None}, "the prompt is empty"),
        ({"nope": 1}, "a video has no setting nope"),
        ({"preset": "fast", "route": route_preset("fast")}, "a preset is a route"),
    ],
)
def test_make_refuses_bad_values_before_writing(tmp_path, asked, keyword):
    with pytest.raises(BadInput, match=keyword):
        make(**{"prompt": "a big red ball", "out": tmp_path / "out", "blocks": 1, **asked})
    assert list(tmp_path.iterdir()) == []
