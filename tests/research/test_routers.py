"""The routers of study and benchmark: chance, and a plan."""

import csv
from pathlib import Path

import pytest
from tiny import make_engine, run

from research.protocol import POCKET_TAUS, protocol
from research.routers import PlannedRouter, RandomRouter, planned_route, seeded
from sdvg_core import Router
from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.router import Reason, RouterConfig

ROOT = Path(__file__).resolve().parents[2]


def draws(router: RandomRouter, count: int) -> list[bool]:
    return [router.keep(index, None) for index in range(1, count + 1)]


def test_chance_keeps_its_rate_and_depends_on_seed_and_block_alone():
    kept = draws(RandomRouter(0.7, seed=3), 4000)
    # Four standard errors of a coin of 0.7 over 4000 throws are 0.029; the seed is fixed, so this cannot flicker.
    assert sum(kept) / 4000 == pytest.approx(0.7, abs=0.029)
    assert kept[:50] == draws(RandomRouter(0.7, seed=3), 50)
    assert kept[:50] != draws(RandomRouter(0.7, seed=4), 50)
    assert all(draws(RandomRouter(1.0), 99))
    assert not any(draws(RandomRouter(0.0), 99))


def test_the_study_draws_per_prompt_and_seed_what_it_drew_for_the_published_table():
    """Catches: other words, another salt, a draw for the forced block that moves the next one's."""
    ways = protocol(9, POCKET_TAUS)
    routers = {way.name: way.router for way in ways if way.group == "random"}
    with (ROOT / "docs" / "study.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["configuration"] in routers]
    assert len(rows) == 600
    for row in rows:
        router = seeded(routers[row["configuration"]], row["prompt"], int(row["seed"])).part
        drawn = "".join("d" if router.keep(index, None) else "t" for index in range(1, 9))
        assert "F" + drawn == row["route"]


def test_a_plan_with_scores_counts_its_rejections_and_one_without_does_not():
    """Both hand over, which the direction `t` does not."""
    scored, unscored = (records(planned_route(plan, bail_out=2, handover=1)) for plan in ("raraarrrr", "tdtddtttt"))
    for made in (scored, unscored):
        assert [record.author[0] for record in made] == [*"tdtddtttt"]
        assert [record.handover for record in made] == [0, 0, 1, 0, 0, 1, 1, 1, 1]
    assert [record.decision.reason for record in scored][-2:] == [Reason.BAILED_OUT] * 2
    assert {record.decision.reason for record in unscored[1:]} == {Reason.UNJUDGED_DRAFT, Reason.UNJUDGED_TARGET}


def records(router: RouterConfig) -> list[BlockRecord]:
    return [emitted.record for emitted in run(make_engine(), router)]


@pytest.mark.parametrize("router", [RandomRouter(0.5), PlannedRouter("ra")], ids=str)
def test_both_are_routers_of_the_public_protocol_with_a_key(router):
    assert isinstance(router, Router)
    assert router.key
