"""A drafter whose own blocks are smaller than the target's, or whose tokens are larger, bit for bit.

Latents, VAE and text are what two models must share; into how many tokens each cuts a frame is its own matter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from replayed import check_pattern

from sdvg_core.engine.inputs import CONTROL_CHANNELS, BlockCall, ControlClip, KeyedNoise
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.types import Block, History, Span, plan_spans
from sdvg_core.engine.wrappers import FramewiseAdapter
from sdvg_core.errors import BadInput
from sdvg_core.memory import sizes
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.settings.context import Rolling
from sdvg_core.settings.route import First, Route
from tests.support.thinned import every_pair
from tests.support.tiny import (
    CONFIG,
    CONTEXTS,
    LONG,
    POLICIES,
    PROMPT,
    SIZE,
    EchoCodec,
    generator_of,
    history_of,
    latents_of,
    latents_shown,
    make_engine,
    make_framewise,
    make_generator,
    make_noise,
    planned,
    random_module,
    run,
    scripted,
    shared_tree,
)

DRAFTS = Route(First(0))


class SameNoise(KeyedNoise):
    """Noise of three latent frames, handed to blocks of one frame, for a model that runs alone."""

    def draw(self, span, slot):
        whole = Span(span.start // 3, span.start // 3 * 3, 3)
        place = span.start - whole.start
        return KeyedNoise.draw(self, whole, slot)[:, :, place : place + span.frames].contiguous()


def small_model_alone(policy: str, frames: int, **options) -> list[Block]:
    """Return what the small model makes by itself, one latent frame after the other, decoded on the way."""
    codec = make_engine().codec
    model = make_generator(1, codec, policy, block_frames=1, **options)
    noise = SameNoise(seed=42, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
    blocks: list[Block] = []
    for span in plan_spans(frames, 1):
        history = history_of(tuple(blocks), codec, 3)[0] if blocks else History(horizon=3)
        latents = model.generate(BlockCall(history, span, noise, PROMPT)).latents
        blocks.append(Block(span, latents, PROMPT))
    return blocks


# --- the same as alone


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("steps", [{}, {"schedule": "1000,625", "first_schedule": "1000,900,625"}])
def test_three_small_blocks_equal_the_small_model_alone(policy, steps):
    """Catches: the second piece drawn from the first one's noise; pieces that do not see each other."""
    emitted = run(make_framewise(policy, **steps), DRAFTS, blocks=4)
    alone = small_model_alone(policy, 12, **steps)
    assert torch.equal(latents_of(emitted), torch.cat([block.latents for block in alone], dim=2))


@pytest.mark.parametrize("policy", POLICIES)
def test_rejected_draft_costs_passes_over_the_remake_only(policy):
    """Catches: a window that cannot go back, and passes the whole clip again."""
    emitted = run(make_framewise(policy), scripted("rrrrrrara"))
    _, *drafts = (shown.record.draft for shown in emitted)
    # Three frames of the remake, and the first two of the draft. In a kept draft only the third is new.
    expected = [*[5] * 6, 3, 5] if policy == "incremental" else [9] * 8
    assert [cost.context_passes for cost in drafts] == expected


# --- what the engine promises of every model


ROUTES = ("raraara", "tdatrda")


@every_pair("policy, context, own_frames, route", (*POLICIES, *LONG), CONTEXTS, (1, 3), ROUTES)
def test_every_block_replays_with_a_smaller_drafter(policy, context, own_frames, route):
    """Catches: a cache that still holds pieces of a rejected draft; pieces kept for another block's."""
    check_pattern(route, partial(make_framewise, policy, own_frames=own_frames), context)


@pytest.mark.parametrize("step", [1, 2])
def test_handover_leaves_only_the_last_piece_unfinished(step):
    """The others are what it continues from. Catches: every piece left after `step` steps."""
    steps = {"schedule": "1000,900,625"}
    engine = replace(make_framewise("incremental", **steps), target=make_engine("incremental", **steps).target)
    first, second, third = run(engine, scripted("ttt", handover=step), blocks=3)
    for shown in (second, third):
        assert shown.record.draft.denoising_passes == 3 + 3 + step
    drafter = make_framewise("incremental", **steps).drafter
    draft = drafter.generate(BlockCall(History((first.block,)), second.block.span, make_noise(), PROMPT))
    assert len(second.draft.predictions) == step
    assert torch.equal(second.draft.latents, draft.predictions[step - 1])


# --- the first block's own steps


def test_first_schedule_is_for_block_0_alone():
    """Catches: the first-block list applied to a continued clip's first new block."""
    steps = {"schedule": "1000,625", "first_schedule": "1000,900,800,625"}
    clip = run(make_engine("incremental", **steps), scripted("tt"), blocks=2)
    assert target_passes(clip) == [4, 2]
    continued = run(make_engine("incremental", **steps), scripted("ttttt"), blocks=2, start=clip[-1].history)
    assert target_passes(continued) == [2, 2]


def test_first_schedule_makes_what_it_makes_alone():
    """Catches: noise slots that are numbered by the usual schedule."""
    steps = {"schedule": "1000,625", "first_schedule": "1000,900,800,625"}
    both = run(make_engine("incremental", **steps), scripted("t"), blocks=1)
    alone = run(make_engine("incremental", schedule="1000,900,800,625"), scripted("t"), blocks=1)
    assert torch.equal(latents_of(both), latents_of(alone))


def target_passes(emitted):
    return [shown.record.target.denoising_passes for shown in emitted]


def test_handover_ignores_the_first_schedule():
    """Block 0 is never handed over. Catches: a refusal of models that differ in nothing but that schedule."""
    steps = {"schedule": "1000,625", "first_schedule": "1000,900,625"}
    engine = make_engine(**steps)
    for drafter in (engine.drafter, make_engine(schedule="1000,625").drafter, make_framewise(**steps).drafter):
        emitted = run(replace(engine, drafter=drafter), Route(First(2), handover=1), blocks=2)
        assert emitted[1].record.handover == 1


# --- what does not fit


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(BadInput, match="do not divide"):
        FramewiseAdapter(make_generator(1, EchoCodec(), block_frames=2), 3)


def test_context_shorter_than_a_block_is_refused():
    with pytest.raises(BadInput, match="2 context frames are too few"):
        FramewiseAdapter(make_generator(1, EchoCodec(), block_frames=1, frames=2), 3)
    FramewiseAdapter(make_generator(1, EchoCodec(), "incremental", block_frames=1), 3)


# --- tokens of two sizes


FINE = replace(CONFIG, patch_size=(1, 1, 1))


def fine_target(engine: Engine, policy: str, **options: object) -> Engine:
    target = make_generator(2, engine.codec, policy, name="target", tree=shared_tree(2, FINE), **options)
    return replace(engine, target=target)


def pair(policy: str = "recompute", **options: object) -> Engine:
    return fine_target(make_engine(policy, **options), policy, **options)


def framewise(policy: str) -> Engine:
    return fine_target(make_framewise(policy), policy)


@every_pair("policy, context, make, route", POLICIES, CONTEXTS, (pair, framewise), ROUTES)
def test_every_block_replays_with_two_patch_sizes(policy, context, make, route):
    """Catches: a cache, a rotary table or a grid of one model used for the other."""
    check_pattern(route, partial(make, policy), context)


def test_control_fits_the_patches_of_each_model():
    """Each obeys its own module. Catches: a hint of the one's token grid added to the other's tokens."""
    coarse = make_engine(control=random_module(9))
    engine = fine_target(coarse, "recompute", control=random_module(9, FINE))
    context = torch.randn(1, CONTROL_CHANNELS, 6, 4, 4, generator=generator_of(77))
    obeyed, ignored, absent = (
        latents_shown(planned(engine, scripted("td"), blocks=2, controls=clips))
        for clips in ((ControlClip(context, 1.0),), (ControlClip(context, 0.0),), ())
    )
    assert torch.equal(ignored, absent)
    assert not torch.equal(obeyed[:, :, :3], absent[:, :, :3])
    assert not torch.equal(obeyed[:, :, 3:], absent[:, :, 3:])


# --- sizes and plans


def test_tokens_are_counted_by_model_in_memory():
    """Four times the tokens: four times the cache. Catches: the drafter's tokens counted for the target."""
    coarse = PlanRequest()
    target = replace(coarse.target, preset=replace(coarse.target.preset, context=Rolling(window=6)))
    coarse = replace(coarse, target=target)
    fine = replace(coarse, target=patched(target, (1, 1, 1)))
    state = sizes.state_bytes(coarse)
    fine_state = sizes.state_bytes(fine)
    assert fine_state["target keys and values"] == 4 * state["target keys and values"]
    assert fine_state["drafter keys and values"] == state["drafter keys and values"]
    working = sizes.working_bytes(coarse, stored="plain")
    fine_working = sizes.working_bytes(fine, stored="plain")
    assert fine_working["target"] == pytest.approx(4 * working["target"], rel=1e-6)
    assert fine_working["draft"] == working["draft"]


def test_planned_size_fits_the_larger_patch():
    plan = PlanRequest()
    fine = replace(plan, target=patched(plan.target, (1, 1, 1)))
    replace(fine, drafter=fine.target, width=840, height=488)
    with pytest.raises(BadInput, match="width 840 is no multiple of 16"):
        replace(fine, width=840)
    with pytest.raises(BadInput, match="height 496 is no multiple of 48"):
        replace(plan, target=patched(plan.target, (1, 3, 3)), width=816, height=496)


def patched(model, patch_size):
    return replace(model, config=replace(model.config, patch_size=patch_size))
