"""A drafter whose own blocks are smaller than the target's, bit for bit over tiny generators."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from test_exactness import check_pattern
from thinned import every_pair
from tiny import (
    CONFIG,
    CONTEXTS,
    LONG,
    POLICIES,
    PROMPT,
    SIZE,
    history_of,
    latents_of,
    make_engine,
    make_framewise,
    make_generator,
    make_noise,
    run,
    scripted,
)

from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Block, History, Span, plan_spans
from sdvg_core.engine.wrappers import FramewiseAdapter
from sdvg_core.errors import BadInput

DRAFTS = RouterConfig(policy="first", forced_blocks=0)


class SameNoise(KeyedNoise):
    """Noise of three latent frames, handed to blocks of one, for a model that runs on its own."""

    def draw(self, span, slot):
        whole = Span(span.start // 3, span.start // 3 * 3, 3)
        place = span.start - whole.start
        return KeyedNoise.draw(self, whole, slot)[:, :, place : place + span.frames].contiguous()


def alone(policy: str, blocks: int, **options) -> list[Block]:
    """What the small model makes by itself, one block of its own after the other, decoded on the way."""
    codec = make_engine().codec
    model = make_generator(1, codec, policy, block_frames=1, **options)
    noise, made = SameNoise(seed=42, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1]), []
    for span in plan_spans(3 * blocks, 1):
        history = history_of(tuple(made), codec, 3)[0] if made else History(horizon=3)
        made.append(Block(span, model.generate(BlockCall(history, span, noise, PROMPT)).latents, PROMPT))
    return made


# --- the same as alone


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("steps", [{}, {"schedule": "1000,625", "first_schedule": "1000,900,625"}])
def test_in_spans_of_three_it_makes_what_it_makes_alone_block_by_block(policy, steps):
    """Catches: the second piece drawn from the first one's noise; pieces that do not see each other."""
    made = run(make_framewise(policy, **steps), DRAFTS, blocks=4)
    own = alone(policy, 4, **steps)
    assert torch.equal(latents_of(made), torch.cat([block.latents for block in own], dim=2))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rejected_draft_costs_only_the_passes_over_what_replaced_it(policy):
    """Catches: a window that cannot go back, and passes the whole clip again."""
    made = run(make_framewise(policy), scripted("rrrrrrara"))
    works = [e.record.draft for e in made]
    # Three frames of the remake, and the first two of the draft. In a kept draft only the third is new.
    expected = [0, *[5] * 6, 3, 5] if policy == "incremental" else [0, *[9] * 8]
    assert [work.context_passes if work else 0 for work in works] == expected


# --- what the engine promises of every model


@every_pair("policy, context, own", (*POLICIES, *LONG), CONTEXTS, (1, 3))
@pytest.mark.parametrize("route", ["raraarrar", "tdatrdadd"])
def test_every_block_is_what_its_author_makes_from_what_was_emitted(policy, context, own, route):
    """Catches: a cache that still holds pieces of a rejected draft; pieces kept for another block's."""
    check_pattern(route, partial(make_framewise, policy, own_frames=own), context)


@pytest.mark.parametrize("step", [1, 2])
def test_a_handover_gives_the_first_steps_of_every_piece(step):
    """Only the last piece is left unfinished: the others are what it continues from."""
    four = {"schedule": "1000,900,625"}
    engine = replace(make_framewise("incremental", **four), target=make_engine("incremental", **four).target)
    made = run(engine, scripted("ttt", handover=step), blocks=3)
    assert [e.record.draft.denoising_passes for e in made[1:]] == [6 + step] * 2
    whole = make_framewise("incremental", **four).drafter
    history = History((made[0].block,))
    draft = whole.generate(BlockCall(history, made[1].block.span, make_noise(), PROMPT))
    assert len(made[1].draft.predictions) == step
    assert torch.equal(made[1].draft.latents, draft.predictions[step - 1])
    finished = whole.generate(
        BlockCall(history, made[1].block.span, make_noise(), PROMPT, draft.predictions[:step])
    )
    assert torch.equal(finished.latents, draft.latents)


# --- the first block's own steps


def test_the_first_blocks_steps_are_for_block_0_of_the_clip_alone():
    """Catches: the first-block list applied to a continued clip's first new block."""
    steps = {"schedule": "1000,625", "first_schedule": "1000,900,800,625"}
    made = run(make_engine("incremental", **steps), scripted("tt"), blocks=2)
    assert [e.record.target.denoising_passes for e in made] == [4, 2]
    after = run(make_engine("incremental", **steps), scripted("ttttt"), blocks=2, start=made[-1].history)
    assert [e.record.target.denoising_passes for e in after] == [2, 2]
    plain = run(make_engine("incremental", schedule="1000,900,800,625"), scripted("t"), blocks=1)
    assert torch.equal(made[0].block.latents, plain[0].block.latents), "slot i of a block is what it was"


def test_a_handover_asks_nothing_of_the_lists_of_block_0_which_is_never_handed_over():
    router = RouterConfig(policy="first", forced_blocks=2, handover=1)
    engine = make_engine(schedule="1000,625", first_schedule="1000,900,625")
    run(engine, router, blocks=2)
    other = replace(engine, drafter=make_engine(schedule="1000,625").drafter)
    run(other, router, blocks=2)
    pieces = make_framewise(schedule="1000,625", first_schedule="1000,900,625")
    run(replace(pieces, target=engine.target), router, blocks=2)


# --- what does not fit


def test_blocks_that_do_not_divide_are_refused_in_one_sentence():
    engine = make_engine()
    with pytest.raises(BadInput, match=r"do not divide the target's \(2 and 3"):
        FramewiseAdapter(make_generator(1, engine.codec, block_frames=2), 3)
    with pytest.raises(BadInput, match="2 context frames are too few"):
        FramewiseAdapter(make_generator(1, engine.codec, block_frames=1, frames=2), 3)
    FramewiseAdapter(make_generator(1, engine.codec, "incremental", block_frames=1), 3)
