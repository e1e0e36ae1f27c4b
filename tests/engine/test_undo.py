"""A sliding window of keys and values whose newest block turns out to be another one."""

from __future__ import annotations

import pytest
import torch
from overlap_parts import ENGINE
from tiny import PROMPT, make_engine, make_noise, run, scripted

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.engine.history import History
from sdvg_core.engine.spans import plan_spans
from sdvg_core.engine.types import Block


class Stop(BaseException):
    """As a user's interrupt comes."""


def history_of(blocks: int) -> History:
    made = run(make_engine(**ENGINE), scripted("r" * blocks), blocks=blocks)
    return made[-1].timeline.history


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("undo", [1, 0])
def test_a_wrong_guess_costs_one_context_pass_if_what_it_overwrote_is_known(undo, blocks):
    """The block after `blocks` others is first a draft, then another.

    Catches: the copy taken after the write; copies of other slots; the newest block not passed anew.
    """
    kinds: list[str] = []
    drafter = make_engine(**ENGINE, undo=undo, before_pass=kinds.append).drafter
    history, spans, noise = history_of(blocks), plan_spans(blocks + 2, 3), make_noise()
    draft, other = (
        Block(spans[blocks], model.generate(history, spans[blocks], noise, PROMPT).latents, PROMPT)
        for model in (drafter, make_engine(**ENGINE).target)
    )
    following = spans[blocks + 1]
    drafter.generate(history.commit(draft), following, noise, PROMPT)
    before = kinds.count("context")
    made = drafter.generate(history.commit(other), following, noise, PROMPT)

    fresh = make_engine(**ENGINE).drafter.generate(history.commit(other), following, noise, PROMPT)
    assert torch.equal(made.latents, fresh.latents)
    window_was_full = following.stop > ENGINE["window"]
    assert kinds.count("context") - before == (blocks + 1 if window_was_full and not undo else 1)


def test_two_steps_back_are_made_anew_from_the_beginning():
    """What was overwritten is known for one block only.

    Catches: a copy used twice; one that is taken of slots which already hold a newer block.
    """
    drafter, target = make_engine(**ENGINE, undo=1).drafter, make_engine(**ENGINE).target
    history, spans, noise = history_of(4), plan_spans(7, 3), make_noise()
    wrong = history
    for span in spans[4:6]:
        wrong = wrong.commit(Block(span, drafter.generate(wrong, span, noise, PROMPT).latents, PROMPT))
        drafter.generate(wrong, spans[span.index + 1], noise, PROMPT)
    back = History(blocks=wrong.blocks[:-1], horizon=wrong.horizon)
    drafter.generate(back, spans[5], noise, PROMPT)
    other = history.commit(Block(spans[4], target.generate(history, spans[4], noise, PROMPT).latents, PROMPT))
    made = drafter.generate(other, spans[5], noise, PROMPT)
    fresh = make_engine(**ENGINE).drafter.generate(other, spans[5], noise, PROMPT)
    assert torch.equal(made.latents, fresh.latents)


class BreakingOps(TorchOps):
    """Operations that fail once, in the middle of a forward pass."""

    left = -1

    def attention(self, q, k, v):
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().attention(q, k, v)


def test_a_context_pass_that_broke_off_is_not_taken_for_one_that_can_be_undone():
    """Catches: a copy from before the pass that is still there after it."""
    ops = BreakingOps(torch.float32)
    drafter = make_engine(**ENGINE, undo=1, ops=ops).drafter
    target, history = make_engine(**ENGINE).target, history_of(4)
    spans, noise = plan_spans(8, 3), make_noise()
    drafter.generate(history, spans[4], noise, PROMPT)
    longer = history
    for span in spans[4:6]:
        longer = longer.commit(Block(span, target.generate(longer, span, noise, PROMPT).latents, PROMPT))
    # Block 4's context takes both attentions of its layers but the last one's; block 5's breaks in its first layer.
    ops.left = 4
    with pytest.raises(Stop):
        drafter.generate(longer, spans[6], noise, PROMPT)
    other = history.commit(Block(spans[4], drafter.generate(history, spans[4], noise, PROMPT).latents, PROMPT))
    made = drafter.generate(other, spans[5], noise, PROMPT)
    fresh = make_engine(**ENGINE).drafter.generate(other, spans[5], noise, PROMPT)
    assert torch.equal(made.latents, fresh.latents)
