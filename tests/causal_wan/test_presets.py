"""Presets are what their authors say, and a file whose name is known leads to its own."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_core.causal_wan.presets import (
    choice_of,
    chosen_preset,
    guess_preset,
    named_preset,
    notes_by_name,
    preset_by_name,
)
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
def test_preset_is_what_its_authors_say(name, block_frames, context, weights):
    """Steps are positions of the unshifted table, as in their configs, which the shift moves."""
    preset = get_preset(name)
    assert preset.name == name
    assert (preset.block_frames, preset.context, preset.weights) == (block_frames, context, weights)
    few = {"causal-forcing-2step": (1000, 500), "causal-forcing-1step": (1000,), "one-forcing": (1000,)}
    steps = get_schedule("rounded4") if name == "raven" else warped(few.get(name, (1000, 750, 500, 250)))
    assert preset.steps == steps
    assert preset.first_steps == (get_schedule("four-step") if name in few else preset.steps)


def test_unknown_preset_is_refused_with_all_names():
    names = ", ".join(PRESETS)
    with pytest.raises(BadInput, match=f"no preset 'kera'; choose among {re.escape(names)}"):
        get_preset("kera")


def test_size_suggests_the_preset():
    assert guess_preset(WAN_1_3B).name == "self-forcing-1.3b"
    assert guess_preset(WAN_14B).name == "krea-14b"
    with pytest.raises(BadInput, match=re.escape("of 0.35B (7 blocks of width 1536); name one")):
        guess_preset(replace(WAN_1_3B, num_layers=7))


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
def test_impossible_values_are_refused(change):
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
def test_known_file_leads_to_its_preset(name, preset):
    named = preset_by_name(MODELS / name)
    assert (named and named.name) == preset


@pytest.mark.parametrize("name", ["self_forcing_dmd.pt", "causal_forcing.pt"])
def test_stated_preset_goes_before_the_name(name):
    """The second name is of two models, and refused alone."""
    assert named_preset(ModelOptions(preset="custom"), MODELS / name).name == "custom"


def test_name_of_two_models_is_refused():
    """Their folders would tell them apart. Catches: one of the two, chosen in silence."""
    with pytest.raises(BadInput) as refusal:
        preset_by_name(MODELS / "causal_forcing.pt")
    message = str(refusal.value)
    assert "state the preset (causal-forcing or causal-forcing-framewise)" in message
    assert "chunkwise/causal_forcing.pt or framewise/causal_forcing.pt" in message
    assert len(message) <= 400


def test_known_file_states_its_weights():
    assert choice_of(ModelOptions(), MODELS / "chunkwise/causal_forcing.pt") == Choice("auto", "raw")
    assert choice_of(ModelOptions(), MODELS / "chunkwise/ar/model.pt") == Choice("auto", "ema")
    assert choice_of(ModelOptions(weights="ema"), MODELS / "chunkwise/causal_forcing.pt") == Choice("ema", "raw")


def test_preset_states_the_weights_of_unknown_files():
    """Catches: weights guessed by the size alone."""
    assert choice_of(ModelOptions(), MODELS / "other.pt") == Choice()
    assert choice_of(ModelOptions(preset="longlive-1.0"), MODELS / "other.pt") == Choice("auto", "raw")


def test_preset_by_name_alone_is_noted():
    file = MODELS / "causal_forcing-framewise.safetensors"
    (note,) = notes_by_name(file, WAN_1_3B, stated=False)
    assert "so it runs with the preset causal-forcing-framewise" in note
    assert notes_by_name(file, WAN_1_3B, stated=True) == ()


@pytest.mark.parametrize(
    ("name", "config"), [("self_forcing_dmd.pt", WAN_1_3B), ("krea-realtime-video-14b.safetensors", WAN_14B)]
)
def test_usual_preset_is_not_noted(name, config):
    assert notes_by_name(MODELS / name, config, stated=False) == ()


@pytest.mark.parametrize("stated", [True, False])
def test_base_without_its_lora_is_noted(stated):
    notes = notes_by_name(MODELS / "longlive_base.pt", WAN_1_3B, stated=stated)
    assert notes[0].startswith("longlive_base.pt: ")
    assert "--lora lora.pt" in notes[0]


@pytest.mark.parametrize(
    ("own", "common", "schedule"),
    [(None, None, "four-step"), (None, "two-step", "two-step"), ("one-step", "two-step", "one-step")],
)
def test_schedule_of_a_model_precedes_the_common_one(own, common, schedule):
    """Catches: one of the two that has no effect."""
    options = ModelOptions(preset="krea-14b", schedule=own)
    assert chosen_preset(options, Path("model.pt"), WAN_14B, common).schedule == schedule
