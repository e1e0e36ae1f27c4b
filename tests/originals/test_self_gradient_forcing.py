"""Our engine against Self Gradient Forcing's own pipeline, asked as its inference script asks it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from witness import AGREES, SPANS, ask_family, difference, generator_over, per_block, tree_of, video_of

from sdvg_core.causal_wan.context import Incremental
from sdvg_core.causal_wan.presets import Preset, get_preset
from sdvg_core.engine.types import plan_spans

CHECKOUT = "SELF_GRADIENT_FORCING_PATH"
pytestmark = pytest.mark.originals

TRAINED = 21
"""Latent frames of a training clip, to which its positions are pinned."""
PRESETS = {"chunk-wise": "self-gradient-forcing", "frame-wise": "self-gradient-forcing-framewise"}
FRAMES = SPANS[-1].stop


def spans_of(preset: Preset) -> tuple[Any, ...]:
    return tuple(plan_spans(FRAMES // preset.block_frames, preset.block_frames))


@pytest.fixture(scope="module", params=PRESETS)
def theirs(request, tmp_path_factory) -> tuple[Preset, Tensor]:
    preset = get_preset(PRESETS[request.param])
    asked = {
        "text_prompts": ["first"],
        "long_video": True,
        "kv_cache_max_frames": preset.window,
        "kv_cache_sink": preset.sink,
        "kv_cache_train_frames": TRAINED,
        "kv_cache_position_mode": "top_aligned",
    }
    case = {"model": {}, "asked": asked, "block_frames": preset.block_frames}
    folder = tmp_path_factory.mktemp("self_gradient_forcing")
    return preset, ask_family(CHECKOUT, {"video": case}, folder, spans=spans_of(preset))["latents"]["video"]


def ours(preset: Preset, **other: Any) -> Tensor:
    settings = {name: getattr(preset, name) for name in ("window", "sink", "relative", "trained")} | other
    generator = generator_over(tree_of(1), Incremental(**settings), preset.schedule)
    return video_of(generator, spans=spans_of(preset))


def test_twenty_seven_latent_frames_have_the_latents_of_the_original(theirs, measured):
    preset, video = theirs
    assert measured(difference(ours(preset), video)) < AGREES


def test_no_sink_shows(theirs, measured):
    preset, video = theirs
    assert measured(difference(ours(preset, sink=0), video)) > 0.1


def test_positions_counted_from_the_window_show_where_it_is_shorter_than_a_training_clip(theirs, measured):
    """From the fifth block of three on: the window of 12 is full."""
    preset, video = theirs
    apart = per_block(ours(preset, trained=None), video)
    if preset.window == TRAINED:
        assert max(apart) < AGREES
    else:
        assert max(apart[:4]) < AGREES
        assert measured(apart[4]) > 0.01
