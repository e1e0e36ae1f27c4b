"""What videos are measured by, the protocol's configurations, and the routers of the study."""

import sys
from dataclasses import replace

import pytest
import torch

from lab.research.looks import ROWS, rows_in
from lab.research.metrics import Oracle, parse_external
from lab.research.plots import LOOKS
from lab.research.protocol import POCKET_TAUS, pick, protocol
from lab.research.routers import seeded
from lab.research.world import held_out_prompts
from sdvg_core.engine.records import BlockRecord
from sdvg_core.errors import BadInput
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.renderer import render_scene
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.route import POLICIES, At, Custom, First, Gate, Mean, Refine, Route, Stride, route_preset
from tests.support.routers import RandomRouter, planned_route
from tests.support.tiny import make_engine, run

PROMPT = held_out_prompts(1)[0]
FRAMES = torch.rand(9, 3, 16, 16, generator=torch.Generator().manual_seed(0))


# --- metrics


def test_oracle_finds_the_worst_block():
    clip = render_scene(parse(PROMPT), torch.arange(21.0))
    truth = Oracle().measure(clip, PROMPT, [9])
    assert truth["quality"] > 35
    spoilt = clip.clone()
    spoilt[9:] = spoilt[9:].flip(1)
    worse = Oracle().measure(spoilt, PROMPT, [9])
    assert worse["worst_block_quality"] < truth["quality"] - 10
    assert worse["worst_block_quality"] < worse["quality"] < truth["quality"]
    assert worse["last_block_quality"] == worse["worst_block_quality"]


# --- an external command


def external(code: str, timeout: float = 60.0):
    return replace(parse_external(f'"{sys.executable}" -c "{code}" {{video}} {{prompt}}'), timeout=timeout)


def test_external_command_gets_video_and_prompt():
    """Whole, and its last line counts."""
    code = (
        "import sys, os; print('loading'); print(os.path.getsize(sys.argv[1]) > 100 and len(sys.argv[2])); print()"
    )
    prompt = 'a "red" ball; $(rm) {video}'
    assert external(code).measure(FRAMES, prompt, []) == {"external": float(len(prompt))}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('fine')", "could not convert string to float: 'fine'"),
        ("raise SystemExit('no weights')", "it ended with exit status 1"),
        ("import time; time.sleep(30)", r"it took over 0\.5 s"),
    ],
)
def test_external_command_without_a_number_is_refused(code, message):
    """Catches a reason that is cut off, behind a command with a long path."""
    with pytest.raises(BadInput, match=message):
        external(f"{code}  # {'long ' * 100}", 0.5 if "sleep" in code else 60.0).measure(FRAMES, "a ball", [])


# --- the protocol


def test_names_of_configurations_state_their_routes():
    configurations = protocol(9, POCKET_TAUS)
    names = [configuration.name for configuration in configurations]
    assert len(set(names)) == len(names)
    by_name = {configuration.name: configuration for configuration in configurations}
    assert by_name["passes-2@9"].route == Route(First(9), target_steps=2)
    assert by_name["hybrid@-0.7"].route == route_preset("hybrid")
    assert [name for name in names if name.startswith("hybrid")] == [f"hybrid@{t:g}" for t in (-1.25, -0.7, -0.4)]
    assert by_name["stride-3@4"].route == Route(Stride(4), handover=3)
    short = by_name["drafts-3:hybrid@-0.7"]
    assert (short.route, short.draft_steps) == (route_preset("hybrid"), 3)
    assert {c.group for c in configurations} - {"ends", "anchor-only"} == {*LOOKS}, "each is drawn"
    assert by_name["reward-mean@-0.7"].route.policy == Gate(by=Mean())
    assert by_name["handover-2@4"].route == Route(First(4), handover=2)
    assert by_name["random-unforced@0.7"].route == Route(Custom(RandomRouter(0.7), forced_blocks=0))
    assert by_name["draft-only"].route == Route(First(0))
    assert by_name["own@-0.7"].drafter_context == "own"


def test_every_policy_has_a_configuration():
    """But for two that have looks of their own. Catches: a policy that the study leaves out."""
    policies = {type(configuration.route.policy) for configuration in protocol(9, POCKET_TAUS)}
    assert policies == {*POLICIES.values(), Custom} - {At, Refine}


def test_configurations_are_picked_in_the_protocols_order():
    everything = protocol(9, POCKET_TAUS)
    names = [c.name for c in pick(everything, ["reward-min@*", "target-only"])]
    assert names[0] == "target-only"
    assert len(names) == 5
    assert pick(everything, []) == everything


def test_pattern_without_configurations_is_refused():
    with pytest.raises(BadInput, match=r"called 'nothing@\*'; choose among target-only, "):
        pick(protocol(9, POCKET_TAUS), ["nothing@*"])


def draws(router: RandomRouter, count: int) -> list[bool]:
    return [router.keep(index, None) for index in range(1, count + 1)]


def test_chance_keeps_its_rate():
    accepted = draws(RandomRouter(0.7, seed=3), 4000)
    # Four standard errors of a coin of 0.7 over 4000 throws are 0.029; the seed is fixed, so this cannot flicker.
    assert sum(accepted) / 4000 == pytest.approx(0.7, abs=0.029)
    assert all(draws(RandomRouter(1.0), 99))
    assert not any(draws(RandomRouter(0.0), 99))


def test_chance_depends_on_the_seed_alone():
    accepted = draws(RandomRouter(0.7, seed=3), 50)
    assert accepted == draws(RandomRouter(0.7, seed=3), 50)
    assert accepted != draws(RandomRouter(0.7, seed=4), 50)


def test_study_draws_the_published_routes():
    """Catches: other words, another salt, a draw for the forced block that moves the next one's."""
    ways = protocol(9, POCKET_TAUS)
    routes = {way.name: way.route for way in ways if way.group == "random"}
    rows = [row for row in rows_in(ROWS / "ways.csv") if row["way"] in routes]
    assert len(rows) == 600
    prompts = held_out_prompts(100)
    for row in rows:
        router = seeded(routes[row["way"]], prompts[int(row["prompt"])], int(row["seed"])).policy.router
        drawn = "".join("d" if router.keep(index, None) else "t" for index in range(1, 9))
        assert "F" + drawn == row["route"]


def test_plan_without_scores_never_bails_out():
    """Both hand over, which the direction `t` does not."""
    scored = records(planned_route("raraarrrr", bail_out=2, handover=1))
    unscored = records(planned_route("tdtddtttt", bail_out=2, handover=1))
    for blocks in (scored, unscored):
        assert [record.author[0] for record in blocks] == [*"tdtddtttt"]
        assert [record.handover for record in blocks] == [0, 0, 1, 0, 0, 1, 1, 1, 1]
    assert [record.decision.reason for record in scored][-2:] == [Reason.BAILED_OUT] * 2
    assert {record.decision.reason for record in unscored[1:]} == {Reason.UNJUDGED_DRAFT, Reason.UNJUDGED_TARGET}


def records(router: Route) -> list[BlockRecord]:
    return [emitted.record for emitted in run(make_engine(), router)]
