"""What a change makes anew and what it does not, in counted calls, and after a run that was stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reuse_runs import ROUTERS, WAYS, Asked, identities, made, parts_of, route, same, same_video, works
from thinned import every_pair, in_turn
from tiny import CONTEXTS, POLICIES, condition

from sdvg_core.engine.records import Seconds
from sdvg_core.engine.reuse import Reuse
from sdvg_core.engine.router import Reason, RouterConfig
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.store import Store
from sdvg_core.engine.types import Condition, DrafterContext, Work

# --- what is made, and what is not, in counts


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_request_again_calls_no_model(way: tuple[str, DrafterContext, bool]) -> None:
    policy, context, ahead = way
    asked = Asked(policy=policy, context=context, ahead=ahead, blocks=6)
    store = Store()
    first, again = made(asked, store), made(asked, store)
    same(again, first)
    assert first.calls
    assert (again.calls, again.parts.scorer.calls) == ([], 0)
    assert again.parts.codec.decodes == asked.blocks, "each block once, to be shown"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_last_draft_that_another_tau_keeps_makes_nothing(policy: str) -> None:
    store = Store()
    strict = made(Asked(policy=policy, router=RouterConfig(tau=0.3)), store)
    mild = made(Asked(policy=policy, router=RouterConfig(tau=0.1)), store)
    assert (route(strict)[:-1], route(strict)[-1], route(mild)[-1]) == (route(mild)[:-1], "r", "a")
    assert (mild.calls, mild.parts.scorer.calls, mild.reused) == ([], 0, 9)
    same(mild, made(Asked(policy=policy, router=RouterConfig(tau=0.1))))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_last_draft_that_another_tau_rejects_costs_the_target_one_block_and_no_draft(policy: str) -> None:
    store = Store()
    made(Asked(policy=policy, router=RouterConfig(tau=0.1)), store)
    strict = made(Asked(policy=policy, router=RouterConfig(tau=0.3)), store)
    assert route(strict)[-1] == "r"
    assert (strict.asked_of("drafter"), strict.asked_of("target"), strict.reused) == ([], [8], 8)
    same(strict, made(Asked(policy=policy, router=RouterConfig(tau=0.3))))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_more_blocks_make_only_those_that_are_new(policy: str, context: DrafterContext) -> None:
    store = Store()
    made(Asked(policy=policy, context=context, blocks=6), store)
    longer = made(Asked(policy=policy, context=context, blocks=9), store)
    assert longer.reused == 6
    assert {index for _, index in longer.calls} == {6, 7, 8}
    same(longer, made(Asked(policy=policy, context=context, blocks=9)))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_another_prompt_from_block_6_on_re_uses_the_first_five(policy: str, context: DrafterContext) -> None:
    asked, store = Asked(policy=policy, context=context), Store()
    made(asked, store)
    changed = replace(asked, prompts=(*asked.prompts, (5, 6, "a blue cube")))
    again = made(changed, store)
    assert again.reused == 5
    assert min(index for _, index in again.calls) == 5
    assert [record.prompt for record in again.records] == ["a red ball"] * 5 + ["a blue cube"] * 4
    same(again, made(changed))


def test_a_prompt_in_other_words_with_the_same_embedding_and_gate_text_is_told_by_its_new_words() -> None:
    asked, store = Asked(blocks=3), Store()
    made(asked, store)
    parts = parts_of(asked)
    words = Condition(condition(5).embedding, "ein roter Ball", "a red ball")
    run = plan_run(
        parts.engine,
        asked.router,
        lambda _: words,
        blocks=3,
        seed=42,
        width=8,
        height=8,
        reuse=Reuse(store=store, identities=identities(asked)),
    )
    assert [record.prompt for record in run.reused] == ["ein roter Ball"] * 3
    assert all(block.condition is words for block in run.reused_blocks)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_take_of_block_6_re_uses_the_first_five(policy: str, context: DrafterContext) -> None:
    """Catches: a key without the take."""
    asked, store = Asked(policy=policy, context=context), Store()
    first = made(asked, store)
    changed = replace(asked, takes="6:2")
    again = made(changed, store)
    assert again.reused == 5
    assert 5 in {index for _, index in again.calls}
    same(again, made(changed))
    assert not torch.equal(again.latents[:, :, 15:], first.latents[:, :, 15:])


@pytest.mark.parametrize("policy", POLICIES)
def test_another_target_re_uses_nothing_where_it_makes_block_1(policy: str) -> None:
    """Catches: a key without the identity of the model."""
    store = Store()
    made(Asked(policy=policy), store)
    changed = Asked(policy=policy, target=3)
    again = made(changed, store)
    assert again.reused == 0
    same(again, made(changed))


@pytest.mark.parametrize("policy", POLICIES)
def test_another_drafter_re_uses_the_forced_block_1_and_no_more(policy: str) -> None:
    """Catches: a key without the identity of the model."""
    store = Store()
    made(Asked(policy=policy), store)
    changed = Asked(policy=policy, drafter=3)
    again = made(changed, store)
    assert again.reused == 1
    assert again.asked_of("drafter") == list(range(1, 9))
    same(again, made(changed))


def test_another_clip_to_continue_re_uses_nothing() -> None:
    """Catches: a clip that goes by its shape alone."""
    store = Store()
    made(Asked(clip=(71, 3), blocks=3), store)
    for clip in ((72, 3), (71, 6), None):
        changed = Asked(clip=clip, blocks=3)
        again = made(changed, store)
        assert again.reused == 0
        same(again, made(changed))
    assert made(Asked(clip=(71, 3), blocks=3), store).calls == []


def test_another_prompt_over_the_clip_to_continue_is_another_context() -> None:
    """Catches: a key without the conditions of earlier blocks, which a kept cache is written with."""
    asked = Asked(
        policy="incremental", clip=(71, 3), blocks=2, prompts=((0, 5, "a red ball"), (1, 6, "a blue cube"))
    )
    store = Store()
    first = made(asked, store)
    changed = replace(asked, prompts=((0, 7, "a red ball"), (1, 6, "a blue cube")))
    again = made(changed, store)
    assert again.reused == 0
    same(again, made(changed))
    assert not torch.equal(again.latents, first.latents)


def test_another_gate_text_scores_the_same_drafts_anew() -> None:
    """Catches: scores that are kept without the text they are of."""
    store = Store()
    made(Asked(router=RouterConfig(tau=-9)), store)
    changed = Asked(router=RouterConfig(tau=-9), prompts=((0, 5, "a red ball!"),))
    again = made(changed, store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (1, [], 8)
    same(again, made(changed))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_draft_that_was_kept_without_its_first_estimates_is_made_again_for_a_repair(
    policy: str, context: DrafterContext
) -> None:
    """Catches: the block itself handed over to the target as if it were the first estimate."""
    asked, store = Asked(policy=policy, context=context), Store()
    made(asked, store)
    repaired = asked.with_router(handover=1)
    again = made(repaired, store)
    same(again, made(repaired))
    rejected = [n for n, record in enumerate(again.records) if record.decision.reason is Reason.FELL_SHORT]
    assert set(rejected[:1]) <= set(again.asked_of("drafter"))
    assert made(repaired, store).calls == [], "now the first estimates are kept too"
    plain = made(asked, store)
    assert plain.calls == [], "the longer results serve a run without repair as well"
    same(plain, made(asked))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_block_given_to_the_target_takes_over_the_steps_of_its_rejected_draft(
    policy: str, context: DrafterContext
) -> None:
    """Catches: steps of a draft that have another name when they were made as part of a whole one."""
    asked, store = Asked(policy=policy, context=context, router=ROUTERS["repair"]), Store()
    before = made(asked, store)
    fates = "".join("d" if record.decision.accepted else "t" for record in before.records)
    directed = replace(asked, directions=fates)
    again = made(directed, store)
    same_video(again, before)
    assert again.calls == []


def test_steps_that_were_handed_over_are_kept_for_the_next_run() -> None:
    """Catches: a block that is begun anew because only its first steps are there."""
    asked, store = Asked(router=RouterConfig(policy="first", forced_blocks=4, handover=1)), Store()
    made(asked, store)
    more = asked.with_router(forced_blocks=5)
    again = made(more, store)
    assert again.reused == 4
    # Block 4 was drafted whole for the first run, without the estimates that a handover needs from now on.
    assert [call for call in again.calls if call[1] == 4] == [("target after 12", 4)]
    same(again, made(more))
    assert made(asked, store).calls == []


@pytest.mark.parametrize("policy", POLICIES)
def test_another_tau_of_the_relative_gate_scores_nothing_twice(policy: str) -> None:
    """Catches: a last frame's score that is kept under a draft's key, or not at all."""
    asked, store = Asked(policy=policy, router=ROUTERS["relative"]), Store()
    before = made(asked, store)
    assert {"a", "r"} == set(route(before)[1:])
    again = made(asked.with_router(tau=-2.5), store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (9, [], 0)
    same_video(again, before)
    changed = asked.with_router(tau=-100.0)
    same(made(changed, store), made(changed))


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_that_are_re_used_cost_no_seconds_and_no_passes(policy: str) -> None:
    """Catches: the seconds of looking into the store in the records of re-used blocks."""
    asked, store = Asked(policy=policy), Store()
    first, again = made(asked, store), made(asked, store)
    assert sum(record.seconds.total for record in first.records) > 0
    for before, record in zip(first.records, again.records, strict=True):
        assert record.seconds == Seconds()
        assert works(record) in ([None, None], [Work(), None], [None, Work()], [Work(), Work()])
        assert [work is None for work in works(record)] == [work is None for work in works(before)]
        assert (record.decodes, record.reused, before.reused) == (1, True, False)


def test_a_block_of_an_earlier_run_that_comes_up_in_the_middle_is_not_made_again() -> None:
    """After a block that is made, the loop may meet one that is known: then it costs no passes either."""
    store = Store()
    made(Asked(directions="tttttt", blocks=6), store)
    made(Asked(directions="ttdddd", blocks=6), store)
    # The draft of block 3 is known, but not its scores; the target's block 3 and what follows it are known.
    again = made(Asked(directions="ttrttt", blocks=6), store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (2, [], 1)
    assert [works(record)[1] for record in again.records] == [Work()] * 6
    assert [record.reused for record in again.records] == [True] * 2 + [False] * 4
    same(again, made(Asked(directions="ttrttt", blocks=6)))


# --- runs that were stopped


class Stop(Exception):
    """What a test interrupts a run with."""


def passes_of(asked: Asked) -> int:
    passes: list[str] = []
    made(asked, parts=parts_of(asked, passes.append))
    return len(passes)


@in_turn("way, router", WAYS, ["reward", "repair", "relative", "handover"], ids=str)
def test_a_run_stopped_at_any_pass_makes_no_finished_block_again(
    way: tuple[str, DrafterContext, bool], router: str
) -> None:
    policy, context, ahead = way
    asked = Asked(policy=policy, context=context, ahead=ahead, router=ROUTERS[router], blocks=3)
    alone = replace(asked, ahead=False)
    whole, passes = made(alone), passes_of(alone)
    if router in ("reward", "repair"):
        assert {"a", "r"} == set(route(whole)[1:])
    for number in range(1, passes + 1):
        count, store = 0, Store()

        def before_pass(kind: str, number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise Stop

        parts = parts_of(asked, before_pass)
        with pytest.raises(Stop):
            made(asked, store, parts)
        again = made(asked, store)
        same(again, whole)
        assert not set(again.calls) & set(parts.done), f"stopped at pass {number}"
        if not ahead:
            assert sorted(parts.done + again.calls) == sorted(whole.calls)
