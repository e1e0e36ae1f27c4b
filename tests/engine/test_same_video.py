"""Working ahead changes when blocks are begun, and nothing else.

Planted mistakes and the test that turned red are named in the docstrings.
"""

from __future__ import annotations

import itertools

import pytest
from overlap_parts import ENGINE, EagerLane, run_ahead, same
from thinned import every_pair
from tiny import CONTEXTS, PROMPT, condition, make_engine, run, scripted

from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Condition

PATTERNS = ["r" + "".join(rest) for rest in itertools.product("ar", repeat=8)][::19]
LANES = ("beside", "to the end")


@pytest.fixture(params=LANES)
def lane(request, monkeypatch):
    """How far wrong guesses come, which is otherwise a matter of chance."""
    if request.param == "to the end":
        monkeypatch.setattr("sdvg_core.engine.overlap.Lane", EagerLane)


def routers() -> dict[str, RouterConfig]:
    return {
        "reward": RouterConfig(tau=0.0),
        "a reward that keeps most": RouterConfig(tau=-2.0),
        "bail-out": RouterConfig(tau=100.0, bail_out=2),
        "random": RouterConfig(policy="random", rate=0.5),
        "anchor-only": RouterConfig(policy="anchor-only"),
        "always-draft": RouterConfig(policy="always-draft", forced_blocks=0),
        "always-target": RouterConfig(policy="always-target"),
        "repair": RouterConfig(tau=0.0, handover=1),
        "first block judged": RouterConfig(tau=0.0, forced_blocks=0),
    }


@every_pair("pattern, drafter_context, lane", PATTERNS, CONTEXTS, LANES, indirect=["lane"])
@pytest.mark.usefixtures("lane")
def test_every_route_makes_the_same_video_with_the_same_decisions(pattern, drafter_context):
    """Catches: a claimed draft that went on from another block; noise of another block."""
    ahead = run_ahead(make_engine(**ENGINE, undo=1), scripted(pattern), drafter_context=drafter_context)
    same(ahead, run(make_engine(**ENGINE), scripted(pattern), drafter_context=drafter_context))


@pytest.mark.parametrize("frames", [2, 3, 6])
@pytest.mark.parametrize("pattern", PATTERNS[::2])
def test_a_drafter_whose_context_begins_with_a_picture_makes_the_same_video(pattern, frames):
    """Catches: another frame's pixels; those of a block that was decoded from another state."""
    ahead = run_ahead(make_engine("recompute", frames=frames), scripted(pattern))
    same(ahead, run(make_engine("recompute", frames=frames), scripted(pattern)))


@pytest.mark.parametrize("drafter_context", CONTEXTS)
@pytest.mark.parametrize("name", routers())
def test_every_policy_decides_the_same(name, drafter_context):
    router = routers()[name]
    ahead = run_ahead(make_engine(**ENGINE, undo=1), router, drafter_context=drafter_context)
    same(ahead, run(make_engine(**ENGINE), router, drafter_context=drafter_context))


def test_a_prompt_that_changes_reaches_the_draft_made_ahead():
    """Catches: the condition of the block before."""
    other = condition(6, "a blue cube")

    def condition_of(index: int) -> Condition:
        return PROMPT if index < 4 else other

    router, engine = scripted("raaraaara"), make_engine(**ENGINE, undo=1)
    ahead = run_ahead(engine, router, condition_of=condition_of)
    same(ahead, run(make_engine(**ENGINE), router, condition_of=condition_of))
    assert len(engine.drafter.calls) == 8 + 2, "no draft but those on a wrong guess was made anew"


def test_a_draft_for_another_prompt_than_the_one_asked_for_is_not_taken():
    """Catches: taking whatever was begun."""
    other = condition(6, "a blue cube")
    asked: list[int] = []

    def condition_of(index: int) -> Condition:
        asked.append(index)
        return other if asked.count(index) == 2 else PROMPT

    router = RouterConfig(policy="anchor-only")
    ahead = run_ahead(make_engine(**ENGINE, undo=1), router, condition_of=condition_of)
    same(ahead, run(make_engine(**ENGINE), router, condition_of=lambda index: other if index else PROMPT))
