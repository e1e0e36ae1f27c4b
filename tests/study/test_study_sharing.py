"""Configurations that share blocks give the very rows they would have given alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from study_tiny import EVERYTHING, SOME, TAUS, embedding, lasting, open_tiny_bench, plan, rows_of, unit
from tiny import BrightScorer, make_engine, make_noise

from sdvg_core.engine.parts import Engine
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.speculate import speculate
from sdvg_core.engine.types import Condition, plan_spans
from sdvg_core.study.equipment import Equipment, configured
from sdvg_core.study.memo import Ledger, Memo, Sharing
from sdvg_core.study.protocol import protocol
from sdvg_core.study.unit import _hash


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_rows_with_and_without_sharing_are_the_same(policy):
    """Catches a key that leaves out the history, the decoder's state, or what a repair was given."""
    shared = rows_of(open_tiny_bench(policy), unit())
    alone = [row for c in EVERYTHING for row in rows_of(open_tiny_bench(policy, memo_bytes=0), unit([c]))]
    if policy == "incremental":  # whose context passes are those of the row that made a block
        for row in (*shared, *alone):
            del row["passes"]["drafter_context"], row["passes"]["target_context"]
    assert [lasting(row) for row in shared] == [lasting(row) for row in alone]
    assert len({row["latents_sha256"] for row in shared}) > len(shared) // 3


def test_a_row_is_the_video_that_the_loop_makes_without_any_memo():
    rows = {row["configuration"]: row for row in rows_of(open_tiny_bench(), unit())}
    condition = Condition(embedding("a red ball"), "a red ball", "a red ball")
    for configuration in EVERYTHING:
        if configuration.router.script or configuration.group.startswith("random"):
            continue
        emitted = list(
            speculate(
                make_engine(),
                configuration.router,
                plan_spans(5, 3),
                make_noise(7),
                lambda _: condition,
                drafter_context=configuration.drafter_context,
            )
        )
        latents = torch.cat([one.block.latents for one in emitted], dim=2)
        assert rows[configuration.name]["latents_sha256"] == _hash(latents), configuration.name


def test_a_fixed_route_gives_each_block_to_its_author_and_drafts_nothing_in_vain():
    rows = {row["configuration"]: row for row in rows_of(open_tiny_bench(), unit())}
    assert rows["every@3"]["route"] == "Fddtd"
    assert rows["every@3"]["accepted"] == [False, True, True, False, True]
    assert rows["first@3"]["accepted"] == [False, False, False, True, True]
    assert (rows["every@3"]["target_calls"], rows["every@3"]["draft_calls"]) == (2, 3)
    assert rows["handover-1@3"]["route"] == "FFFdd"


def test_a_target_with_fewer_passes_makes_all_blocks_but_the_first_with_them():
    """Catches: the control's first block in few passes too, or a block taken from the target with all its steps."""
    engine = make_engine(schedule="four-step")
    few = make_engine(schedule="1000,625").target
    bench = replace(open_tiny_bench(), engine=engine, targets={"1000,625": few})
    wanted = [c for c in protocol(5, TAUS) if c.name in ("target-only", "passes-2@5", "first@3", "passes-2@3")]
    rows = {row["configuration"]: row for row in rows_of(bench, unit(wanted))}
    assert rows["target-only"]["passes"]["target_denoising"] == 20
    assert rows["passes-2@5"]["passes"]["target_denoising"] == 4 + 4 * 2
    assert rows["passes-2@3"]["passes"]["target_denoising"] == 4 + 2 * 2
    assert rows["passes-2@3"]["passes"]["drafter_denoising"] == 2 * 4
    condition = Condition(embedding("a red ball"), "a red ball", "a red ball")
    run = replace(bench.run(condition, 7, RouterConfig(policy="first", forced_blocks=3)))
    whole = next(iter(run.blocks()))
    rest = few.generate(whole.timeline.history, run.spans[1], run.noise, condition).latents
    alone = rows_of(replace(bench, memo_bytes=0), unit(wanted))
    assert [lasting(row) for row in rows.values()] == [lasting(row) for row in alone]
    emitted = list(
        configured(
            run, wanted[-1], Sharing(engine, targets=bench.targets).engine(Ledger(), "1000,625"), run.clock
        ).blocks()
    )
    assert torch.equal(emitted[0].block.latents, whole.block.latents)
    assert torch.equal(emitted[1].block.latents, rest)


def test_what_is_known_is_not_made_again():
    rows = {row["configuration"]: row for row in rows_of(open_tiny_bench(), unit(SOME))}
    anchor = rows["anchor-only"]["sharing"]
    assert anchor["asked"] == {"target": 1, "draft": 4, "decode": 5}
    assert anchor["made"].get("target", 0) == 0
    assert rows["target-only"]["sharing"]["made"] == {"target": 5, "decode": 5}


def test_random_routes_differ_between_prompts_but_not_between_calls():
    """Catches a random router that is seeded alike for every prompt."""
    wanted = [c for c in EVERYTHING if c.name == "random@0.6"]
    prompts = [f"a red ball {i}" for i in range(6)]
    routes = [rows_of(open_tiny_bench(), unit(wanted, prompt))[0]["route"] for prompt in prompts]
    assert len(set(routes)) > 1
    assert routes[0] == rows_of(open_tiny_bench(), unit(wanted, prompts[0]))[0]["route"]


class Clockwork:
    """An engine whose parts take known times on a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        inner = make_engine()
        for part, name, cost in (
            (inner.drafter, "generate", 1.0),
            (inner.target, "generate", 10.0),
            (inner.codec, "decode", 2.0),
            (inner.scorer, "score", 0.5),
        ):
            setattr(part, name, self._timed(getattr(part, name), cost))
        self.engine: Engine = inner

    def _timed(self, call, cost: float):
        def timed(*args, **kwargs):
            self.now += cost
            return call(*args, **kwargs)

        return timed

    def bench(self, memo_bytes: float) -> Equipment:
        return Equipment(
            engine=self.engine, blocks=5, width=8, height=8, memo_bytes=memo_bytes, clock=lambda: self.now
        )


@pytest.mark.parametrize("memo_bytes", [0, 1 << 30])
def test_a_rows_seconds_are_those_of_the_run_alone_whatever_was_shared(memo_bytes):
    """Catches a clock that does not move on for what was looked up."""
    for row in rows_of(Clockwork().bench(memo_bytes), unit()):
        asked = row["sharing"]["asked"]
        costs = {"draft": 1.0, "target": 10.0, "decode": 2.0, "score": 0.5}
        expected = sum(costs[kind] * count for kind, count in asked.items())
        assert row["seconds"]["total"] == pytest.approx(expected, abs=1e-6), row["configuration"]
    by_name = {row["configuration"]: row for row in rows_of(Clockwork().bench(memo_bytes), unit())}
    assert by_name["target-only"]["seconds"]["total"] == pytest.approx(5 * 12)
    assert by_name["anchor-only"]["seconds"]["total"] == pytest.approx(12 + 4 * 3)
    assert by_name["anchor-only"]["seconds"]["first_block"] == pytest.approx(12)


def test_forgetting_costs_time_and_changes_no_row():
    roomy, tight = (rows_of(open_tiny_bench(memo_bytes=b), unit()) for b in (1 << 30, 40_000))
    assert [lasting(row) for row in roomy] == [lasting(row) for row in tight]

    def made(rows):
        return sum(sum(row["sharing"]["made"].values()) for row in rows)

    assert made(roomy) < made(tight)


def test_a_memo_keeps_its_arguments_so_that_no_id_comes_again():
    """Catches a memo of bare ids: a new tensor may lie where a freed one lay, and be taken for it."""
    memo, ledger = Memo(), Ledger()
    for i in range(200):
        value = torch.full((1,), float(i))
        assert float(memo.call("same", (value,), ledger, value.clone)) == i


def test_an_external_scorer_sees_each_draft_once():
    scorer = BrightScorer()
    inner = make_engine()
    engine = Engine(drafter=inner.drafter, target=inner.target, codec=inner.codec, scorer=scorer)
    shared = Sharing(engine).engine(Ledger())
    frames = torch.rand(1, 2, 3, 4, 4)
    for frame_set, prompt in itertools.product([frames], ["a", "b", "a"]):
        shared.scorer.score(frame_set, prompt)
    assert scorer.prompts == ["a", "b"]


def test_gains_hold_both_models_blocks_after_the_same_history():
    from sdvg_core.study.unit import run_unit

    gains = [record for file, record in run_unit(open_tiny_bench(), unit((), gains=True)) if file == "gains.jsonl"]
    assert [gain["block"] for gain in gains] == [1, 2, 3, 4]
    assert all(gain["target_quality"] != gain["draft_quality"] for gain in gains)
    rows = rows_of(open_tiny_bench(), unit(protocol(5, (-1000.0, -999.0), timesteps=(1000.0, 625.0))))
    kept = next(row for row in rows if row["configuration"] == "reward-min@-1000")
    assert [gain["worst_score"] for gain in gains] == kept["worst_scores"][1:]
    assert plan().pairs
