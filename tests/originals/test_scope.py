"""Our control branch against Daydream Scope's causal VACE: hints in every denoising pass, none in the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from witness import AGREES, CONFIG, SIZE, SPANS, ask, difference, generator_over, request_for, video_of

from sdvg_core.causal_wan.context import RollingContext
from sdvg_core.engine.inputs import CONTROL_CHANNELS, ControlClip
from sdvg_core.settings.schedules import get_schedule
from tests.support.tiny import generator_of, random_module, random_tree

CHECKOUT = "SCOPE_PATH"
pytestmark = pytest.mark.originals

LAYERS = replace(CONFIG, num_layers=4)
"""With two control blocks, after layers 0 and 2: at every second layer, as at 1.3B."""
TREE = random_tree(1, LAYERS)
MODULE = random_module(9, LAYERS, 2)
DEPTH = torch.randn(1, CONTROL_CHANNELS, SPANS[-1].stop, *SIZE, generator=generator_of(77))


def theirs(folder, *, as_it_is=False, **strengths: float) -> dict[str, Tensor]:
    parts = {"weights": TREE.state_dict(), "control_weights": MODULE.state_dict(), "control": DEPTH}
    cases = {name: {"strength": strength} for name, strength in strengths.items()}
    steps = [step.timestep for step in get_schedule("four-step")]
    request = request_for(cases, LAYERS, **parts, timesteps=steps, as_it_is=as_it_is)
    return ask("run_scope.py", CHECKOUT, request, folder)


def ours(strength: float) -> Tensor:
    model = generator_over(TREE, RollingContext(window=12, sink=3), control=MODULE)
    return video_of(model, controls=(ControlClip(DEPTH, strength),))


def test_latents_are_those_of_the_original(tmp_path, measured):
    """Catches: hints in the keys of the context, and control blocks that see more than their own frames."""
    latents = theirs(tmp_path, whole=1.0, half=0.5)
    assert measured(difference(ours(1.0), latents["whole"])) < AGREES
    assert measured(difference(ours(0.5), latents["half"])) < AGREES
    assert measured(difference(ours(0.0), latents["half"])) > 0.1


def test_its_control_blocks_attend_to_padding(tmp_path, measured):
    """To 56 besides 72 tokens; at 480 x 832 to 56 besides 4680. And it embeds times in float32."""
    assert measured(difference(ours(1.0), theirs(tmp_path, as_it_is=True, whole=1.0)["whole"])) > 1e-3
