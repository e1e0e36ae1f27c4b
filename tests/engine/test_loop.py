"""The loop: modifiers, prompts that change, and clips that go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import (
    POLICIES,
    PROMPT,
    condition,
    frames_of,
    generator_of,
    history_of,
    latents_of,
    make_engine,
    make_generator,
    make_noise,
    run,
    scripted,
)

from sdvg_core.causal_wan.presets import get_schedule, renoise
from sdvg_core.engine.inputs import BlockCall, BlockInputs
from sdvg_core.engine.router import Reason, RouterConfig
from sdvg_core.engine.speculate import speculate
from sdvg_core.engine.types import Block, History, plan_spans, spans_of_clip

# --- one block at a time


@pytest.mark.parametrize("swapped", [False, True])
def test_a_history_keeps_pictures_for_whichever_model_asks_for_more(swapped):
    """Catches: a history that keeps only what the drafter, or only what the target, asks for."""
    engine = make_engine("incremental")
    recomputing = make_generator(2, engine.codec, "recompute", name="one")
    drafter, target = (recomputing, engine.target) if swapped else (engine.drafter, recomputing)
    engine = replace(engine, drafter=drafter, target=target)
    assert engine.horizon == 3
    assert len(run(engine, scripted("rarar"), blocks=5)) == 5


def test_each_block_is_yielded_as_soon_as_it_is_decided():
    engine = make_engine()
    stream = speculate(
        engine, scripted("r" + "a" * 8), plan_spans(9, 3), BlockInputs(make_noise(), lambda _: PROMPT)
    )
    for made in range(1, 4):
        next(stream)
        assert len(engine.target.calls) + len(engine.drafter.calls) == made


def test_the_scorer_reads_the_prompt_of_the_block():
    engine = make_engine()
    early = replace(condition(1), text="ball")
    late = replace(condition(2), text="cube")
    run(engine, RouterConfig(), blocks=5, condition_of=lambda i: early if i < 3 else late)
    assert engine.scorer.prompts == ["ball", "ball", "cube", "cube"]


# --- repair


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_repair_goes_on_from_the_drafts_own_trajectory(policy, step):
    """The target's first pass sees the draft's clean estimate after `step` steps, noised as for the next step."""
    engine = make_engine(policy, schedule="four-step")
    emitted = run(engine, scripted("rar", handover=step), blocks=3)
    history, span = emitted[1].history, emitted[2].block.span
    draft = make_engine(policy, schedule="four-step").drafter.generate(
        BlockCall(history, span, make_noise(), PROMPT)
    )

    schedule = get_schedule("four-step")
    seen = []
    target = make_engine(policy, schedule="four-step").target
    tree = target._model.tree
    tree.patch_embedding.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    again = target.generate(BlockCall(history, span, make_noise(), PROMPT, draft.predictions[:step]))
    draft_steps = renoise(draft.predictions[step - 1], make_noise().draw(span, step), schedule[step].sigma)
    assert torch.equal(seen[-(4 - step)], draft_steps)
    assert torch.equal(again.latents, emitted[2].block.latents)
    plain = run(make_engine(policy, schedule="four-step"), scripted("rar"), blocks=3)
    assert not torch.equal(plain[2].block.latents, emitted[2].block.latents)


# --- a prompt belongs to a block


@pytest.mark.parametrize("policy", POLICIES)
def test_after_a_change_of_prompt_blocks_are_what_fresh_models_make(policy):
    """Going back and forth between prompts leaves no stale K/V: each block equals one made from scratch."""
    prompts = [condition(i) for i in range(3)]
    emitted = run(make_engine(policy), scripted("rararar"), blocks=7, condition_of=lambda i: prompts[(i * 2) % 3])
    history = History(horizon=3)
    for one in emitted:
        fresh = make_engine(policy)
        author = fresh.drafter if one.record.author == "drafter" else fresh.target
        again = author.generate(BlockCall(history, one.block.span, make_noise(), one.block.condition)).latents
        assert torch.equal(again, one.block.latents)
        history = one.history


# --- clips that are already there


@pytest.mark.parametrize("policy", POLICIES)
def test_a_clip_made_in_two_goes_is_the_clip_made_in_one(policy):
    """Catches: noise numbered from the run instead of the clip; decode state or anchors lost at the seam."""
    whole = run(make_engine(policy), scripted("raaraarar"))
    first = latents_of(run(make_engine(policy), scripted("raaraarar"), blocks=4))
    engine = make_engine(policy)
    blocks = tuple(Block(s, first[:, :, s.start : s.stop], PROMPT) for s in spans_of_clip(12, 3))
    start, shown = history_of(blocks, engine.codec, engine.horizon)
    rest = run(engine, scripted("raaraarar"), blocks=5, start=start)
    assert torch.equal(torch.cat((first, latents_of(rest)), 2), latents_of(whole))
    assert torch.equal(torch.cat((shown, frames_of(rest)), 1), frames_of(whole))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drafter_context", ["committed", "own"])
def test_a_start_image_is_the_clips_first_frame_and_block_0_is_still_forced(policy, drafter_context):
    engine = make_engine(policy)
    image = torch.randn(1, 4, 1, 4, 4, generator=generator_of(8))
    start, shown = history_of((Block(spans_of_clip(1, 3)[0], image, PROMPT),), engine.codec, 3)
    emitted = run(engine, scripted("raar"), blocks=4, start=start, drafter_context=drafter_context)
    assert next(e.record.decision.reason for e in emitted) is Reason.FORCED
    assert [e.block.span.start for e in emitted] == [1, 4, 7, 10]
    assert shown.shape[1] == 1
    assert frames_of(emitted).shape[1] == 4 * 12
    at_once, _ = engine.codec.decode(torch.cat((image, latents_of(emitted)), 2))
    assert torch.equal(at_once[:, 1:], frames_of(emitted))
    without = run(make_engine(policy), scripted("raar"), blocks=4, drafter_context=drafter_context)
    assert not torch.equal(latents_of(without), latents_of(emitted))
