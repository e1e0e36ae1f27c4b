import dataclasses
import re

import pytest
from wan_files import TINY

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig
from sdvg_core.causal_wan.presets import PRESETS, get_preset, guess_preset
from sdvg_core.errors import BadInput


@pytest.mark.parametrize(
    "name, values",
    [
        ("self-forcing-1.3b", (3, "recompute", 3, 21, 0)),
        ("krea-14b", (3, "recompute", 3, 6, 0)),
        ("causal-forcing", (3, "incremental", 3, 21, 0)),
        ("causal-forcing-framewise", (1, "incremental", 3, 21, 0)),
        ("longlive-1.0", (3, "incremental", 3, 12, 3)),
        ("custom", (3, "recompute", 3, 21, 0)),
    ],
)
def test_a_preset_is_what_its_authors_say(name, values):
    p = get_preset(name)
    assert (p.block_frames, p.policy, p.context_frames, p.window, p.sink) == values
    assert (p.name, p.schedule) == (name, "four-step")


def test_every_preset_takes_four_steps_for_the_clips_first_block_at_least():
    steps = {name: len(preset.steps) for name, preset in PRESETS.items() if len(preset.steps) != 4}
    assert steps == {"causal-forcing-2step": 2, "causal-forcing-1step": 1}
    assert {len(preset.first_steps) for preset in PRESETS.values()} == {4}


def test_only_longlive_passes_its_window_again_under_a_new_prompt():
    assert [name for name, preset in PRESETS.items() if preset.recache] == ["longlive-1.0"]


def test_every_published_checkpoint_states_its_source_and_licence():
    assert all(p.source and p.licence for p in PRESETS.values() if p.name != "custom")
    assert "not for commercial use" in get_preset("krea-14b").licence


def test_an_unknown_preset_is_refused_with_the_list_of_names():
    names = ", ".join(PRESETS)
    with pytest.raises(BadInput, match=f"{re.escape(names)}, but got 'kera'"):
        get_preset("kera")


def test_the_size_suggests_the_preset():
    assert guess_preset(WAN_1_3B).name == "self-forcing-1.3b"
    assert guess_preset(WAN_14B).name == "krea-14b"


@pytest.mark.parametrize("config", [TINY, dataclasses.replace(WAN_1_3B, num_layers=29)])
def test_no_preset_is_guessed_for_a_size_of_its_own(config: WanConfig):
    with pytest.raises(BadInput, match="name the preset"):
        guess_preset(config)


def test_replace_leaves_the_original_alone():
    longer = get_preset("longlive-1.0").replace(window=24)
    assert (longer.window, get_preset("longlive-1.0").window) == (24, 12)


@pytest.mark.parametrize(
    "change",
    [
        {"block_frames": 0},
        {"block_frames": True},
        {"context_frames": 0},
        {"sink": -1},
        {"window": 5},  # sink 3 and a block of 3 do not fit
        {"sink": 10},
        {"policy": "rolling"},
        {"schedule": ""},
        {"window": 12.0},
        {"wndow": 12},
    ],
)
def test_values_that_cannot_be_are_refused(change):
    with pytest.raises(BadInput, match=r"(must .*, but (is|it is) .*|a preset has .*, but no wndow); "):
        get_preset("longlive-1.0").replace(**change)


def test_a_window_that_holds_just_the_sink_and_one_block_is_accepted():
    assert get_preset("longlive-1.0").replace(window=6).window == 6
