"""A file whose name is known leads to its preset, which is told where it is not the usual one for its size."""

from pathlib import Path

import pytest

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_core.causal_wan.presets import notes_by_name, preset_by_name
from sdvg_core.checkpoints.state_dicts import Choice
from sdvg_core.errors import BadInput
from sdvg_core.pipeline.options import ModelOptions

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
        ("SELF_FORCING_DMD.PT", None),
        ("model.safetensors", None),
        ("longlive_base.pt", "longlive-1.0"),
    ],
)
def test_a_known_file_leads_to_its_preset(name, preset):
    found = preset_by_name(MODELS / name)
    assert (found and found.name) == preset
    assert ModelOptions(preset="custom").named(MODELS / name).name == "custom", "a stated preset goes before"


def test_the_names_of_two_models_are_told_apart_by_their_folders_or_refused():
    with pytest.raises(BadInput) as refused:
        preset_by_name(MODELS / "causal_forcing.pt")
    message = str(refused.value)
    assert "state the preset (causal-forcing or causal-forcing-framewise)" in message
    assert "keep it as chunkwise/causal_forcing.pt or framewise/causal_forcing.pt" in message
    assert len(message) <= 400
    assert ModelOptions(preset="causal-forcing").named(MODELS / "causal_forcing.pt").name == "causal-forcing"


def test_a_known_file_states_the_weights_and_a_size_does_not():
    assert ModelOptions().choice(MODELS / "chunkwise/causal_forcing.pt") == Choice("auto", "raw")
    assert ModelOptions(weights="ema").choice(MODELS / "chunkwise/causal_forcing.pt") == Choice("ema", "raw")
    assert ModelOptions().choice(MODELS / "other.pt") == Choice()


def test_a_preset_that_the_name_alone_suggests_is_noted():
    file = MODELS / "causal_forcing-framewise.safetensors"
    (note,) = notes_by_name(file, WAN_1_3B, stated=False)
    assert "so it runs with the preset causal-forcing-framewise; a stated preset goes before" in note
    assert notes_by_name(file, WAN_1_3B, stated=True) == ()
    for usual, config in (("self_forcing_dmd.pt", WAN_1_3B), ("krea-realtime-video-14b.safetensors", WAN_14B)):
        assert notes_by_name(MODELS / usual, config, stated=False) == ()


@pytest.mark.parametrize("stated", [True, False])
def test_a_base_without_its_lora_is_told_whatever_the_preset(stated):
    notes = notes_by_name(MODELS / "longlive_base.pt", WAN_1_3B, stated=stated)
    assert notes[0].startswith("longlive_base.pt: this is LongLive's base without its LoRA")
