"""Every setting of a run is in the keys of what follows from it, and in the request that a run is resumed by."""

from dataclasses import fields, replace
from typing import Any

import pytest
from random_set import write_random_set

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.decoders.open import open_vae
from sdvg_core.devices.execution import Execution
from sdvg_core.models.headers import check_models, part_fingerprints
from sdvg_core.models.options import LoadOptions, ModelOptions
from sdvg_core.request.request import VideoRequest
from sdvg_core.settings import Setting
from sdvg_core.text.prompts import one_prompt
from sdvg_core.videos.identity import request_fingerprint

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


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> ModelFiles:
    return write_random_set(tmp_path_factory.mktemp("models"))


def usual(**changes: Any) -> LoadOptions:
    drafter, target = ModelOptions(preset="self-forcing-1.3b"), ModelOptions(preset="krea-14b")
    return replace(LoadOptions(drafter=drafter, target=target), **changes)


def changed_parts(files: ModelFiles, one: LoadOptions, other: LoadOptions) -> set[str]:
    """The parts whose keys differ, and nothing if the whole request does not."""
    checked = [check_models(files, load).models for load in (one, other)]
    first, second = (part_fingerprints(files, load, of) for load, of in zip((one, other), checked, strict=True))
    requests = [request_fingerprint(files, load, VideoRequest(), one_prompt("a ball")) for load in (one, other)]
    changed = {part for part in EVERYTHING if getattr(first, part) != getattr(second, part)}
    assert (requests[0] != requests[1]) or not changed, "what changes a result changes the request"
    return changed


@pytest.fixture
def elsewhere(monkeypatch) -> None:
    """A second CPU, which rounds in another way."""
    for module in ("videos.identity", "models.headers", "devices.device"):
        monkeypatch.setattr(f"sdvg_core.{module}.check_device", lambda name: name, raising=False)
    monkeypatch.setattr(Setting, "fitted", lambda _, value: value)
    for module in ("videos.identity", "models.headers"):
        monkeypatch.setattr(f"sdvg_core.{module}.arithmetic_on", lambda device: {"on": str(device)})
    monkeypatch.setattr("sdvg_core.models.headers.choose_attention", lambda *_, **__: None)
    monkeypatch.setattr("sdvg_core.models.headers.check_compile", lambda *_: None)
    monkeypatch.setattr("sdvg_core.models.headers.open_vae", lambda path, tae_kind: open_vae(path))


def test_every_setting_is_told_of_below():
    """Catches: a new setting that nobody thought of here, nor where keys are made."""
    assert {f.name for f in fields(Execution)} == set(EXECUTION)
    assert {f.name for f in fields(LoadOptions)} == {
        *LOAD,
        "drafter",
        "target",
        "execution",
        "loras",
    }  # LoRAs: see test_lora
    assert {f.name for f in fields(ModelOptions)} == {*MODEL, "draft_steps", "weights"}  # see test_which_weights


@pytest.mark.parametrize("name", [*LOAD, *EXECUTION])
def test_what_follows_from_a_setting_of_load_or_execution_has_another_key(files, elsewhere, name):
    value, parts = (LOAD | EXECUTION)[name]
    change = {"execution": Execution(**{name: value})} if name in EXECUTION else {name: value}
    assert changed_parts(files, usual(), usual(**change)) == parts


def test_what_follows_from_shorter_drafts_has_another_key(files, elsewhere):
    shorter = ModelOptions(preset="self-forcing-1.3b", draft_steps=2)
    assert changed_parts(files, usual(), usual(drafter=shorter)) == {"drafter"}


@pytest.mark.parametrize("role", ["drafter", "target"])
@pytest.mark.parametrize("name", MODEL)
def test_what_follows_from_a_setting_of_one_model_has_another_key(files, elsewhere, role, name):
    plain = ROLLING if name in WITH_A_WINDOW else ModelOptions(preset="self-forcing-1.3b")
    one, other = (usual(**{role: model}) for model in (plain, replace(plain, **{name: MODEL[name]})))
    assert changed_parts(files, one, other) == {role}


@pytest.mark.parametrize("role", [field.name for field in fields(ModelFiles) if field.name != "controls"])
def test_another_file_of_any_kind_is_another_request(files, role):
    other = replace(files, **{role: files.reward if role == "target" else files.target})
    one, two = (request_fingerprint(of, usual(), VideoRequest(), one_prompt("a ball")) for of in (files, other))
    assert {name for name in one if one[name] != two[name]} == {role.replace("_", " ")}
