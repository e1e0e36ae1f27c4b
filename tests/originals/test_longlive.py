"""Our engine against LongLive 1.0's own pipeline: window 12, sink 3, and what it does when the prompt changes."""

from __future__ import annotations

import pytest
from torch import Tensor
from witness import AGREES, SECOND, ask_family, difference, generator_over, per_block, tree_of, video_of

from sdvg_core.causal_wan.context import Incremental
from sdvg_core.causal_wan.presets import get_preset

CHECKOUT = "LONGLIVE_PATH"
pytestmark = pytest.mark.originals

PRESET = get_preset("longlive-1.0")
SWITCHES = {"early": 2, "late": 6}
"""The first block with the second prompt: before and after the window of four blocks is full."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    asked = {"text_prompts_list": [["first"]], "switch_frame_indices": []}
    model = {"local_attn_size": 12, "sink_size": 3, "use_infinite_attention": False}
    cases = {"one prompt": {"model": model, "asked": asked}}
    cases["infinity"] = {"model": model | {"use_infinite_attention": True}, "asked": asked}
    for name, block in SWITCHES.items():
        switched = {"text_prompts_list": [["first"], ["second"]], "switch_frame_indices": [3 * block]}
        cases[name] = {"model": model, "asked": switched}
    pipeline = "interactive_causal_inference.InteractiveCausalInferencePipeline"
    options = {"models": ["causal_model", "causal_model_infinity"], "pipeline": pipeline, "whole_cache": False}
    return ask_family(CHECKOUT, cases, tmp_path_factory.mktemp("longlive"), **options)["latents"]


def ours(sink=PRESET.sink, recache=False, relative=False, **prompts) -> Tensor:
    context = Incremental(window=PRESET.window, sink=sink, recache=recache, relative=relative)
    return video_of(generator_over(tree_of(1), context, PRESET.schedule), **prompts)


@pytest.mark.parametrize("case", ["one prompt", "infinity"])
def test_nine_blocks_have_the_latents_of_the_original(theirs, case, measured):
    """`infinity` is its variant with relative positions."""
    relative = case == "infinity"
    assert measured(difference(ours(relative=relative), theirs[case])) < AGREES
    assert measured(difference(ours(relative=not relative), theirs[case])) > 0.1


def test_no_sink_shows(theirs, measured):
    assert measured(difference(ours(sink=0), theirs["one prompt"])) > 0.1


def prompts_of(switch: str):
    return {"prompts": {SWITCHES[switch]: SECOND}}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_change_of_prompt_has_the_latents_of_the_original(theirs, switch, measured):
    made = ours(recache=True, **prompts_of(switch))
    assert measured(difference(made, theirs[switch])) < AGREES


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_cache_that_is_kept_shows_from_the_first_block_with_the_new_prompt_on(theirs, switch, measured):
    apart = per_block(ours(**prompts_of(switch)), theirs[switch])
    block = SWITCHES[switch]
    assert max(apart[:block]) < AGREES
    assert measured(apart[block]) > 0.1
