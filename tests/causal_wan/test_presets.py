import re

import pytest

from sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B
from sdvg_core.causal_wan.presets import PRESETS, get_preset, guess_preset
from sdvg_core.causal_wan.schedule import get_schedule, warped
from sdvg_core.errors import BadInput


@pytest.mark.parametrize(
    "name, values, weights",
    [
        ("self-forcing-1.3b", (3, "recompute", 3, 21, 0), "ema"),
        ("krea-14b", (3, "recompute", 3, 6, 0), "auto"),
        ("causal-forcing", (3, "incremental", 3, 21, 0), "raw"),
        ("causal-forcing-framewise", (1, "incremental", 3, 21, 0), "ema"),
        ("causal-forcing-2step", (1, "incremental", 3, 21, 0), "ema"),
        ("causal-forcing-1step", (1, "incremental", 3, 21, 0), "ema"),
        ("one-forcing", (1, "incremental", 3, 21, 0), "raw"),
        ("longlive-1.0", (3, "incremental", 3, 12, 3), "raw"),
        ("custom", (3, "recompute", 3, 21, 0), "auto"),
    ],
)
def test_a_preset_is_what_its_authors_say(name, values, weights):
    """Steps are positions of the unshifted table, as in their configs, which the shift moves."""
    p = get_preset(name)
    assert (p.block_frames, p.policy, p.context_frames, p.window, p.sink) == values
    assert (p.name, p.weights, p.recache) == (name, weights, name == "longlive-1.0")
    few = {"causal-forcing-2step": (1000, 500), "causal-forcing-1step": (1000,), "one-forcing": (1000,)}
    assert p.steps == warped(few.get(name, (1000, 750, 500, 250)))
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
        {"context_frames": 0},
        {"sink": -1},
        {"window": 5},  # sink 3 and a block of 3 do not fit
        {"policy": "rolling"},
        {"schedule": ""},
        {"window": 12.0},
        {"wndow": 12},
        {"weights": "EMA"},
        {"weights": None},
    ],
)
def test_values_that_cannot_be_are_refused(change):
    with pytest.raises(BadInput, match=r"; (choose|give|try) "):
        get_preset("longlive-1.0").replace(**change)
