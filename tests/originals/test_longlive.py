"""Our engine against LongLive 1.0's own pipeline: window 12, sink 3, and what it does when the prompt changes."""

from __future__ import annotations

import pytest
from torch import Tensor
from witness import (
    AGREES,
    CLOSE,
    SECOND,
    ask,
    difference,
    from_their_table,
    generator_over,
    per_block,
    request_for,
    tree_of,
    video_of,
)

from sdvg_core.causal_wan.cache import Place
from sdvg_core.causal_wan.context import Incremental

CHECKOUT = "LONGLIVE_PATH"
pytestmark = pytest.mark.originals

SWITCHES = {"early": 2, "late": 6}
"""The first block with the second prompt: before and after the window of four blocks is full."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    cases = {"one prompt": {"switch": -1}} | {name: {"switch": 3 * block} for name, block in SWITCHES.items()}
    request = request_for(cases, weights=tree_of(1).state_dict())
    return ask("run_longlive.py", CHECKOUT, request, tmp_path_factory.mktemp("longlive"))


def ours(schedule="four-step", policy=Incremental, sink=3, **prompts) -> Tensor:
    return video_of(generator_over(tree_of(1), policy(window=12, sink=sink), schedule), **prompts)


def test_nine_blocks_have_the_latents_of_the_original(theirs, measured):
    assert measured(difference(ours(), theirs["one prompt"])) < AGREES


def test_their_float32_table_of_timesteps_leaves_less(theirs, measured):
    assert measured(difference(ours(from_their_table("four-step")), theirs["one prompt"])) < CLOSE


def test_no_sink_shows(theirs, measured):
    assert measured(difference(ours(sink=0), theirs["one prompt"])) > 0.1


def prompts_of(switch: str):
    return {"prompts": {SWITCHES[switch]: SECOND}}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_change_of_prompt_differs_from_its_first_block_on(theirs, switch, measured):
    """LongLive renews its cache under the new prompt then, and our engine keeps what it has."""
    apart = per_block(ours(**prompts_of(switch)), theirs[switch])
    block = SWITCHES[switch]
    assert max(apart[:block]) < AGREES
    assert measured(apart[block]) > 0.1


class Renewed(Incremental):
    """When the prompt changes, passes what the cache holds once more, at once and under the new prompt.

    A clip that still fits in the window is passed whole. Of a longer one, the sink stays as it is, and each other
    frame sees the sink and all of those, the later ones too.
    """

    def prepare(self, model, history, span, condition, size):
        made = super().prepare(model, history, span, condition, size)
        if history.blocks and history.blocks[-1].condition is not condition:
            fits = history.frames <= self.window
            first = 0 if fits else history.frames - (self.window - self.sink)
            slots = tuple(self._slot(frame) for frame in range(first, history.frames))
            place = Place(first, slots, min(history.frames, self.window))
            model.write_context(history.latents(first, history.frames), condition, made.cache, place)
        return made


@pytest.mark.parametrize("switch", SWITCHES)
def test_with_the_cache_renewed_under_the_new_prompt_ours_is_the_same(theirs, switch, measured):
    made = ours(from_their_table("four-step"), Renewed, **prompts_of(switch))
    assert measured(difference(made, theirs[switch])) < CLOSE


class RenewedInBlocks(Incremental):
    """When the prompt changes, passes what the cache holds block by block, as it was passed the first time."""

    def prepare(self, model, history, span, condition, size):
        made = super().prepare(model, history, span, condition, size)
        if history.blocks and history.blocks[-1].condition is not condition:
            for block in history.blocks[-3:]:
                model.write_context(block.latents, condition, made.cache, self._place(block.span))
        return made


def test_a_cache_renewed_block_by_block_shows(theirs, measured):
    made = ours(policy=RenewedInBlocks, **prompts_of("late"))
    assert measured(difference(made, theirs["late"])) > 1e-2
