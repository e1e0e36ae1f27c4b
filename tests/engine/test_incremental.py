"""The incremental context, whatever histories it is asked for, in whatever order."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from thinned import in_turn
from tiny import CONFIG, SIZE, EchoCodec, condition, generator_of, make_generator, make_noise

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, History, Span

PROMPTS = [condition(5), replace(condition(6), cut=True)]
NOISE = make_noise()


class Stop(BaseException):
    """As a user's interrupt comes."""


@cache
def block(index: int, frames: int, choice: int, prompt: int) -> Block:
    """One of several blocks that could stand at a place; always the same object for the same arguments."""
    latents = torch.randn(1, CONFIG.in_dim, frames, *SIZE, generator=generator_of(100 * index + choice))
    return Block(Span(index, index * frames, frames), latents, PROMPTS[prompt])


def history_of(choices: list[tuple[int, int]], frames: int) -> History:
    return History(tuple(block(i, frames, *choice) for i, choice in enumerate(choices)))


def made(model, choices, frames, prompt):
    span = Span(len(choices), len(choices) * frames, frames)
    return model.generate(BlockCall(history_of(choices, frames), span, NOISE, PROMPTS[prompt])).latents


def options_of(frames: int, undo: int, recache: bool, **more: object) -> dict[str, object]:
    return {"window": 3 * frames + 3, "sink": 3, "undo": undo, "recache": recache, "block_frames": frames, **more}


MORE = {"keep": {}, "recache": {"recache": True}, "relative": {"relative": True}}
MORE |= {"relative, flush": {"relative": True, "flush": True}, "absolute, flush": {"flush": True}}
MORE |= {"means": {"relative": True, "means": True}}


@in_turn("more, sizes", tuple(MORE), [(1, 0), (1, 2), (1, 5), (3, 0), (3, 1)])
def test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes(more, sizes):
    """Latent frames of a block, and blocks of undo. Catches: slots taken for those of frames that are gone."""
    frames, undo = sizes
    choose = random.Random(10 * frames + undo)
    chosen = {"recache": False} | MORE[more]
    model = make_generator(1, EchoCodec(), "incremental", **options_of(frames, undo, **chosen))
    choices: list[tuple[int, int]] = []
    for _ in range(24):
        choices = choices[: len(choices) - choose.randrange(min(len(choices), 4) + 1)]
        choices += [(choose.randrange(2), choose.randrange(2)) for _ in range(choose.randrange(4))]
        prompt = choose.randrange(2)
        fresh = make_generator(1, EchoCodec(), "incremental", **options_of(frames, 0, **chosen))
        assert torch.equal(made(model, choices, frames, prompt), made(fresh, choices, frames, prompt))


@pytest.mark.parametrize("back", [1, 2, 3, 4])
@pytest.mark.parametrize("undo", [0, 1, 3])
def test_going_back_passes_only_the_blocks_that_differ_if_enough_was_kept(undo, back):
    """The window has been full for long, and the newest `back` blocks turn out to be others."""
    kinds: list[str] = []
    options = {**options_of(1, undo, False), "before_pass": kinds.append}
    model = make_generator(1, EchoCodec(), "incremental", **options)
    for blocks in range(11):
        made(model, [(0, 0)] * blocks, 1, 0)
    before = kinds.count("context")
    made(model, [(0, 0)] * (10 - back) + [(1, 0)] * back, 1, 0)
    # The first of them is written over. Each later one, the begun one included, must be known.
    assert kinds.count("context") - before == (back if undo >= back else 10)


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_window_that_was_passed_again_is_not_taken_back_to_before_that(back):
    """Catches: what a pass over the window lost, forgotten when more is forgotten."""
    model = make_generator(1, EchoCodec(), "incremental", **options_of(1, 3, True))
    for blocks in range(13):
        made(model, [(0, 0)] * blocks, 1, 0)
    for later in range(3):
        made(model, [(0, 0)] * 12 + [(0, 1)] * later, 1, 1)
    other = [(0, 0)] * (12 - back) + [(1, 0)] * back
    fresh = make_generator(1, EchoCodec(), "incremental", **options_of(1, 0, True))
    assert torch.equal(made(model, other, 1, 0), made(fresh, other, 1, 0))


@pytest.mark.parametrize("blocks", [2, 9])
def test_a_new_prompt_passes_the_window_once_more_and_only_if_asked_to(blocks):
    counts = {}
    for recache in (False, True):
        kinds: list[str] = []
        options = {**options_of(1, 0, recache), "before_pass": kinds.append}
        model = make_generator(1, EchoCodec(), "incremental", **options)
        made(model, [(0, 0)] * blocks, 1, 0)
        before = kinds.count("context")
        first = made(model, [(0, 0)] * blocks, 1, 1)
        again = made(model, [(0, 0)] * blocks, 1, 1)
        assert torch.equal(first, again)
        counts[recache] = kinds.count("context") - before, first
    assert counts[False][0] == 0
    assert counts[True][0] == 1
    assert not torch.equal(counts[False][1], counts[True][1])


class BreakingOps(TorchOps):
    """Operations that fail once, in the middle of a forward pass."""

    left = -1

    def attention(self, q, k, v):
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().attention(q, k, v)


def test_a_pass_over_the_window_that_broke_off_leaves_no_half_of_it():
    """Catches: a window that is half under the new prompt, taken for one under the old."""
    ops = BreakingOps(torch.float32)
    model = make_generator(1, EchoCodec(), "incremental", **options_of(1, 0, True), ops=ops)
    nine = [(0, 0)] * 9
    made(model, nine, 1, 0)
    ops.left = 2  # the first layer has written its keys and values, the second has not
    with pytest.raises(Stop):
        made(model, nine, 1, 1)
    fresh = make_generator(1, EchoCodec(), "incremental", **options_of(1, 0, True))
    assert torch.equal(made(model, nine, 1, 0), made(fresh, nine, 1, 0))
