"""Our engine against MemRoPE's own pipeline: a sink, two running means of what left the window, and the window."""

from __future__ import annotations

import pytest
from torch import Tensor
from witness import AGREES, ask, difference, generator_over, request_for, tree_of, video_of

from sdvg_core.causal_wan.incremental import Incremental

CHECKOUT = "MEMROPE_PATH"
pytestmark = pytest.mark.originals


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    request = request_for({}, weights=tree_of(1).state_dict())
    return ask("run_memrope.py", CHECKOUT, request, tmp_path_factory.mktemp("memrope"))["latents"]


def ours(**other: object) -> Tensor:
    options = {"window": 12, "sink": 5, "relative": True, "means": True} | other
    return video_of(generator_over(tree_of(1), Incremental(**options)))


def test_nine_blocks_have_the_latents_of_the_original(theirs, measured):
    assert measured(difference(ours(), theirs)) < AGREES


def test_a_sink_without_means_shows(theirs, measured):
    assert measured(difference(ours(means=False), theirs)) > 1e-2
