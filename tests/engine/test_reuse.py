"""What a store of earlier results may change of a run: which models are called, and nothing else.

Bit for bit over tiny generators: what is made with a store is compared with what is made from nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest
from small_runs import (
    ROUTERS,
    TinyRequest,
    assert_same_run,
    assert_same_video,
    authors,
    fresh_run,
    part_keys,
    parts_of,
    play,
    store_after,
    stored_run,
)

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


def costs(record: BlockRecord) -> list[Cost | None]:
    """Return what draft and target of a block cost, without what is measured in seconds."""
    return [cost and replace(cost, context_seconds=0.0) for cost in (record.draft, record.target)]


# --- cut after any block

KINDS_OF_RUN = {
    **{name: {"route": router} for name, router in ROUTERS.items()},
    "bail-out": {"route": planned_route("raarraaaa", bail_out=2)},
    "stride": {"route": Route(Stride(3), handover=1)},
    "frame-wise": {"route": ROUTERS["repair"], "own_frames": 1},
    "short drafts": {"route": ROUTERS["cascade"], "schedule": "1000,800,625", "draft_steps": 1},
    "after a clip": {"clip": (71, 6)},
}


def check_cuts(request: TinyRequest, *cuts: int) -> None:
    """Fill a store by a whole run, which changes nothing of it; then run on from the results up to each cut."""
    whole = stored_run(request)
    fresh = fresh_run(request)
    assert_same_run(whole, fresh)
    assert whole.calls == fresh.calls
    assert list(map(costs, whole.records)) == list(map(costs, fresh.records))
    for cut in cuts:
        continued = play(request, store_after(whole, cut))
        assert continued.reused == cut
        assert_same_run(continued, whole)


@in_turn("kind, context, policy", KINDS_OF_RUN, CONTEXTS, POLICIES)
def test_run_cut_anywhere_ends_the_same(policy, context, kind):
    """Catches: a first block compared with nothing, rejections in a row forgotten, a score of the block after."""
    check_cuts(TinyRequest(policy=policy, context=context, **KINDS_OF_RUN[kind]), 1, 5, 8)


TWO_SCENES = {"blocks": 7, "prompts": ((0, 5, "a red ball"), (4, 6, "a blue ball")), "cuts": (4,), "hold": 0.3}


@in_turn("policy, context, own_frames", tuple(LONG), CONTEXTS, (1, 3))
def test_long_clip_cut_anywhere_ends_the_same(policy, context, own_frames):
    """Catches: a scene, a flush or a hold that follows from what a generator happened to see before."""
    request = TinyRequest(policy=policy, context=context, own_frames=own_frames, **TWO_SCENES)
    check_cuts(request, 2, 5)


@in_turn(
    "change, policy, context, own_frames",
    ({"hold": 0.0}, {"hold": 0.5}, {"cuts": ()}),
    tuple(LONG),
    CONTEXTS,
    (1, 3),
)
def test_changed_scene_or_hold_is_made_again(change, policy, context, own_frames):
    """Catches: a block that is taken for one of another colour hold, or of a scene that began elsewhere."""
    request = TinyRequest(policy=policy, context=context, own_frames=own_frames, **TWO_SCENES)
    changed = replace(request, **change)
    video = play(changed, store_after(stored_run(request)))
    assert_same_run(video, fresh_run(changed))
    assert video.reused == (4 if "cuts" in change else 0)


def test_bail_out_depends_on_the_blocks_before():
    """Without it the cuts of that kind of run would prove nothing."""
    bail_out = fresh_run(TinyRequest(**KINDS_OF_RUN["bail-out"]))
    assert [decision.reason for decision in bail_out.decisions][-4:] == [Reason.BAILED_OUT] * 4


# --- pairs of runs: each of these is another in the second one

BALL = (0, 5, "a red ball")
CUBE = (1, 6, "a blue cube")
LATER_CUBE = (5, 6, "a blue cube")
BASES = (
    TinyRequest(blocks=5, route=Route(Gate(0.3), handover=1), directions="...d."),
    TinyRequest(blocks=5, policy="incremental", route=Route(Gate(0.6, bail_out=2)), own_frames=1),
    TinyRequest(blocks=5, policy="incremental", context="own", clip=(71, 3), takes="2:2"),
    TinyRequest(blocks=5, context="own", clip=(71, 4), route=Route(Gate(0.0, forced_blocks=2)), own_frames=1),
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


def varied(request: TinyRequest, change: str) -> TinyRequest:
    """Return the request with a change of `VARIED`."""
    changes = dict(VARIED[change])
    policy = changes.pop("policy", {})
    changed = request.with_gate(**policy) if isinstance(policy, dict) else request.with_policy(policy)
    route = replace(changed.route, handover=changes.pop("handover", changed.route.handover))
    return replace(changed, **{"route": route, **changes})


ROOMY = 1e9
SHOWN = PixelStore()
"""The pixels of every run before."""


def check_pair(earlier: TinyRequest, changed: TinyRequest, room: float) -> None:
    """Run the changed request twice after the earlier one. `room`: bytes of the store for what it makes."""
    store = store_after(stored_run(earlier))
    store.limit = store.bytes + room
    fresh = stored_run(changed)
    first = play(changed, store, pixels=SHOWN)
    assert_same_run(first, fresh)
    called = {index for _, index in first.calls}
    assert not any(record.reused for record in first.records if record.span.index in called)
    assert set(first.calls) <= set(fresh.calls)
    second = play(changed, store, pixels=SHOWN)
    assert_same_run(second, fresh)
    assert second.reused == changed.blocks or room < ROOMY


@in_turn("change, room, base", VARIED, (ROOMY, ROOMY, 60_000.0, 0.0, ROOMY), BASES)
def test_run_after_another_equals_a_fresh_one(change: str, room: float, base: TinyRequest) -> None:
    """And the other way round. Catches: a key without something that a block follows from, a full store."""
    check_pair(base, varied(base, change), room)
    check_pair(varied(base, change), base, room)


# --- what is made, and what is not, in counts

BASE = TinyRequest()
MILD = TinyRequest(route=Route(Gate(0.1)))
LAX = TinyRequest(route=Route(Gate(-9)), blocks=6)
CLIP = TinyRequest(clip=(71, 3), blocks=3)
NEW_PROMPT = TinyRequest(clip=(71, 3), blocks=2, prompts=(BALL, CUBE))
OTHER_PROMPT = replace(NEW_PROMPT, prompts=((0, 7, "a red ball"), CUBE))
# The earlier request, the changed one, and of the latter: blocks re-used, those of each model, and scores.
CHANGES = {
    "a tau that keeps the last draft": (BASE, MILD, 9, [], [], 0),
    "a tau that rejects the last draft": (MILD, BASE, 8, [], [8], None),
    "more blocks": (replace(BASE, blocks=6), BASE, 6, None, None, None),
    "another prompt from block 6 on": (BASE, replace(BASE, prompts=(BALL, LATER_CUBE)), 5, None, None, None),
    "a take of block 6": (BASE, replace(BASE, takes="6:2"), 5, None, None, None),
    "another target": (BASE, replace(BASE, target=3), 0, None, None, None),
    "another drafter": (BASE, replace(BASE, drafter=3), 1, list(range(1, 9)), None, None),
    "another clip": (CLIP, replace(CLIP, clip=(72, 3)), 0, None, None, None),
    "a longer clip": (CLIP, replace(CLIP, clip=(71, 6)), 0, None, None, None),
    "no clip": (CLIP, replace(CLIP, clip=None), 0, None, None, None),
    "another prompt over the clip": (NEW_PROMPT, OTHER_PROMPT, 0, None, None, None),
    "another text": (LAX, replace(LAX, prompts=((0, 5, "a red ball!"),)), 1, [], [], 5),
}


@in_turn("change, policy", CHANGES, POLICIES)
def test_change_makes_only_these_blocks_again(policy: str, change: str) -> None:
    """Catches: a key without the take, the model, the clip's content or an earlier prompt; scores without text."""
    before, after, reused, drafted, by_target, scored = CHANGES[change]
    earlier = replace(before, policy=policy)
    changed = replace(after, policy=policy)
    video = play(changed, store_after(stored_run(earlier)))
    assert_same_run(video, stored_run(changed))
    assert video.reused == reused
    assert all(index >= reused for _, index in video.calls)
    assert drafted is None or video.blocks_of("drafter") == drafted
    assert by_target is None or video.blocks_of("target") == by_target
    assert scored is None or video.parts.scorer.calls == scored


def test_reused_block_shows_the_words_asked_for() -> None:
    """Catches: the earlier run's words, where other words have the same embedding."""
    request = TinyRequest(blocks=3)
    store = Store()
    play(request, store)
    words = Condition(condition(5).embedding, "ein roter Ball")
    reuse = Reuse(store=store, part_keys=part_keys(request))
    run = planned(parts_of(request).engine, request.route, condition_of=lambda _: words, blocks=3, reuse=reuse)
    emitted = list(run.blocks())
    assert [shown.record.prompt for shown in emitted] == ["ein roter Ball"] * 3
    assert all(shown.block.condition is words for shown in emitted)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_repair_drafts_again_without_first_estimates(policy: str, context: DrafterContext) -> None:
    """Catches: the block itself handed over to the target as if it were the first estimate."""
    whole = TinyRequest(policy=policy, context=context)
    repair = replace(whole, route=replace(whole.route, handover=1))
    repaired = play(repair, store_after(stored_run(whole)))
    assert_same_run(repaired, stored_run(repair))
    rejected = [n for n, record in enumerate(repaired.records) if record.decision.reason is Reason.FELL_SHORT]
    assert rejected[0] in repaired.blocks_of("drafter")


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_repair_keeps_results_for_either_route(policy: str, context: DrafterContext) -> None:
    """Catches: drafts kept with their first estimates that do not serve a run without repair."""
    whole = TinyRequest(policy=policy, context=context)
    repair = replace(whole, route=replace(whole.route, handover=1))
    store = store_after(stored_run(whole))
    play(repair, store)
    assert play(repair, store).calls == []
    remade = play(whole, store)
    assert remade.calls == []
    assert_same_run(remade, stored_run(whole))


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_target_takes_over_steps_of_rejected_draft(policy: str, context: DrafterContext) -> None:
    """By its policy. Catches: steps of a draft with another name when they were made as part of a whole one."""
    request = TinyRequest(policy=policy, context=context, route=ROUTERS["repair"])
    repaired = stored_run(request)
    planned = play(request.with_policy(Custom(PlannedRouter(authors(repaired)))), store_after(repaired))
    assert_same_video(planned, repaired)
    assert planned.calls == []


def test_known_blocks_after_a_new_score_are_reused() -> None:
    """The draft of block 3 is known, but not its scores; the target's block 3 and those after it are known.

    Catches: blocks that are re-used only at the beginning of a run.
    """
    store = Store()
    play(TinyRequest(directions="tttttt", blocks=6), store)
    play(TinyRequest(directions="ttdddd", blocks=6), store)
    scored = play(TinyRequest(directions="ttrttt", blocks=6), store)
    assert scored.parts.scorer.calls == 1
    assert scored.calls == []
    assert [costs(record)[1] for record in scored.records] == [Cost()] * 6
    assert [record.reused for record in scored.records] == [True, True, False, True, True, True]
    assert_same_run(scored, fresh_run(TinyRequest(directions="ttrttt", blocks=6)))


# --- runs that were stopped


class Stop(Exception):
    """What a test interrupts a run with."""


@in_turn("policy_and_context, router", list(product(POLICIES, CONTEXTS)), ["reward", "repair", "handover"], ids=str)
def test_stopped_run_makes_no_finished_block_again(
    policy_and_context: tuple[str, DrafterContext], router: str
) -> None:
    """Stopped at each pass. Catches: a finished block that is not kept, or half of one that is."""
    policy, context = policy_and_context
    request = TinyRequest(policy=policy, context=context, route=ROUTERS[router], blocks=3)
    passes: list[str] = []
    whole = play(request, parts=parts_of(request, passes.append))
    for number in range(1, len(passes) + 1):
        store = Store()
        stopped = parts_of(request, stop_at(number))
        with pytest.raises(Stop):
            play(request, store, stopped)
        resumed = play(request, store)
        assert_same_run(resumed, whole)
        assert sorted(stopped.done + resumed.calls) == sorted(whole.calls), f"stopped at pass {number}"


def stop_at(number: int) -> Callable[[str], None]:
    """Return a callback that raises at the pass of this number."""
    passes = count(1)

    def before_pass(kind: str) -> None:
        if next(passes) == number:
            raise Stop

    return before_pass


@pytest.mark.parametrize("steps", [1, 2])
def test_fully_handed_over_draft_is_kept_in_store(steps):
    """Catches: one step kept without its only prediction, which ended the run; two that are never taken."""
    request = TinyRequest(
        schedule="1000,800,625",
        draft_steps=steps,
        route=Route(TargetOnly(), handover=steps),
        blocks=3,
    )
    store = Store()
    fresh = fresh_run(request)
    assert_same_run(play(request, store), fresh)
    repeated = play(request, store)
    assert_same_run(repeated, fresh)
    assert repeated.calls == []
    gated = request.with_policy(Gate(9.0, forced_blocks=0))
    assert_same_run(play(gated, store), fresh_run(gated))
