"""Counting, not timing: what each route costs in calls and forward passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import latents_of, make_engine, run, scripted

from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Work
from sdvg_core.errors import BadInput


def works(emitted, who):
    return [getattr(e.record, who) for e in emitted]


def blocks_of(generator):
    return [index for index, _ in generator.calls]


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_an_accepted_tail_costs_the_target_no_pass(policy):
    engine = make_engine(policy)
    emitted = run(engine, scripted("rraaaaaaa"))
    assert blocks_of(engine.target) == [0, 1]
    assert works(emitted, "target")[2:] == [None] * 7


def test_block_0_is_neither_drafted_nor_scored_in_committed_context():
    engine = make_engine()
    emitted = run(engine, RouterConfig(tau=-100.0))
    assert blocks_of(engine.drafter) == list(range(1, 9))
    assert engine.scorer.calls == 8
    assert not emitted[0].record.decision.scored
    assert engine.codec.decodes == 9


def test_block_0_is_drafted_but_not_scored_in_own_context():
    """The drafter goes on from its own block 0, so that one is made, when the first draft needs it."""
    engine = make_engine()
    run(engine, RouterConfig(tau=-100.0), drafter_context="own")
    assert blocks_of(engine.drafter) == list(range(9))
    assert engine.scorer.calls == 8


def test_certain_letters_draft_and_score_nothing_in_vain():
    """Only block 5 is scored; without it no scorer is needed at all."""
    engine = make_engine()
    emitted = run(engine, scripted("tddtdatdd"))
    assert blocks_of(engine.drafter) == [1, 2, 4, 5, 7, 8]
    assert blocks_of(engine.target) == [0, 3, 6]
    assert (engine.scorer.calls, engine.codec.decodes) == (1, 9)
    unscored = replace(make_engine(), scorer=None)
    made = run(unscored, scripted("tddtddtdd"))
    assert torch.equal(latents_of(made), latents_of(emitted)), "whether a kept draft is scored changes no bit"


def test_a_run_that_looks_at_scores_asks_for_a_scorer_before_it_makes_anything():
    engine = replace(make_engine(), scorer=None)
    with pytest.raises(BadInput, match="needs scores, but there is no scorer"):
        run(engine, RouterConfig())
    assert blocks_of(engine.target) == []


@pytest.mark.parametrize("context", ["committed", "own"])
def test_target_only_never_touches_drafter_or_scorer(context):
    engine = make_engine()
    run(engine, RouterConfig(policy="always-target"), drafter_context=context)
    assert (blocks_of(engine.drafter), engine.scorer.calls, engine.codec.decodes) == ([], 0, 9)


def test_a_rejected_block_after_five_accepted_ones_recomputes_one_window():
    """Recompute: one pass over three latent frames, whatever was accepted in between."""
    emitted = run(make_engine("recompute"), scripted("raaaaarar"))
    assert works(emitted, "target")[6] == Work(
        denoising_passes=2, context_passes=1, encodes=0, context_seconds=emitted[6].record.target.context_seconds
    )
    assert works(emitted, "draft")[6].encodes == 1, "the draft of that block already encoded the anchor"


def test_an_incremental_target_catches_up_once_and_in_order():
    """Six committed blocks are missing at block 6, two at block 8; the last block never gets a context pass."""
    engine = make_engine("incremental")
    emitted = run(engine, scripted("raaaaarar"))
    assert [w.context_passes for w in works(emitted, "target") if w] == [0, 6, 2]
    assert [w.context_passes for w in works(emitted, "draft") if w] == [1] * 8


def test_repair_saves_the_target_the_steps_it_takes_over():
    emitted = run(make_engine(schedule="four-step"), scripted("rarraaara", handover=3))
    remade = [w.denoising_passes for w in works(emitted, "target") if w]
    assert remade == [4, 1, 1, 1], "block 0 has no draft to take over"


def test_an_anchor_is_encoded_once_for_drafter_and_target_together():
    engine = make_engine()
    run(engine, scripted("r" * 9))
    assert engine.codec.encodes == 7, "blocks 2 to 8 look back past the clip's first frame"


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_cross_attention_is_projected_once_per_prompt_and_model(policy):
    engine = make_engine(policy)
    calls = []
    for model in (engine.drafter, engine.target):
        tree = model._model.tree
        tree.text_embedding.register_forward_hook(lambda *_, name=model.name: calls.append(name))
    run(engine, scripted("rarararar"))
    assert sorted(calls) == ["drafter", "target"]
