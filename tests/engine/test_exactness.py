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
    random_tree,
    run,
    scripted,
)

ALL_PATTERNS = ["r" + "".join(rest) for rest in itertools.product("ar", repeat=8)]
SAMPLE = [*ALL_PATTERNS[::37], "r" + "a" * 8, "r" * 9, "raaaaaaar", "rraaaaaaa"]


@every_pair("pattern, policy, drafter_context", SAMPLE, POLICIES, CONTEXTS)
def test_every_block_replays_from_emitted_history(pattern, policy, drafter_context):
    """Catches: decoding the remake from the rejected draft's state."""
    check_pattern(pattern, partial(make_engine, policy), drafter_context)


@pytest.mark.exhaustive
@every_pair("policy, drafter_context", POLICIES, CONTEXTS)
def test_all_256_patterns_replay(policy, drafter_context):
    for pattern in ALL_PATTERNS:
        check_pattern(pattern, partial(make_engine, policy), drafter_context)


@pytest.mark.parametrize("policy", POLICIES)
def test_keeping_all_in_own_context_is_draft_only(policy):
    """But for the target's block 0. Catches: drafts that follow from that block."""
    kept = run(make_engine(policy), scripted("r" + "a" * 8), drafter_context="own")
    draft_only = run(make_engine(policy), Route(First(0)))
    target_only = run(make_engine(policy), Route(TargetOnly()), blocks=1)
    assert torch.equal(latents_of(kept[1:]), latents_of(draft_only[1:]))
    assert torch.equal(latents_of(kept[:1]), latents_of(target_only))


@pytest.mark.parametrize("policy", POLICIES)
def test_keeping_all_in_committed_context_is_anchor_only(policy):
    """Catches: drafts that do not follow from the target's block 0."""
    kept = run(make_engine(policy), scripted("r" + "a" * 8))
    anchor_only = run(make_engine(policy), Route(First(1)))
    assert torch.equal(latents_of(kept), latents_of(anchor_only))


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_makes_the_same_video(policy):
    """Whatever ran before. Catches: caches that outlive their history, a memo keyed too loosely."""
    engine = make_engine(policy)
    expected = latents_of(run(engine, scripted("rarararar")))
    other_seed = run(engine, scripted("rarararar"), seed=43)
    run(engine, Route(TargetOnly()), blocks=4, condition_of=lambda _: condition(9))
    assert torch.equal(latents_of(run(engine, scripted("rarararar"))), expected)
    assert not torch.equal(latents_of(other_seed), expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_global_randomness_is_neither_read_nor_written(policy):
    """Catches: noise from torch's shared generator, and a run that seeds it."""
    expected = latents_of(run(make_engine(policy), scripted("rar"), blocks=3))
    engine = make_engine(policy)
    torch.manual_seed(999)
    state = torch.random.get_rng_state()
    assert torch.equal(latents_of(run(engine, scripted("rar"), blocks=3)), expected)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("policy", POLICIES)
def test_interrupted_pass_leaves_the_generator_usable(policy):
    """`before_pass` may raise at any forward pass; the next run with the same models is that of fresh ones."""
    passes: list[str] = []
    expected = latents_of(run(make_engine(policy, before_pass=passes.append), scripted("raar"), blocks=4))
    for number in range(1, len(passes) + 1, 2):
        engine = make_engine(policy, before_pass=interrupt_at(number))
        with pytest.raises(KeyboardInterrupt):
            run(engine, scripted("raar"), blocks=4)
        assert torch.equal(latents_of(run(engine, scripted("raar"), blocks=4)), expected)


def interrupt_at(number):
    """Return a callback that raises at the pass of this number, and at no later one."""
    passes = itertools.count(1)

    def before_pass(kind):
        if next(passes) == number:
            raise KeyboardInterrupt

    return before_pass


@pytest.mark.parametrize("policy", POLICIES)
def test_generator_answers_for_any_history_in_any_order(policy):
    """Another history of the same length, of a greater one, of a shorter one, and the same under another prompt."""
    first = random_history(blocks=4, seed=3)
    others = (
        random_history(blocks=4, seed=4),
        random_history(blocks=6, seed=5),
        random_history(blocks=2, seed=6),
        random_history(blocks=4, seed=3, prompt=condition(8)),
    )
    generator = make_engine(policy).target
    for history in (first, *others[:3], first, others[3], first):
        call = BlockCall(history, plan_spans(1, 3, history.frames)[0], make_noise(), PROMPT)
        fresh = make_engine(policy).target
        assert torch.equal(generator.generate(call).latents, fresh.generate(call).latents)


def random_history(blocks, seed, prompt=PROMPT):
    source = generator_of(seed)
    history = History(horizon=3)
    for span in plan_spans(blocks, 3):
        block = Block(span, torch.randn(1, 4, 3, 4, 4, generator=source), prompt)
        history = commit(history, block, torch.rand(1, 9, 3, 8, 8, generator=source))
    return history


# --- one block at a time


@pytest.mark.parametrize("role", ["drafter", "target"])
def test_history_keeps_pictures_for_either_model(role):
    """Catches: a history that keeps only what the drafter, or only what the target, asks for."""
    incremental = make_engine("incremental")
    recomputing = make_generator(2, incremental.codec, "recompute")
    engine = replace(incremental, **{role: recomputing})
    assert engine.horizon == 3
    assert len(run(engine, scripted("rarar"), blocks=5)) == 5


def test_scorer_reads_the_prompt_of_the_block():
    engine = make_engine()
    ball = condition(1, "ball")
    cube = condition(2, "cube")
    run(engine, Route(), blocks=5, condition_of=lambda index: ball if index < 3 else cube)
    assert engine.scorer.prompts == ["ball", "ball", "cube", "cube"]


# --- repair


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_repair_continues_the_trajectory_of_the_draft(policy, step):
    """The target's first pass sees the draft's clean estimate after `step` steps, noised as for the next step."""
    emitted = run(make_engine(policy, schedule="four-step"), scripted("rar", handover=step), blocks=3)
    repaired = emitted[2].block
    fresh = make_engine(policy, schedule="four-step", tree_of=random_tree)
    call = BlockCall(emitted[1].history, repaired.span, make_noise(), PROMPT)
    draft = fresh.drafter.generate(call)
    inputs = []
    patches = fresh.target._model.wan.tree.patch_embedding
    patches.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    finished = fresh.target.generate(replace(call, handed_over=draft.predictions[:step]))
    noise = make_noise().draw(repaired.span, step)
    sigma = get_schedule("four-step")[step].sigma
    assert torch.equal(inputs[step - 4], renoise(draft.predictions[step - 1], noise, sigma))
    assert torch.equal(finished.latents, repaired.latents)


@pytest.mark.parametrize("policy", POLICIES)
def test_repair_differs_from_a_whole_remake(policy):
    """Catches: a handover that is asked for and not done."""
    repaired, remade = (
        run(make_engine(policy, schedule="four-step"), scripted("rar", handover=step), blocks=3) for step in (1, 0)
    )
    assert not torch.equal(repaired[2].block.latents, remade[2].block.latents)


# --- clips that are already there


@pytest.mark.parametrize("policy", POLICIES)
def test_clip_made_in_two_runs_equals_one_run(policy):
    """Catches: noise numbered from the run instead of the clip; decode state or anchors lost at the seam."""
    whole = run(make_engine(policy), scripted("raaraarar"))
    first = latents_of(run(make_engine(policy), scripted("raaraarar"), blocks=4))
    engine = make_engine(policy)
    blocks = tuple(Block(span, first[:, :, span.start : span.stop], PROMPT) for span in spans_of_clip(12, 3))
    start, first_frames = history_of(blocks, engine.codec, engine.horizon)
    rest = run(engine, scripted("raaraarar"), blocks=5, start=start)
    assert torch.equal(torch.cat((first, latents_of(rest)), 2), latents_of(whole))
    assert torch.equal(torch.cat((first_frames, frames_of(rest)), 1), frames_of(whole))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drafter_context", CONTEXTS)
def test_start_image_is_the_first_frame(policy, drafter_context):
    """And block 0 after it is still forced. Catches: a decoder or a model that does not begin with the image."""
    engine = make_engine(policy)
    image = torch.randn(1, 4, 1, 4, 4, generator=generator_of(8))
    start, image_frames = history_of((Block(spans_of_clip(1, 3)[0], image, PROMPT),), engine.codec, 3)
    emitted = run(engine, scripted("raar"), blocks=4, start=start, drafter_context=drafter_context)
    assert emitted[0].record.decision.reason is Reason.FORCED
    assert [shown.block.span.start for shown in emitted] == [1, 4, 7, 10]
    assert image_frames.shape[1] == 1
    decoded_at_once, _ = engine.codec.decode(torch.cat((image, latents_of(emitted)), 2))
    assert torch.equal(decoded_at_once[:, 1:], frames_of(emitted))
    without_image = run(make_engine(policy), scripted("raar"), blocks=4, drafter_context=drafter_context)
    assert not torch.equal(latents_of(without_image), latents_of(emitted))
