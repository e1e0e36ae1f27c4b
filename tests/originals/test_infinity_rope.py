"""Our engine against Infinity-RoPE's own pipeline: relative positions, a flush at a new prompt, and a cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor
from witness import AGREES, FIRST, SECOND, ask_family, difference, generator_over, tree_of, video_of

from sdvg_core.causal_wan.context import Incremental

CHECKOUT = "INFINITY_ROPE_PATH"
pytestmark = pytest.mark.originals

CASES = {
    "one prompt": "first[7s]",
    "new prompt": "first[4.5s] | second[2.3s]",
    "cut": "first[4.5s#] | second[2.3s]",
}
PROMPTS = {"one prompt": {}, "new prompt": {6: SECOND}, "cut": {6: replace(SECOND, cut=True)}}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    model = {"local_attn_size": 6, "sink_size": 1}
    cases = {name: {"model": model, "asked": {"text_prompts": [text]}} for name, text in CASES.items()}
    return ask_family(CHECKOUT, cases, tmp_path_factory.mktemp("infinity_rope"), flush=True)["latents"]


def ours(name: str, **other: object) -> Tensor:
    options = {"window": 6, "sink": 1, "relative": True, "flush": True} | other
    return video_of(generator_over(tree_of(1), Incremental(**options)), {0: FIRST, **PROMPTS[name]})


@pytest.mark.parametrize("name", CASES)
def test_nine_blocks_have_the_latents_of_the_original(theirs, name, measured):
    assert measured(difference(ours(name), theirs[name])) < AGREES


@pytest.mark.parametrize("other", [{"relative": False}, {"sink": 0}, {"window": 9}])
def test_another_setting_shows(theirs, other, measured):
    assert measured(difference(ours("one prompt", **other), theirs["one prompt"])) > 1e-2


def test_a_cut_shows(theirs, measured):
    assert measured(difference(ours("new prompt"), theirs["cut"])) > 1e-2
