"""Our engine against MemRoPE's own pipeline: a sink, two running means of what left the window, and the window."""

from __future__ import annotations

import pytest
from torch import Tensor
from witness import AGREES, ask_family, difference, generator_over, tree_of, video_of

from sdvg_core.causal_wan.context import Incremental

CHECKOUT = "MEMROPE_PATH"
pytestmark = pytest.mark.originals


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    model = {"local_attn_size": 12, "sink_size": 3, "recent_size": 4, "compression_method": "ema"}
    cases = {"means": {"model": model, "asked": {"text_prompts": ["first"]}}}
    folder = tmp_path_factory.mktemp("memrope")
    return ask_family(CHECKOUT, cases, folder, whole_cache=False)["latents"]["means"]


def ours(**other: object) -> Tensor:
    options = {"window": 12, "sink": 5, "relative": True, "means": True} | other
    return video_of(generator_over(tree_of(1), Incremental(**options)))


def test_nine_blocks_have_the_latents_of_the_original(theirs, measured):
    assert measured(difference(ours(), theirs)) < AGREES


def test_a_sink_without_means_shows(theirs, measured):
    assert measured(difference(ours(means=False), theirs)) > 1e-2
