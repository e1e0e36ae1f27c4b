"""Which models a command asks for before it has read a header."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdvg_core.cli.options import _needed
from sdvg_core.engine.router import RouterConfig, router_preset
from sdvg_core.pipeline.request import VideoRequest

ALWAYS = {"vae", "text_encoder"}
ROUTERS = {
    "first": RouterConfig(policy="first", forced_blocks=3),
    "balanced": router_preset("balanced"),
    "never handed over": RouterConfig(policy="first", forced_blocks=3, handover=2, whole_blocks=9),
    "always-draft": RouterConfig(policy="always-draft", forced_blocks=2),
    "many": RouterConfig(policy="always-draft", forced_blocks=2**64),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_clip_may_hold_all_the_blocks_that_are_the_targets(name):
    """How long the clip is, only its file tells. Catches: a target asked for that no block will ask for."""
    request = VideoRequest(blocks=4, router=ROUTERS[name], continue_from=Path("clip.safetensors"))
    asked = _needed(request, has_target=False)
    assert asked == ALWAYS | ({"target"} if name == "many" else {"drafter"})


def test_a_run_that_continues_nothing_needs_whatever_its_blocks_ask_for():
    for name, router in ROUTERS.items():
        asked = _needed(VideoRequest(blocks=4, router=router), has_target=True)
        assert asked == ALWAYS | ({"target"} if name == "many" else {"drafter", "target"})


def test_with_directions_a_clip_changes_nothing():
    request = VideoRequest(blocks=3, router=ROUTERS["first"], continue_from=Path("clip"), directions="dta")
    assert _needed(request, has_target=True) == ALWAYS | {"drafter", "target", "reward"}
