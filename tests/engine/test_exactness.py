"""What the design promises bit for bit, over real tiny generators in float32 on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from replayed import check_pattern, commit

from sdvg_core.causal_wan.generator import renoise
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, History, plan_spans, spans_of_clip
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.route import First, Route, TargetOnly
from sdvg_core.settings.schedules import get_schedule
from tests.support.thinned import every_pair
from tests.support.tiny import (
    CONTEXTS,
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

ALL_PATTERNS = ["r" + "".join(rest) for rest in itertools.product("ar", repeat=8)]
SAMPLE = [*ALL_PATTERNS[::37], "r" + "a" * 8, "r" * 9, "raaaaaaar", "rraaaaaaa"]


@pytest.mark.parametrize("drafter_context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pattern", SAMPLE)
def test_every_block_is_what_its_author_makes_there_and_shows_what_was_emitted(pattern, policy, drafter_context):
    """Catches: decoding the remake from the rejected draft's state."""
    check_pattern(pattern, partial(make_engine, policy), drafter_context)


@pytest.mark.exhaustive
@every_pair("policy, drafter_context", POLICIES, CONTEXTS)
def test_all_256_patterns_replay(policy, drafter_context):
    for pattern in ALL_PATTERNS:
        check_pattern(pattern, partial(make_engine, policy), drafter_context)


@pytest.mark.parametrize("drafter_context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_rejecting_all_is_target_only(policy, drafter_context):
    """Catches: noise drawn from a shared generator; the target conditioned on drafts; draft state kept."""
    rejected = run(make_engine(policy), scripted("r" * 9), drafter_context=drafter_context)
    alone = run(make_engine(policy), Route(TargetOnly()))
    assert torch.equal(latents_of(rejected), latents_of(alone))
    assert torch.equal(frames_of(rejected), frames_of(alone))


@pytest.mark.parametrize("policy", POLICIES)
def test_accepting_all_is_draft_only_but_for_block_0(policy):
    """In `own` context the drafts are those of draft-only; in `committed` they go on from the target's block 0."""
    draft_only = run(make_engine(policy), Route(First(0)))
    own = run(make_engine(policy), scripted("r" + "a" * 8), drafter_context="own")
    target_only = run(make_engine(policy), Route(TargetOnly()), blocks=1)
    assert torch.equal(latents_of(own[1:]), latents_of(draft_only[1:]))
    assert torch.equal(latents_of(own[:1]), latents_of(target_only))

    committed = run(make_engine(policy), scripted("r" + "a" * 8))
    anchor_only = run(make_engine(policy), Route(First(1)))
    assert torch.equal(latents_of(committed), latents_of(anchor_only))
    assert torch.equal(latents_of(committed[:1]), latents_of(target_only))
    unforced = run(make_engine(policy), scripted("a" * 9, forced_blocks=0))
    assert torch.equal(latents_of(unforced), latents_of(draft_only))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_makes_the_same_video_whatever_ran_before(policy):
    """Catches: caches that outlive their history, a memo keyed too loosely, global randomness."""
    engine = make_engine(policy)
    wanted = latents_of(run(engine, scripted("rarararar")))
    run(engine, scripted("raaaaaaaa"), seed=7, blocks=9)
    run(engine, Route(TargetOnly()), blocks=4, condition_of=lambda _: condition(9))
    torch.manual_seed(999)
    before = torch.random.get_rng_state()
    assert torch.equal(latents_of(run(engine, scripted("rarararar"))), wanted)
    assert torch.equal(torch.random.get_rng_state(), before), "global randomness is not written either"
    other = latents_of(run(engine, scripted("rarararar"), seed=43))
    assert not torch.equal(other, wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_interrupt_inside_a_pass_leaves_the_generator_usable(policy):
    """`before_pass` may raise at any forward pass; the next run with the same models is that of fresh ones."""
    passes: list[str] = []
    wanted = latents_of(run(make_engine(policy, before_pass=passes.append), scripted("raarar"), blocks=6))
    for stop_at in range(0, len(passes), 2):
        seen: list[str] = []

        def stop(kind: str, seen: list[str] = seen, stop_at: int = stop_at) -> None:
            seen.append(kind)
            if len(seen) == stop_at + 1:
                raise KeyboardInterrupt

        engine = make_engine(policy, before_pass=stop)
        with pytest.raises(KeyboardInterrupt):
            run(engine, scripted("raarar"), blocks=6)
        assert torch.equal(latents_of(run(engine, scripted("raarar"), blocks=6)), wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_generator_answers_for_any_history_in_any_order(policy):
    """Another history of the same length, of a greater one, of a shorter one, and the same under another prompt."""
    g = torch.Generator().manual_seed(3)

    def history_of(blocks: int, prompt) -> History:
        history = History(horizon=3)
        for span in plan_spans(blocks, 3):
            latents = torch.randn(1, 4, 3, 4, 4, generator=g)
            history = commit(history, Block(span, latents, prompt), torch.rand(1, 9, 3, 8, 8, generator=g))
        return history

    one, other = history_of(4, PROMPT), history_of(4, PROMPT)
    prompted = History(horizon=3)
    for block in one.blocks:
        prompted = commit(prompted, replace(block, condition=condition(8)), torch.rand(1, 9, 3, 8, 8, generator=g))
    busy = make_engine(policy).target
    for history in (one, other, history_of(6, PROMPT), history_of(2, PROMPT), one, prompted, one):
        span = plan_spans(1, 3, history.frames)[0]
        fresh = make_engine(policy).target.generate(BlockCall(history, span, make_noise(), PROMPT)).latents
        assert torch.equal(busy.generate(BlockCall(history, span, make_noise(), PROMPT)).latents, fresh)


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


def test_the_scorer_reads_the_prompt_of_the_block():
    engine = make_engine()
    early = replace(condition(1), text="ball")
    late = replace(condition(2), text="cube")
    run(engine, Route(), blocks=5, condition_of=lambda i: early if i < 3 else late)
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
    tree = target._model.wan.tree
    tree.patch_embedding.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    again = target.generate(BlockCall(history, span, make_noise(), PROMPT, draft.predictions[:step]))
    draft_steps = renoise(draft.predictions[step - 1], make_noise().draw(span, step), schedule[step].sigma)
    assert torch.equal(seen[-(4 - step)], draft_steps)
    assert torch.equal(again.latents, emitted[2].block.latents)
    plain = run(make_engine(policy, schedule="four-step"), scripted("rar"), blocks=3)
    assert not torch.equal(plain[2].block.latents, emitted[2].block.latents)


# --- a prompt belongs to a block


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
