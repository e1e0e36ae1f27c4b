"""Which models a run may ask for, and what the user decides block by block."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sdvg_core.engine.plan import EVERY_ROLE, REMEDIES, Lead, Roles, RunPlan, plan_blocks
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.reuse import PartKeys, Reuse, Store
from sdvg_core.engine.speculate import EmittedBlock
from sdvg_core.errors import BadInput
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.request import DIRECTION_LETTERS, LETTERS_IN_SHORT, MOST_TAKES, check_directions, read_takes
from sdvg_core.settings.route import ROUTE_PRESETS, Custom, First, Gate, Policy, Route, TargetOnly
from tests.support.thinned import every_pair
from tests.support.tiny import (
    CONTEXTS,
    POLICIES,
    SIZE,
    BrightScorer,
    generator_of,
    latents_of,
    make_engine,
    planned,
    run,
    scripted,
)


def route(router: Route, available: Roles = EVERY_ROLE, **options: Any) -> RunPlan:
    sizes = {role: 3 for role in ("drafter", "target") if role in available}
    return plan_blocks(router, **{"blocks": 6, "block_frames": sizes, "scorer": "scorer" in available, **options})


def asked(router: Route, **options: Any) -> str:
    """The parts a run may ask for, by their first letters."""
    roles = route(router, **options).models_needed
    return "".join(name[0] for name in ("drafter", "target", "scorer") if name in roles)


def models(letters: str) -> Roles:
    return Roles(role for role in EVERY_ROLE if role[0] in letters)


def without(engine: Engine, *roles: str) -> Engine:
    """The engine without one of its parts, as it is built if the file was not given."""
    return replace(engine, **dict.fromkeys(roles))


six = partial(planned, blocks=6)
UNFORCED: dict[str, Any] = {"forced_blocks": 0}
ROLES_OF: list[tuple[Route, str, str]] = [
    (Route(), "", "dts"),
    (Route(Gate(**UNFORCED)), "", "dts"),
    (Route(TargetOnly()), "", "t"),
    (Route(First(1)), "", "dt"),
    (Route(First(0)), "", "d"),
    (Route(First(6)), "", "t"),
    (scripted("tttttt"), "", "t"),
    (scripted("dddddd", **UNFORCED), "", "d"),
    (scripted("tdtdtd"), "", "dt"),
    (scripted("aaaaaa", **UNFORCED), "", "dts"),
    (scripted("ddddddt", **UNFORCED), "", "d"),  # the plan goes on behind the run
    (Route(), "dddddd", "d"),
    (Route(), "ttttt.", "dts"),
    (Route(), ".ttttt", "t"),
    (Route(), "aaaaaa", "dts"),  # a score that is no number still calls the target
    (Route(First(0)), "...t..", "dt"),
    (Route(TargetOnly()), "...r..", "dts"),
]


@pytest.mark.parametrize(("router", "letters", "parts"), ROLES_OF, ids=str)
def test_a_run_asks_for_the_parts_that_a_block_may_need_and_no_others(
    router: Route, letters: str, parts: str
) -> None:
    """Catches: a part that is ruled out although a block asks for it."""
    assert asked(router, directions=letters) == parts
    # Only these are needed: the same run is planned and made where nothing else is there.
    assert route(router, models(parts), directions=letters).models_needed == models(parts)
    missing = [role for role in ("drafter", "target", "scorer") if role[0] not in parts]
    made = list(six(without(make_engine(), *missing), router, directions=letters).blocks())
    whole = list(six(make_engine(), router, directions=letters).blocks())
    assert torch.equal(latents_of(made), latents_of(whole))
    assert [one.record.decision for one in made] == [one.record.decision for one in whole]


def test_blocks_after_a_clip_are_what_counts() -> None:
    """Block 1 of the clip is not to be made, so neither its target nor its letters are asked for."""
    assert asked(Route(First(1)), lead=Lead(frames=3)) == "d"
    assert asked(Route(First(1)), lead=Lead(frames=1)) == "dt", "a start image is before block 1"
    assert asked(scripted("tttdddddd"), lead=Lead(frames=9)) == "d"
    assert asked(scripted("tttdddddd"), lead=Lead(frames=6)) == "dt"


# --- what a direction hands over


def made_by(policy: str, directions: str, router: Route) -> list[EmittedBlock]:
    """Return the blocks of a run of three-step models."""
    engine = make_engine(policy, schedule="1000,800,625")
    return list(six(engine, router, directions=directions).blocks())


@every_pair("policy, handover", POLICIES, (1, 2))
def test_a_draft_rejected_by_a_direction_is_handed_over(policy: str, handover: int) -> None:
    """Only `t` makes a block whole. Catches: `r` taken for `t`, so that the target begins from noise."""
    emitted = made_by(policy, "rrtart", Route(TargetOnly(), handover=handover))
    records = [shown.record for shown in emitted]
    assert [record.handover for record in records] == [0, handover, 0, 0, handover, 0]
    passes = [record.target and record.target.denoising_passes for record in records]
    assert passes == [3, 3 - handover, 3, None, 3 - handover, 3]
    gated = made_by(policy, "", Route(Gate(math.inf), handover=handover))
    rejected = made_by(policy, "......", Route(TargetOnly(), handover=handover))
    by_direction = made_by(policy, "rrrrrr", Route(TargetOnly(), handover=handover))
    assert torch.equal(latents_of(by_direction), latents_of(gated))
    assert torch.equal(latents_of(by_direction), latents_of(rejected))


# --- what is missing


@pytest.mark.parametrize(
    ("router", "letters", "parts", "says"),
    [
        (Route(), "", "ts", "the route reward needs a drafter"),
        (Route(), "", "ds", "the route reward needs a target"),
        (Route(), "", "dt", "the route reward needs a reward model"),
        (ROUTE_PRESETS["fast"], "", "d", "the route fast needs a target"),
        (ROUTE_PRESETS["fast"], "", "t", "the route fast needs a drafter"),
        (Route(TargetOnly()), "", "d", "the route always-target needs a target"),
        (Route(First(0)), "", "t", "the route first needs a drafter"),
        (Route(First(3)), "", "d", "the route first needs a target"),
        (Route(First(0)), "...t..", "d", "the directions need a target"),
        (Route(TargetOnly()), "...d..", "t", "the directions need a drafter"),
        (Route(TargetOnly()), "...a..", "dt", "the directions need a reward model"),
    ],
    ids=str,
)
def test_a_part_that_is_missing_is_one_sentence_with_who_needs_it_and_a_way_out(
    router: Route, letters: str, parts: str, says: str
) -> None:
    with pytest.raises(BadInput) as caught:
        route(router, models(parts), directions=letters)
    sentence = str(caught.value)
    assert sentence.startswith(f"{says}; load one, or ")
    assert sentence.endswith("out of them") == ("directions" in says)
    assert "\n" not in sentence


@pytest.mark.parametrize("role", REMEDIES)
def test_the_letters_to_take_out_are_those_that_ask_for_a_model(role: str) -> None:
    """Catches: a remedy that does not help."""
    policy = Route(TargetOnly() if role == "drafter" else First(0))
    for letter in DIRECTION_LETTERS:
        asks = letter in re.findall(r"\b\w\b", REMEDIES[role][2])
        with pytest.raises(BadInput, match=f"take {REMEDIES[role][2]} out of them") if asks else nullcontext():
            route(policy, EVERY_ROLE - {role}, directions=f"..{letter}...")


def test_a_router_of_ones_own_is_named_in_place_of_the_policy() -> None:
    class EveryThird:
        needs_scorer = True

        def keep(self, index: int, score: float | None) -> bool:
            return index % 3 > 0

    with pytest.raises(BadInput, match="the router EveryThird needs a reward model; load one, or take another"):
        route(Route(Custom(EveryThird())), models("dt"))


# --- runs without one of the models


@pytest.mark.parametrize(("policy", "role"), [(TargetOnly(), "drafter"), (First(0), "target")], ids=str)
def test_a_run_without_a_model_can_be_used_again_and_uses_that_of_a_run_with_it(policy: Policy, role: str) -> None:
    part_keys = PartKeys(drafter="one", target="two", codec="echo", scorer="")
    alone = replace(part_keys, **{role: ""})
    router = Route(policy)
    store = Store()
    first = six(without(make_engine(), role), router, reuse=Reuse(store=store, part_keys=alone))
    made = list(first.blocks())
    again = six(make_engine(), router, blocks=8, reuse=Reuse(store=store, part_keys=part_keys))
    longer = list(again.blocks())
    assert [block.record.reused for block in longer] == [True] * 6 + [False] * 2
    assert torch.equal(latents_of(longer[:6]), latents_of(made))
    last = six(without(make_engine(), role), router, blocks=8, reuse=Reuse(store=store, part_keys=alone))
    assert all(block.record.reused for block in last.blocks())


# --- what a letter means


def test_each_letter_decides_its_block_and_a_dot_leaves_it_to_the_router() -> None:
    engine = make_engine()
    made = records(directed(".tdar.", engine=engine))
    first, target, draft, kept, remade, routed = made
    assert [record.decision.reason for record in made[:5]] == [
        Reason.FORCED,
        Reason.DIRECTED_TARGET,
        Reason.DIRECTED_DRAFT,
        Reason.DIRECTED_KEPT,
        Reason.DIRECTED_REMADE,
    ]
    assert routed.decision.reason in (Reason.REACHED, Reason.FELL_SHORT)
    assert [record.author for record in made[:5]] == ["target", "target", "drafter", "drafter", "target"]
    # t and d are certain: nothing is drafted in vain, and nothing is scored.
    assert target.draft is draft.target is None
    assert target.decision.frame_scores == draft.decision.frame_scores == ()
    assert (target.decodes, draft.decodes) == (1, 1)
    # a and r show what the draft was worth, and that no threshold was asked.
    for record in (kept, remade):
        assert record.draft is not None
        assert record.decision.score == min(record.decision.frame_scores)
        assert record.decision.threshold is None
    assert (kept.target, remade.decodes) == (None, 2)
    assert [index for index, _ in engine.drafter.calls] == [2, 3, 4, 5]
    scorer = engine.scorer
    assert isinstance(scorer, BrightScorer)
    assert (scorer.calls, first.draft) == (3, None)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_directions_make_the_video_of_a_plan_with_the_same_decisions(policy: str, context: Any) -> None:
    options: dict[str, Any] = {"blocks": 6, "drafter_context": context}
    for letters in ("rararr", "tdtdtt"):
        by_hand = directed(letters, engine=make_engine(policy), drafter_context=context)
        plan = run(make_engine(policy), scripted(letters, forced_blocks=0), **options)
        assert torch.equal(latents_of(by_hand), latents_of(plan))
        assert scores(by_hand) == scores(plan)
    assert not torch.equal(latents_of(by_hand), latents_of(directed(engine=make_engine(policy))))


@pytest.mark.parametrize(
    "router",
    [
        Route(Gate(1e9)),
        Route(First(1)),
        Route(TargetOnly()),
        scripted("rararr"),
        scripted("tdtdtt"),
        Route(Gate(1e9, bail_out=1)),
    ],
    ids=str,
)
def test_a_direction_goes_before_every_policy_the_forced_block_and_the_bail_out(router: Route) -> None:
    made = records(directed("dadtra", router))
    assert [record.author for record in made] == ["drafter", "drafter", "drafter", "target", "target", "drafter"]
    assert all(record.decision.reason.name.startswith("DIRECTED") for record in made)


class BlindScorer(BrightScorer):
    """Cannot judge the second draft it is shown."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        scores = super().score(frames, prompt)
        return scores.index_fill(0, torch.tensor([2]), float("nan")) if self.calls == 2 else scores


def test_a_draft_that_a_direction_keeps_is_still_rejected_if_its_score_is_no_number() -> None:
    engine = replace(make_engine(), scorer=BlindScorer())
    made = records(directed("daad..", engine=engine))
    assert [record.decision.reason for record in made[1:3]] == [Reason.DIRECTED_KEPT, Reason.NOT_FINITE]
    assert made[2].author == "target"
    assert made[2].decision.worst_frame == 2


# --- bail-out, and the parts that are asked for


@pytest.mark.parametrize("letter", "dta")
def test_rejections_are_in_a_row_across_a_direction(letter: str) -> None:
    """A direction is the user's word, and says nothing of the drafts."""
    made = directed(f"..{letter}...", Route(Gate(1e9, bail_out=2)))
    assert reasons(made)[1] is reasons(made)[3] is Reason.FELL_SHORT
    assert reasons(made)[4:] == [Reason.BAILED_OUT] * 2


# --- after a clip


@pytest.mark.parametrize("frames", [1, 3, 6, 7])
def test_directions_and_takes_count_the_blocks_of_the_run_and_not_those_of_the_clip(frames: int) -> None:
    clip = torch.randn(1, 4, frames, *SIZE, generator=generator_of(9))
    made = directed("t.d.a.", Route(Gate(0.3)), takes="2:5", given=clip)
    assert [one.block.span.index for one in made] == [frames // 3 + n for n in range(6)]
    assert [one.block.span.take for one in made] == [1, 5, 1, 1, 1, 1]
    found = reasons(made)
    assert (found[0], found[2], found[4]) == (Reason.DIRECTED_TARGET, Reason.DIRECTED_DRAFT, Reason.DIRECTED_KEPT)
    assert all(reason in (Reason.REACHED, Reason.FELL_SHORT) for reason in found[1::2])


# --- takes


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_take_changes_the_video_from_its_block_on_and_nothing_before(policy: str, context: Any) -> None:
    options: dict[str, Any] = {"drafter_context": context}
    plain = directed(engine=make_engine(policy), **options)
    taken = directed(engine=make_engine(policy), takes="4:2", **options)
    assert torch.equal(latents_of(taken[:3]), latents_of(plain[:3]))
    for number in (3, 4, 5):
        assert not torch.equal(taken[number].block.latents, plain[number].block.latents)
    assert [one.block.span.take for one in taken] == [1, 1, 1, 2, 1, 1]
    third = directed(engine=make_engine(policy), takes="4:3", **options)
    assert not torch.equal(third[3].block.latents, taken[3].block.latents)


# --- as they are written


def refusal(function: Any, *arguments: Any) -> str:
    """Return the one sentence, which says what is wrong and, after a semicolon or a way out, what to do."""
    with pytest.raises(BadInput) as caught:
        function(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "; " in sentence
    return sentence


@pytest.mark.parametrize("letters", ["A.....", ". ....", "\n", "\uff41.....", 6, None, ["t"] * 6])
def test_anything_but_letters_is_refused_and_the_letters_are_named(letters: Any) -> None:
    sentence = refusal(check_directions, letters, 6)
    assert sentence.startswith("unknown letters in the directions ")
    assert sentence.endswith("; write per block . (route), " + LETTERS_IN_SHORT)


@pytest.mark.parametrize(("letters", "count"), [(".", 1), ("t....", 5), ("t......", 7)])
def test_there_is_one_letter_for_each_block_or_none(letters: str, count: int) -> None:
    sentence = refusal(check_directions, letters, 6)
    assert f"the {count} directions {letters!r} are not one for each of the 6 blocks;" in sentence


def test_takes_are_read_by_the_blocks_place() -> None:
    for text, takes in {"": {}, " 8:3;  6:2 ": {5: 2, 7: 3}, "6:2\n8:3": {5: 2, 7: 3}, "006:02": {5: 2}}.items():
        assert dict(read_takes(text, 9)) == takes
    assert dict(read_takes(f"1:1, 9:{MOST_TAKES}", 9)) == {8: MOST_TAKES}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("6", "the take is '6'; write for example 6:2 (block 6, take 2)"),
        ("6:-2", "the take is '6:-2'; "),
        ("٦:٢", "the take is '٦:٢'; "),
        ("10:2", "the take 10:2 is of block 10; choose one of blocks 1 to 9"),
        ("6:0", "there is no take 6:0; choose 1 (the plain one) to 1000000"),
        ("6:1000001", "there is no take 6:1000001"),
        ("6:2, 6:3", "block 6 has two takes, 2 and 3"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_wrong_take_is_one_sentence(text: Any, says: str) -> None:
    assert says in refusal(read_takes, text, 9)


# --- runs that are directed


def directed(
    letters: str = "",
    router: Route | None = None,
    *,
    takes: str = "",
    blocks: int = 6,
    engine: Engine | None = None,
    **options: Any,
) -> list[EmittedBlock]:
    options |= {"blocks": blocks, "directions": letters, "takes": takes}
    run = planned(engine or make_engine(), router or Route(Gate(0.3)), **options)
    return list(run.blocks())


def records(emitted: list[EmittedBlock]) -> list[BlockRecord]:
    return [one.record for one in emitted]


def scores(emitted: list[EmittedBlock]) -> list[tuple[float, ...]]:
    return [one.record.decision.frame_scores for one in emitted]


def reasons(emitted: list[EmittedBlock]) -> list[Reason]:
    return [one.record.decision.reason for one in emitted]
