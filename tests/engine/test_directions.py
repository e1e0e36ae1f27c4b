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
from sdvg_core.settings.request import DIRECTION_LETTERS, MOST_TAKES, check_directions, read_takes
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


def plan_of(route: Route, available: Roles = EVERY_ROLE, **options: Any) -> RunPlan:
    sizes = {role: 3 for role in ("drafter", "target") if role in available}
    """Return the plan of six blocks, with the parts that are available."""
    return plan_blocks(route, **{"blocks": 6, "block_frames": sizes, "scorer": "scorer" in available, **options})


def parts_needed(route: Route, **options: Any) -> str:
    """Return the parts that a run may ask for, by their first letters."""
    needed = plan_of(route, **options).models_needed
    return "".join(name[0] for name in ("drafter", "target", "scorer") if name in needed)


def roles(letters: str) -> Roles:
    return Roles(role for role in EVERY_ROLE if role[0] in letters)


def without(engine: Engine, *missing: str) -> Engine:
    """Return an engine without some of its parts, as it is built if their files are not given."""
    return replace(engine, **dict.fromkeys(missing))


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
    (Route(TargetOnly(), handover=1), "", "dt"),
    (Route(TargetOnly(), handover=1), "tttttt", "t"),  # nothing is handed over to what is made whole
]


@pytest.mark.parametrize(("route", "letters", "parts"), ROLES_OF, ids=str)
def test_run_needs_only_parts_its_blocks_may_use(route: Route, letters: str, parts: str) -> None:
    """Where nothing else is there the run is the same. Catches: a part ruled out that a block asks for."""
    assert parts_needed(route, directions=letters) == parts
    assert plan_of(route, roles(parts), directions=letters).models_needed == roles(parts)
    missing = [role for role in ("drafter", "target", "scorer") if role[0] not in parts]
    partial_run = list(six(without(make_engine(), *missing), route, directions=letters).blocks())
    whole_run = list(six(make_engine(), route, directions=letters).blocks())
    assert torch.equal(latents_of(partial_run), latents_of(whole_run))
    assert [shown.record.decision for shown in partial_run] == [shown.record.decision for shown in whole_run]


def test_only_blocks_after_a_clip_count() -> None:
    """Block 1 of the clip is not to be made, so neither its target nor its letters are asked for."""
    assert parts_needed(Route(First(1)), lead=Lead(frames=3)) == "d"
    assert parts_needed(Route(First(1)), lead=Lead(frames=1)) == "dt", "a start image is before block 1"
    assert parts_needed(scripted("tttdddddd"), lead=Lead(frames=9)) == "d"
    assert parts_needed(scripted("tttdddddd"), lead=Lead(frames=6)) == "dt"


# --- what a direction hands over


def three_steps(policy: str, directions: str, route: Route) -> list[EmittedBlock]:
    """Return the blocks of a run of three-step models."""
    engine = make_engine(policy, schedule="1000,800,625")
    return list(six(engine, route, directions=directions).blocks())


@every_pair("policy, handover", POLICIES, (1, 2))
def test_draft_rejected_by_direction_is_handed_over(policy: str, handover: int) -> None:
    """Only `t` makes a block whole. Catches: `r` taken for `t`, so that the target begins from noise."""
    emitted = three_steps(policy, "rrtart", Route(TargetOnly(), handover=handover))
    assert [record.handover for record in records(emitted)] == [0, handover, 0, 0, handover, 0]
    passes = [record.target and record.target.denoising_passes for record in records(emitted)]
    assert passes == [3, 3 - handover, 3, None, 3 - handover, 3]


@every_pair("policy, handover", POLICIES, (1, 2))
def test_rejecting_by_direction_is_rejecting_by_gate(policy: str, handover: int) -> None:
    """Catches: a block that is handed over otherwise because a letter decided it."""
    directed = three_steps(policy, "rrrrrr", Route(TargetOnly(), handover=handover))
    for route in (Route(Gate(math.inf), handover=handover), Route(TargetOnly(), handover=handover)):
        assert torch.equal(latents_of(directed), latents_of(three_steps(policy, "", route)))


# --- what is missing


@pytest.mark.parametrize(
    ("route", "letters", "parts", "fault"),
    [
        (Route(), "", "ts", "reward needs a drafter"),
        (Route(), "", "ds", "reward needs a target"),
        (Route(), "", "dt", "reward needs a reward model"),
        (ROUTE_PRESETS["fast"], "", "d", "fast needs a target"),
        (ROUTE_PRESETS["fast"], "", "t", "fast needs a drafter"),
        (Route(TargetOnly()), "", "d", "always-target needs a target"),
        (Route(First(0)), "", "t", "first needs a drafter"),
        (Route(First(3)), "", "d", "first needs a target"),
        (Route(First(0)), "...t..", "d", "directions need a target"),
        (Route(TargetOnly()), "...d..", "t", "directions need a drafter"),
        (Route(TargetOnly()), "...a..", "dt", "directions need a reward model"),
    ],
    ids=str,
)
def test_missing_part_is_refused_with_a_remedy(route: Route, letters: str, parts: str, fault: str) -> None:
    with pytest.raises(BadInput, match=f"{fault}; load one, or .*"):
        plan_of(route, roles(parts), directions=letters)


@pytest.mark.parametrize("role", REMEDIES)
def test_remedy_names_the_letters_that_need_it(role: str) -> None:
    """Catches: a remedy that does not help."""
    route = Route(TargetOnly() if role == "drafter" else First(0))
    remedy = REMEDIES[role][2]
    for letter in DIRECTION_LETTERS:
        needs_role = letter in re.findall(r"\b\w\b", remedy)
        with pytest.raises(BadInput, match=f"take {remedy} out of them") if needs_role else nullcontext():
            plan_of(route, EVERY_ROLE - {role}, directions=f"..{letter}...")


def test_missing_part_names_the_custom_router() -> None:
    class EveryThird:
        needs_scorer = True

        def keep(self, index: int, score: float | None) -> bool:
            return index % 3 > 0

    with pytest.raises(BadInput, match="router EveryThird needs a reward model"):
        plan_of(Route(Custom(EveryThird())), roles("dt"))


# --- runs without one of the models


@pytest.mark.parametrize(("policy", "role"), [(TargetOnly(), "drafter"), (First(0), "target")], ids=str)
def test_blocks_are_reused_with_and_without_unneeded_model(policy: Policy, role: str) -> None:
    """Catches: a key that changes when a model is loaded that the route never calls."""
    store = Store()
    part_keys = PartKeys(drafter="small", target="large", codec="echo", scorer="")
    with_model = {"reuse": Reuse(store=store, part_keys=part_keys)}
    without_model = {"reuse": Reuse(store=store, part_keys=replace(part_keys, **{role: ""}))}
    route = Route(policy)
    first = list(six(without(make_engine(), role), route, **without_model).blocks())
    longer = list(six(make_engine(), route, blocks=8, **with_model).blocks())
    assert [block.record.reused for block in longer] == [True] * 6 + [False] * 2
    assert torch.equal(latents_of(longer[:6]), latents_of(first))
    last = six(without(make_engine(), role), route, blocks=8, **without_model)
    assert all(block.record.reused for block in last.blocks())


# --- what a letter means


def test_each_letter_decides_its_block() -> None:
    """And a dot leaves it to the route. Catches: a letter that is taken for another."""
    emitted = directed(".tdar.")
    assert reasons(emitted)[:5] == [
        Reason.FORCED,
        Reason.DIRECTED_TARGET,
        Reason.DIRECTED_DRAFT,
        Reason.DIRECTED_KEPT,
        Reason.DIRECTED_REMADE,
    ]
    assert reasons(emitted)[5] in (Reason.REACHED, Reason.FELL_SHORT)
    authors = [record.author for record in records(emitted)[:5]]
    assert authors == ["target", "target", "drafter", "drafter", "target"]


def test_certain_letters_are_neither_drafted_nor_scored() -> None:
    """Catches: a draft for the letter `t`, and scores for `t` or `d`, which nobody asks."""
    engine = make_engine()
    _, target, draft, *_ = records(directed(".tdar.", engine=engine))
    assert target.draft is draft.target is None
    assert target.decision.frame_scores == draft.decision.frame_scores == ()
    assert target.decodes == draft.decodes == 1
    assert [index for index, _ in engine.drafter.calls] == [2, 3, 4, 5]
    assert engine.scorer.calls == 3


def test_scored_letters_show_scores_and_no_threshold() -> None:
    """Catches: a report by which a threshold decided a block of the letter `a` or `r`."""
    *_, kept, remade, _ = records(directed(".tdar."))
    for record in (kept, remade):
        assert record.draft is not None
        assert record.decision.score == min(record.decision.frame_scores)
        assert record.decision.threshold is None
    assert kept.target is None
    assert remade.decodes == 2


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_directions_make_the_video_of_that_plan(policy: str, context: Any) -> None:
    for letters in ("rararr", "tdtdtt"):
        by_hand = directed(letters, engine=make_engine(policy), drafter_context=context)
        by_plan = run(make_engine(policy), scripted(letters, forced_blocks=0), blocks=6, drafter_context=context)
        assert torch.equal(latents_of(by_hand), latents_of(by_plan))
        assert scores(by_hand) == scores(by_plan)
    assert not torch.equal(latents_of(by_hand), latents_of(directed(engine=make_engine(policy))))


@pytest.mark.parametrize(
    "route",
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
def test_direction_overrules_every_policy(route: Route) -> None:
    """The forced block and the bail-out too. Catches: a policy that is asked before the direction is."""
    authors = [record.author for record in records(directed("dadtra", route))]
    assert authors == ["drafter", "drafter", "drafter", "target", "target", "drafter"]


class BlindScorer(BrightScorer):
    """Cannot judge the second draft it is shown."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        scores = super().score(frames, prompt)
        return scores.index_fill(0, torch.tensor([2]), float("nan")) if self.calls == 2 else scores


def test_nan_score_rejects_a_directed_draft() -> None:
    """Both are directed `a`: score and keep. The second one scored has a NaN in frame 2.

    Catches: a draft of bad numbers that is kept because the user asked to.
    """
    engine = replace(make_engine(), scorer=BlindScorer())
    _, kept, rejected, *_ = records(directed("daad..", engine=engine))
    assert kept.decision.reason is Reason.DIRECTED_KEPT
    assert rejected.decision.reason is Reason.NOT_FINITE
    assert rejected.author == "target"
    assert rejected.decision.worst_frame == 2


# --- bail-out, and the parts that are asked for


@pytest.mark.parametrize("letter", "dta")
def test_bail_out_counts_rejections_across_a_direction(letter: str) -> None:
    """A direction is the user's word, and says nothing of the drafts."""
    _, second, _, *others = reasons(directed(f"..{letter}...", Route(Gate(1e9, bail_out=2))))
    assert second is Reason.FELL_SHORT
    assert others == [Reason.FELL_SHORT, Reason.BAILED_OUT, Reason.BAILED_OUT]


# --- after a clip


@pytest.mark.parametrize("frames", [1, 3, 6, 7])
def test_directions_and_takes_count_blocks_after_a_clip(frames: int) -> None:
    clip = torch.randn(1, 4, frames, *SIZE, generator=generator_of(9))
    emitted = directed("t.d.a.", Route(Gate(0.3)), takes="2:5", given=clip)
    assert [shown.block.span.index for shown in emitted] == [frames // 3 + place for place in range(6)]
    assert [shown.block.span.take for shown in emitted] == [1, 5, 1, 1, 1, 1]
    assert reasons(emitted)[::2] == [Reason.DIRECTED_TARGET, Reason.DIRECTED_DRAFT, Reason.DIRECTED_KEPT]
    assert set(reasons(emitted)[1::2]) <= {Reason.REACHED, Reason.FELL_SHORT}


# --- takes


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_take_changes_its_block_and_later_ones(policy: str, context: Any) -> None:
    first, second, third = (
        directed(engine=make_engine(policy), takes=takes, drafter_context=context) for takes in ("", "4:2", "4:3")
    )
    assert torch.equal(latents_of(second[:3]), latents_of(first[:3]))
    for number in (3, 4, 5):
        assert not torch.equal(second[number].block.latents, first[number].block.latents)
    assert [shown.block.span.take for shown in second] == [1, 1, 1, 2, 1, 1]
    assert not torch.equal(third[3].block.latents, second[3].block.latents)


# --- as they are written


@pytest.mark.parametrize("letters", ["A.....", ". ....", "\n", "\uff41.....", 6, None, ["t"] * 6])
def test_unknown_letters_are_refused(letters: Any) -> None:
    with pytest.raises(BadInput, match=r"unknown letters.*; write"):
        check_directions(letters, 6)


def test_refusal_quotes_the_unknown_letters_alone():
    """Catches: a dot that nobody typed, of the blocks that ComfyUI's page fills up."""
    with pytest.raises(BadInput, match="directions: 'zq!';"):
        check_directions("zqd!..", 6)


@pytest.mark.parametrize(("letters", "count"), [(".", 1), ("t....", 5), ("t......", 7)])
def test_wrong_number_of_letters_is_refused(letters: str, count: int) -> None:
    with pytest.raises(BadInput, match=f"{count} directions"):
        check_directions(letters, 6)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", {}),
        (" 8:3;  6:2 ", {5: 2, 7: 3}),
        ("6:2\n8:3", {5: 2, 7: 3}),
        ("006:02", {5: 2}),
        (f"1:1, 9:{MOST_TAKES}", {8: MOST_TAKES}),
    ],
)
def test_takes_are_read_by_place(text: str, takes: dict[int, int]) -> None:
    """Catches: blocks counted from 0, and a take 1, which is the plain one."""
    assert dict(read_takes(text, 9)) == takes


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("6", "the take is '6'"),
        ("6:-2", "the take is '6:-2'"),
        ("٦:٢", "the take is '٦:٢'"),
        ("10:2", "is of block 10"),
        ("6:0", "no take 6:0"),
        ("6:1000001", "no take 6:1000001"),
        ("6:2, 6:3", "two takes"),
    ],
)
def test_wrong_take_is_refused(text: str, fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        read_takes(text, 9)


# --- runs that are directed


def directed(
    letters: str = "",
    route: Route | None = None,
    *,
    engine: Engine | None = None,
    **options: Any,
) -> list[EmittedBlock]:
    """Return the six blocks of a run with directions, by default of a gate."""
    run = six(engine or make_engine(), route or Route(Gate(0.3)), directions=letters, **options)
    return list(run.blocks())


def records(emitted: list[EmittedBlock]) -> list[BlockRecord]:
    return [shown.record for shown in emitted]


def scores(emitted: list[EmittedBlock]) -> list[tuple[float, ...]]:
    return [shown.record.decision.frame_scores for shown in emitted]


def reasons(emitted: list[EmittedBlock]) -> list[Reason]:
    return [shown.record.decision.reason for shown in emitted]
