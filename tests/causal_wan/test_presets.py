"""Presets are what their authors say, and a file whose name is known leads to its own."""

import re
from pathlib import Path

import pytest

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_core.causal_wan.presets import choice_of, guess_preset, named_preset, notes_by_name, preset_by_name
from sdvg_core.errors import BadInput
from sdvg_core.settings.context import PRESETS, Recompute, Rolling, changed_preset, get_preset
from sdvg_core.settings.load import ModelOptions
from sdvg_core.settings.schedules import get_schedule, warped
from sdvg_core.weights.pickles import Choice


@pytest.mark.parametrize(
    ("name", "block_frames", "context", "weights"),
    [
        ("self-forcing-1.3b", 3, Recompute(), "ema"),
        ("krea-14b", 3, Recompute(), "auto"),
        ("causal-forcing", 3, Rolling(relative=True), "raw"),
        ("causal-forcing-framewise", 1, Rolling(relative=True), "ema"),
        ("causal-forcing-2step", 1, Rolling(relative=True), "ema"),
        ("causal-forcing-1step", 1, Rolling(relative=True), "ema"),
        ("one-forcing", 1, Rolling(relative=True), "raw"),
        ("self-gradient-forcing", 3, Rolling(window=12, sink=3, relative=True, trained=21), "ema"),
        ("self-gradient-forcing-framewise", 1, Rolling(sink=4, relative=True), "ema"),
        ("raven", 3, Rolling(relative=True), "auto"),
        ("longlive-1.0", 3, Rolling(window=12, sink=3, recache=True), "raw"),
        ("custom", 3, Recompute(), "auto"),
    ],
)
def test_a_preset_is_what_its_authors_say(name, block_frames, context, weights):
    """Steps are positions of the unshifted table, as in their configs, which the shift moves."""
    p = get_preset(name)
    assert (p.name, p.block_frames, p.context, p.weights) == (name, block_frames, context, weights)
    few = {"causal-forcing-2step": (1000, 500), "causal-forcing-1step": (1000,), "one-forcing": (1000,)}
    steps = get_schedule("rounded4") if name == "raven" else warped(few.get(name, (1000, 750, 500, 250)))
    assert p.steps == steps
    assert p.first_steps == (get_schedule("four-step") if name in few else p.steps)


def test_an_unknown_preset_is_refused_with_the_list_of_names():
    names = ", ".join(PRESETS)
    with pytest.raises(BadInput, match=f"no preset 'kera'; choose among {re.escape(names)}"):
        get_preset("kera")


def test_the_size_suggests_the_preset():
    assert guess_preset(WAN_1_3B).name == "self-forcing-1.3b"
    assert guess_preset(WAN_14B).name == "krea-14b"


@pytest.mark.parametrize(
    "change",
    [
        {"block_frames": 0},
        {"block_frames": True},
        {"sink": -1},
        {"window": 5},  # sink 3 and a block of 3 do not fit
        {"flush": True},  # beside recache
        {"window": 12.0},
        {"weights": "EMA"},
        {"weights": None},
        {"draft_steps": 0},
        {"draft_steps": 5},
    ],
)
def test_values_that_cannot_be_are_refused(change):
    with pytest.raises(BadInput, match=r"; (choose|give) "):
        changed_preset(get_preset("longlive-1.0"), change)


@pytest.mark.parametrize(
    ("name", "policy", "context"),
    [
        ("krea-14b", "incremental", Rolling(window=6)),
        ("self-forcing-1.3b", "incremental", Rolling()),
        ("custom", "incremental", Rolling(relative=True)),
        ("longlive-1.0", "recompute", Recompute()),
        ("longlive-1.0", "incremental", get_preset("longlive-1.0").context),
    ],
)
def test_preset_has_a_context_of_each_kind(name, policy, context):
    """Catches: a published window lost where a cache is asked for; a preset's own values, reset by its own kind."""
    assert changed_preset(get_preset(name), {}, policy).context == context


# --- by the name of a file


MODELS = Path("models") / "diffusion_models"


@pytest.mark.parametrize(
    "name, preset",
    [
        ("self_forcing_dmd.pt", "self-forcing-1.3b"),
        ("chunkwise/causal_forcing.pt", "causal-forcing"),
        ("framewise/causal_forcing.pt", "causal-forcing-framewise"),
        ("causal_forcing-framewise.safetensors", "causal-forcing-framewise"),
        ("elsewhere/framewise-2step.pt", "causal-forcing-2step"),
        ("krea-realtime-video-14b.safetensors", "krea-14b"),
        ("my_self_forcing_dmd.pt", None),
        ("SELF_FORCING_DMD.PT", "self-forcing-1.3b"),
        ("model.safetensors", None),
        ("model.pt", None),
        ("mine/model.pt", None),
        ("chunkwise/ar/model.pt", "self-gradient-forcing"),
        ("framewise/ar/model.pt", "self-gradient-forcing-framewise"),
        ("cmgrpo_raven_merge.pt", "raven"),
        ("krea-realtime-video-14b-fp8-e4m3fn.safetensors", "krea-14b"),
        ("longlive_base.pt", "longlive-1.0"),
    ],
)
def test_a_known_file_leads_to_its_preset(name, preset):
    found = preset_by_name(MODELS / name)
    assert (found and found.name) == preset
    assert named_preset(ModelOptions(preset="custom"), MODELS / name).name == "custom", (
        "a stated preset goes before"
    )


def test_the_names_of_two_models_are_told_apart_by_their_folders_or_refused():
    with pytest.raises(BadInput) as refused:
        preset_by_name(MODELS / "causal_forcing.pt")
    message = str(refused.value)
    assert "state the preset (causal-forcing or causal-forcing-framewise)" in message
    assert "keep it as chunkwise/causal_forcing.pt or framewise/causal_forcing.pt" in message
    assert len(message) <= 400
    assert (
        named_preset(ModelOptions(preset="causal-forcing"), MODELS / "causal_forcing.pt").name == "causal-forcing"
    )


def test_a_known_file_states_the_weights_and_a_size_does_not():
    assert choice_of(ModelOptions(), MODELS / "chunkwise/causal_forcing.pt") == Choice("auto", "raw")
    assert choice_of(ModelOptions(), MODELS / "chunkwise/ar/model.pt") == Choice("auto", "ema")
    assert choice_of(ModelOptions(weights="ema"), MODELS / "chunkwise/causal_forcing.pt") == Choice("ema", "raw")
    assert choice_of(ModelOptions(), MODELS / "other.pt") == Choice()
    assert choice_of(ModelOptions(preset="longlive-1.0"), MODELS / "other.pt") == Choice("auto", "raw")


def test_a_preset_that_the_name_alone_suggests_is_noted():
    file = MODELS / "causal_forcing-framewise.safetensors"
    (note,) = notes_by_name(file, WAN_1_3B, stated=False)
    assert "so it runs with the preset causal-forcing-framewise" in note
    assert notes_by_name(file, WAN_1_3B, stated=True) == ()
    for usual, config in (("self_forcing_dmd.pt", WAN_1_3B), ("krea-realtime-video-14b.safetensors", WAN_14B)):
        assert notes_by_name(MODELS / usual, config, stated=False) == ()


@pytest.mark.parametrize("stated", [True, False])
def test_a_base_without_its_lora_is_told_whatever_the_preset(stated):
    notes = notes_by_name(MODELS / "longlive_base.pt", WAN_1_3B, stated=stated)
    assert notes[0].startswith(
        "longlive_base.pt: this is LongLive's base, which is run with its LoRA: --lora lora.pt"
    )
