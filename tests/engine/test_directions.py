"""What the user decides block by block, and what a run makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from directed_runs import directed, reasons, records
from tiny import CONTEXTS, POLICIES, SIZE, BrightScorer, generator_of, latents_of, make_engine, run, scripted
from torch import Tensor

from sdvg_core.engine.directions import direct
from sdvg_core.engine.router import Reason, RouterConfig

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
    assert (target.draft, draft.target, target.decision.frame_scores, draft.decision.frame_scores) == (
        None,
        None,
        (),
        (),
    )
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
def test_directions_make_the_video_of_a_script_with_the_same_letters(policy: str, context: Any) -> None:
    by_hand = directed("tadrta", engine=make_engine(policy), drafter_context=context)
    script = run(make_engine(policy), scripted("tadrta", forced_blocks=0), blocks=6, drafter_context=context)
    assert torch.equal(latents_of(by_hand), latents_of(script))
    assert [r.decision.frame_scores for r in records(by_hand)] == [r.decision.frame_scores for r in records(script)]
    assert not torch.equal(latents_of(by_hand), latents_of(directed(engine=make_engine(policy))))


@pytest.mark.parametrize(
    "router",
    [
        RouterConfig(tau=1e9),
        RouterConfig(policy="relative"),
        RouterConfig(policy="random", rate=0.0),
        RouterConfig(policy="anchor-only"),
        RouterConfig(policy="always-target"),
        RouterConfig(policy="always-draft"),
        RouterConfig(policy="scripted", script="rtrtrt"),
        RouterConfig(tau=1e9, bail_out=1),
    ],
    ids=lambda router: f"{router.policy} {router.bail_out}",
)
def test_a_direction_goes_before_every_policy_the_forced_block_and_the_bail_out(router: RouterConfig) -> None:
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


def test_a_bail_out_goes_on_after_directions_in_between() -> None:
    """Catches: rejections in a row counted over the newest blocks alone, although one of them had a direction."""
    router = RouterConfig(tau=1e9, bail_out=2)
    made = directed("....d.a.t.", router, blocks=10)
    assert reasons(made) == [
        Reason.FORCED,
        Reason.FELL_SHORT,
        Reason.FELL_SHORT,
        Reason.BAILED_OUT,
        Reason.DIRECTED_DRAFT,
        Reason.BAILED_OUT,
        Reason.DIRECTED_KEPT,
        Reason.BAILED_OUT,
        Reason.DIRECTED_TARGET,
        Reason.BAILED_OUT,
    ]


@pytest.mark.parametrize("letter", "dta")
def test_rejections_are_in_a_row_across_a_direction(letter: str) -> None:
    """A direction is the user's word, and says nothing of the drafts."""
    made = directed(f"..{letter}...", RouterConfig(tau=1e9, bail_out=2))
    assert reasons(made)[1] is reasons(made)[3] is Reason.FELL_SHORT
    assert reasons(made)[4:] == [Reason.BAILED_OUT] * 2


def test_blocks_that_a_direction_rejects_are_no_rejections_that_count() -> None:
    made = directed(".rrrr.", RouterConfig(tau=1e9, bail_out=2))
    assert reasons(made)[-1] is Reason.FELL_SHORT


def test_all_dots_are_no_directions_at_all() -> None:
    router = RouterConfig(policy="relative", tau=-0.5)
    assert direct(router, "......", 6, 0) == direct(router, "", 6, 0) == router
    assert direct(router, ".....t", 6, 0) != router
    plain, dotted = directed("", router), directed("......", router)
    assert torch.equal(latents_of(plain), latents_of(dotted))
    assert [record.decision for record in records(plain)] == [record.decision for record in records(dotted)]
    assert None not in [record.decision.threshold for record in records(plain)[1:]]


# --- after a clip


@pytest.mark.parametrize("frames", [1, 3, 6, 7])
def test_directions_and_takes_count_the_blocks_of_the_run_and_not_those_of_the_clip(frames: int) -> None:
    clip = torch.randn(1, 4, frames, *SIZE, generator=generator_of(9))
    made = directed("t.d.a.", RouterConfig(tau=0.3), takes="2:5", given=clip)
    assert [one.block.span.index for one in made] == [frames // 3 + n for n in range(6)]
    assert [one.block.span.take for one in made] == [1, 5, 1, 1, 1, 1]
    found = reasons(made)
    assert (found[0], found[2], found[4]) == (Reason.DIRECTED_TARGET, Reason.DIRECTED_DRAFT, Reason.DIRECTED_KEPT)
    assert all(reason in (Reason.REACHED, Reason.FELL_SHORT) for reason in found[1::2])


def test_letters_beyond_the_run_or_before_it_direct_nothing() -> None:
    router = direct(RouterConfig(), "td", 2, 3)
    assert [router.direction(index) for index in range(7)] == [".", ".", ".", "t", "d", ".", "."]
