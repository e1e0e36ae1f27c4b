"""What a store of earlier results may change of a run: which models are called, and nothing else.

Bit for bit over tiny generators: what is made with a store is compared with what is made from nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from small_runs import ROUTERS, Asked, made, part_keys, parts_of, route, same, same_video

from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.reuse import PixelStore, Reuse, Store
from sdvg_core.engine.types import Condition, Cost
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.request import DrafterContext
from sdvg_core.settings.route import Custom, First, Gate, Mean, Route, Stride, TargetOnly, WorstFrame
from tests.support.routers import PlannedRouter, planned_route
from tests.support.thinned import every_pair, in_turn
from tests.support.tiny import (
    CONTEXTS,
    LONG,
    POLICIES,
    condition,
    planned,
)

# Overlap refuses a drafter that needs the pixels of its own drafts.
WAYS = list(product(POLICIES, CONTEXTS))


def works(record: BlockRecord) -> list[Cost | None]:
    return [work and replace(work, context_seconds=0.0) for work in (record.draft, record.target)]


# --- cut after any block

KINDS_OF_RUN = {
    **{name: {"route": router} for name, router in ROUTERS.items()},
    "bail-out": {"route": planned_route("raarraaaa", bail_out=2)},
    "stride": {"route": Route(Stride(3), handover=1)},
    "frame-wise": {"route": ROUTERS["repair"], "own_frames": 1},
    "short drafts": {"route": ROUTERS["cascade"], "schedule": "1000,800,625", "draft_steps": 1},
    "after a clip": {"clip": (71, 6)},
}


def check_cut(asked: Asked, store: Store, cuts: tuple[int, ...]) -> None:
    """Fill a store by a whole run, which costs nothing; one that knows the blocks up to a cut ends as it did."""
    whole, alone = made(asked, store), made(asked)
    same(whole, alone)
    assert whole.calls == alone.calls
    assert list(map(works, whole.records)) == list(map(works, alone.records))
    for cut in cuts:
        known = Store()
        for used in whole.used[:cut]:
            for key, result in used.items():
                known.put(key, result)
        again = made(asked, known)
        assert again.reused == cut
        same(again, whole)


@in_turn("kind, context, policy", KINDS_OF_RUN, CONTEXTS, POLICIES)
def test_a_run_that_knows_what_its_first_blocks_were_made_from_ends_as_if_it_had_not_been_cut(
    policy, context, kind
):
    """Catches: a first block compared with nothing, rejections in a row forgotten, a score of the block after."""
    asked, store = Asked(policy=policy, context=context, **KINDS_OF_RUN[kind]), Store()
    check_cut(asked, store, (1, 5, 8))


TWO_SCENES = {"prompts": ((0, 5, "a red ball"), (4, 6, "a blue ball")), "cuts": (4,), "hold": 0.3}


@in_turn("policy, context, own_frames", tuple(LONG), CONTEXTS, (1, 3))
def test_a_long_clip_that_was_cut_after_any_block_ends_as_if_it_had_not(policy, context, own_frames):
    """Catches: a scene, a flush or a hold that follows from what a generator happened to see before."""
    asked, store = Asked(policy=policy, context=context, own_frames=own_frames, **TWO_SCENES), Store()
    check_cut(asked, store, (2, 6))
    for change in ({"hold": 0.0}, {"hold": 0.5}, {"cuts": ()}):
        changed = replace(asked, **change)
        again = made(changed, store)
        same(again, made(changed))
        assert again.reused == (4 if "cuts" in change else 0)


def test_the_bail_out_of_these_runs_does_depend_on_what_was_before():
    assert [d.reason for d in made(Asked(**KINDS_OF_RUN["bail-out"])).decisions][-4:] == [Reason.BAILED_OUT] * 4


# --- pairs of runs: each of these is another in the second one

BALL, CUBE, LATER = (0, 5, "a red ball"), (1, 6, "a blue cube"), (5, 6, "a blue cube")
BASES = (
    Asked(blocks=5, route=Route(Gate(0.3), handover=1), directions="...d."),
    Asked(blocks=5, policy="incremental", route=Route(Gate(0.6, bail_out=2)), own_frames=1),
    Asked(blocks=5, policy="incremental", context="own", clip=(71, 3), takes="2:2"),
    Asked(blocks=5, context="own", clip=(71, 4), route=Route(Gate(0.0, forced_blocks=2)), own_frames=1),
)
VARIED: dict[str, dict[str, Any]] = {
    "seed": {"seed": 43},
    "drafter": {"drafter": 3},
    "target": {"target": 3},
    "roles": {"drafter": 2, "target": 1},
    "schedule": {"schedule": "1000,500"},
    "codec": {"codec": "pale"},
    "clip": {"clip": (72, 4)},
    "length of the clip": {"clip": (71, 6)},
    "no clip": {"clip": None},
    "takes": {"takes": "2:3, 4:2"},
    "directions": {"directions": ".rtda"},
    "blocks": {"blocks": 7, "directions": "", "takes": ""},
    "prompt": {"prompts": (BALL, (3, 6, "a red ball"))},
    "text": {"prompts": ((0, 5, "a red ball   "),)},
    "context": {"context": "own"},
    "tau": {"policy": {"tau": 0.8}},
    "cascade": {"policy": {"by": WorstFrame(0.2)}},
    "tau of a cascade": {"policy": {"by": WorstFrame(0.1), "tau": 0.5}},
    "draft steps": {"draft_steps": 1},
    "handover": {"handover": 1},
    "forced blocks": {"policy": {"forced_blocks": 3}},
    "bail-out": {"policy": {"tau": 0.9, "bail_out": 1}},
    "aggregation": {"policy": {"by": Mean()}},
    "first": {"policy": First(1)},
    "stride": {"policy": Stride(2)},
    "target only": {"policy": TargetOnly()},
}


def varied(asked: Asked, change: str) -> Asked:
    changes = dict(VARIED[change])
    policy = changes.pop("policy", {})
    changed = asked.with_policy(**policy) if isinstance(policy, dict) else asked.by(policy)
    route = replace(changed.route, handover=changes.pop("handover", changed.route.handover))
    return replace(changed, **{"route": route, **changes})


ROOMY = 1e9


def check_pair(earlier: Asked, changed: Asked, room: float) -> None:
    """`room`: bytes for decoded frames and decoder states."""
    store, pixels = Store(1e9), PixelStore()
    made(earlier, store, pixels=pixels)
    store.limit = store.bytes + room
    again, nothing = made(changed, store, pixels=pixels), made(changed)
    same(again, nothing)
    called = {index for _, index in again.calls}
    assert not any(record.reused for record in again.records if record.span.index in called)
    assert set(again.calls) <= set(nothing.calls)
    last = made(changed, store, pixels=pixels)
    same(last, nothing)
    assert last.reused == changed.blocks or room < ROOMY, "of the same request nothing is left to make"


@in_turn("change, room, base", VARIED, (ROOMY, ROOMY, 60_000.0, 0.0, ROOMY), BASES)
def test_a_run_after_another_one_is_bit_for_bit_the_run_from_nothing(change: str, room: float, base: Asked) -> None:
    """Both after each other. Catches: every mistake of this file's list that changes a video."""
    check_pair(base, varied(base, change), room)
    check_pair(varied(base, change), base, room)


# --- what is made, and what is not, in counts

BASE, STRICT, MILD = Asked(), Asked(route=Route(Gate(0.3))), Asked(route=Route(Gate(0.1)))
LAX = Asked(route=Route(Gate(-9)), blocks=6)
CLIP = Asked(clip=(71, 3), blocks=3)
NEW_PROMPT = Asked(clip=(71, 3), blocks=2, prompts=(BALL, CUBE))
OTHER_PROMPT = replace(NEW_PROMPT, prompts=((0, 7, "a red ball"), CUBE))
# The earlier request, the changed one, and of the latter: blocks re-used, those asked of each model, and scores.
CHANGES = {
    "a tau that keeps the last draft": (STRICT, MILD, 9, [], [], 0),
    "a tau that rejects the last draft": (MILD, STRICT, 8, [], [8], None),
    "more blocks": (replace(BASE, blocks=6), BASE, 6, None, None, None),
    "another prompt from block 6 on": (BASE, replace(BASE, prompts=(BALL, LATER)), 5, None, None, None),
    "a take of block 6": (BASE, replace(BASE, takes="6:2"), 5, None, None, None),
    "another target": (BASE, replace(BASE, target=3), 0, None, None, None),
    "another drafter": (BASE, replace(BASE, drafter=3), 1, list(range(1, 9)), None, None),
    "another clip": (CLIP, replace(CLIP, clip=(72, 3)), 0, None, None, None),
    "a longer clip": (CLIP, replace(CLIP, clip=(71, 6)), 0, None, None, None),
    "no clip": (CLIP, replace(CLIP, clip=None), 0, None, None, None),
    "another prompt over the clip": (NEW_PROMPT, OTHER_PROMPT, 0, None, None, None),
    "another text": (LAX, replace(LAX, prompts=((0, 5, "a red ball!"),)), 1, [], [], 5),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_change_makes_anew(policy: str, change: str) -> None:
    """Catches: a key without the take, the model, the clip's content or an earlier prompt; scores without text."""
    before, after, reused, drafted, by_target, scored = CHANGES[change]
    before, after, store = replace(before, policy=policy), replace(after, policy=policy), Store()
    first, again = made(before, store), made(after, store)
    same(again, made(after))
    assert again.reused == reused
    assert all(index >= reused for _, index in again.calls)
    assert drafted is None or again.asked_of("drafter") == drafted
    assert by_target is None or again.asked_of("target") == by_target
    assert scored is None or again.parts.scorer.calls == scored
    if "tau" not in change and change not in ("more blocks", "another text", "another prompt over the clip"):
        assert not torch.equal(again.latents[:, :, 3 * reused :], first.latents[:, :, 3 * reused :])


def test_a_prompt_in_other_words_with_the_same_embedding_is_told_by_its_new_words() -> None:
    asked, store = Asked(blocks=3), Store()
    made(asked, store)
    parts = parts_of(asked)
    words = Condition(condition(5).embedding, "ein roter Ball")
    reuse = Reuse(store=store, part_keys=part_keys(asked))
    run = planned(parts.engine, asked.route, condition_of=lambda _: words, blocks=3, reuse=reuse)
    shown = list(run.blocks())
    assert [block.record.prompt for block in shown] == ["ein roter Ball"] * 3
    assert all(block.block.condition is words for block in shown)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_a_draft_that_was_kept_without_its_first_estimates_is_made_again_for_a_repair(
    policy: str, context: DrafterContext
) -> None:
    """Catches: the block itself handed over to the target as if it were the first estimate."""
    asked, store = Asked(policy=policy, context=context), Store()
    made(asked, store)
    repaired = replace(asked, route=replace(asked.route, handover=1))
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
    """By its policy. Catches: steps of a draft with another name when they were made as part of a whole one."""
    asked, store = Asked(policy=policy, context=context, route=ROUTERS["repair"]), Store()
    before = made(asked, store)
    plan = "".join("d" if record.decision.accepted else "t" for record in before.records)
    again = made(asked.by(Custom(PlannedRouter(plan))), store)
    same_video(again, before)
    assert again.calls == []


def test_a_block_of_an_earlier_run_that_comes_up_in_the_middle_is_not_made_again() -> None:
    """After a block whose draft is scored, the loop meets known ones: they count as made earlier too."""
    store = Store()
    made(Asked(directions="tttttt", blocks=6), store)
    made(Asked(directions="ttdddd", blocks=6), store)
    # The draft of block 3 is known, but not its scores; the target's block 3 and what follows it are known.
    again = made(Asked(directions="ttrttt", blocks=6), store)
    assert (again.reused, again.calls, again.parts.scorer.calls) == (2, [], 1)
    assert [works(record)[1] for record in again.records] == [Cost()] * 6
    assert [record.reused for record in again.records] == [True, True, False, True, True, True]
    same(again, made(Asked(directions="ttrttt", blocks=6)))


# --- runs that were stopped


class Stop(Exception):
    """What a test interrupts a run with."""


@in_turn("way, router", WAYS, ["reward", "repair", "handover"], ids=str)
def test_a_run_stopped_at_any_pass_makes_no_finished_block_again(
    way: tuple[str, DrafterContext], router: str
) -> None:
    policy, context = way
    asked = Asked(policy=policy, context=context, route=ROUTERS[router], blocks=3)
    passes: list[str] = []
    whole = made(asked, parts=parts_of(asked, passes.append))
    if router in ("reward", "repair"):
        assert {"a", "r"} == set(route(whole)[1:])
    for number in range(1, len(passes) + 1):
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
        assert sorted(parts.done + again.calls) == sorted(whole.calls)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_draft_whose_every_step_is_handed_over_is_kept_as_any_other(steps):
    """Catches: one step kept without its only prediction, which ended the run; two, never found again."""
    asked = Asked(
        schedule="1000,800,625",
        draft_steps=steps,
        route=Route(TargetOnly(), handover=steps),
        blocks=3,
    )
    store = Store(1 << 30)
    fresh = made(asked)
    same(made(asked, store), fresh)
    again = made(replace(asked, seed=asked.seed), store)
    same(again, fresh)
    assert not again.parts.begun
    further = made(asked.by(Gate(9.0, forced_blocks=0)), store)
    assert len(further.records) == 3
