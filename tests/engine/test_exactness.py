"""What the design promises bit for bit, over real tiny generators in float32 on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from thinned import every_pair
from tiny import (
    CONTEXTS,
    POLICIES,
    PROMPT,
    as_anchors,
    condition,
    frames_of,
    latents_of,
    make_engine,
    make_noise,
    run,
    scripted,
)
from torch import Tensor

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Block, History, plan_spans

ALL_PATTERNS = ["r" + "".join(rest) for rest in itertools.product("ar", repeat=8)]
AUTHORS = str.maketrans("rtad", "ttdd")
SAMPLE = [*ALL_PATTERNS[::37], "r" + "a" * 8, "r" * 9, "raaaaaaar", "rraaaaaaa"]


def commit(history: History, block: Block, frames: Tensor) -> History:
    """Extend a history by hand, so that replay does not lean on the loop's own way of committing."""
    newest = frames.shape[1] - 1
    anchors = as_anchors(*(frames[:, newest - 4 * back, None] for back in (2, 1, 0)))
    return history.commit(block, anchors)


def check_pattern(pattern: str, make: Callable[[], Engine], drafter_context: str) -> None:
    """Make every block again from the emitted history before it, with models that remember nothing of the run."""
    emitted = run(make(), scripted(pattern), blocks=len(pattern), drafter_context=drafter_context)
    assert "".join(e.record.author[0] for e in emitted) == pattern.translate(AUTHORS)
    fresh, own, history = make(), [], History(horizon=3)
    if drafter_context == "own":
        own = run(make(), RouterConfig(policy="first", forced_blocks=0), blocks=len(pattern))
    for number, one in enumerate(emitted):
        if one.record.author == "drafter" and own:
            again = own[number].block
        else:
            author = getattr(fresh, one.record.author)
            again = author.generate(BlockCall(history, one.block.span, make_noise(), PROMPT))
        assert torch.equal(again.latents, one.block.latents), f"block {number} is another"
        history = commit(history, one.block, one.frames)
    at_once, _ = fresh.codec.decode(latents_of(emitted))
    assert torch.equal(at_once, frames_of(emitted))


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
    alone = run(make_engine(policy), RouterConfig(policy="always-target"))
    assert torch.equal(latents_of(rejected), latents_of(alone))
    assert torch.equal(frames_of(rejected), frames_of(alone))


@pytest.mark.parametrize("policy", POLICIES)
def test_accepting_all_is_draft_only_but_for_block_0(policy):
    """In `own` context the drafts are those of draft-only; in `committed` they go on from the target's block 0."""
    draft_only = run(make_engine(policy), RouterConfig(policy="first", forced_blocks=0))
    own = run(make_engine(policy), scripted("r" + "a" * 8), drafter_context="own")
    target_only = run(make_engine(policy), RouterConfig(policy="always-target"), blocks=1)
    assert torch.equal(latents_of(own[1:]), latents_of(draft_only[1:]))
    assert torch.equal(latents_of(own[:1]), latents_of(target_only))

    committed = run(make_engine(policy), scripted("r" + "a" * 8))
    anchor_only = run(make_engine(policy), RouterConfig(policy="first"))
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
    run(engine, RouterConfig(policy="always-target"), blocks=4, condition_of=lambda _: condition(9))
    torch.manual_seed(999)
    assert torch.equal(latents_of(run(engine, scripted("rarararar"))), wanted)
    other = latents_of(run(engine, scripted("rarararar"), seed=43))
    assert not torch.equal(other, wanted)


@pytest.mark.parametrize("drafter_context", CONTEXTS)
def test_the_global_random_state_is_neither_read_nor_written(drafter_context):
    engine = make_engine()
    before = torch.random.get_rng_state()
    run(engine, RouterConfig(), drafter_context=drafter_context)
    assert torch.equal(torch.random.get_rng_state(), before)


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
