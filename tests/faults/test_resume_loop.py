"""The loop goes on from any block to the same end, whatever the router remembers of the blocks before."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from thinned import in_turn
from tiny import (
    CONTEXTS,
    POLICIES,
    PROMPT,
    frames_of,
    latents_of,
    make_engine,
    make_framewise,
    make_noise,
    run,
    scripted,
    timeline_of,
)

from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.router import Reason, RouterConfig
from sdvg_core.engine.speculate import EmittedBlock, speculate
from sdvg_core.engine.types import DrafterContext, plan_spans

ROUTERS = {
    "reward": RouterConfig(tau=0.3),
    "relative": RouterConfig(policy="relative", tau=-0.5),
    "bail-out": scripted("raarraaaa", bail_out=2),
    "random": RouterConfig(policy="random", rate=0.5),
    "repair": scripted("rarararar", handover=1),
}
ROUTE_AFTER_CLIP = scripted("rrrarara")


def check_rest(
    whole: list[EmittedBlock],
    cut: int,
    policy: str,
    context: DrafterContext,
    router: RouterConfig,
    make: Callable[[str], Engine] = make_engine,
) -> None:
    """Let a process that knows only latents and decisions of the first `cut` blocks make the rest."""
    engine, first = make(policy), whole[0].block.span.start
    blocks = tuple(
        replace(block, latents=block.latents.clone()) for block in whole[cut - 1].timeline.history.blocks
    )
    timeline, _ = timeline_of(blocks, engine.codec, engine.horizon)
    rest = list(
        speculate(
            engine,
            router,
            plan_spans(len(whole), 3, first),
            make_noise(),
            lambda _: PROMPT,
            drafter_context=context,
            start=timeline,
            past=tuple(e.record.decision for e in whole[:cut]),
        )
    )
    assert [e.record.decision for e in rest] == [e.record.decision for e in whole[cut:]]
    assert torch.equal(latents_of(rest), latents_of(whole[cut:]))
    assert torch.equal(frames_of(rest), frames_of(whole[cut:]))


@pytest.mark.parametrize("cuts", [(1, 5, 8), pytest.param((2, 3, 4, 6, 7), marks=pytest.mark.exhaustive)], ids=str)
@in_turn("router, context, policy", ROUTERS, CONTEXTS, POLICIES)
def test_a_run_cut_after_any_block_ends_as_if_it_had_not_been(policy, context, router, cuts):
    """Catches: a first block compared with nothing, rejections in a row forgotten, a drafter's history cut off."""
    whole = run(make_engine(policy), ROUTERS[router], drafter_context=context)
    for cut in cuts:
        check_rest(whole, cut, policy, context, ROUTERS[router])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_with_a_frame_wise_drafter_cut_after_any_block_ends_as_if_it_had_not_been(policy, context):
    """The rest cuts the committed blocks; the run itself still had the pieces that they were made of."""
    whole = run(make_framewise(policy), ROUTERS["repair"], drafter_context=context)
    for cut in (2, 5, 8):
        check_rest(whole, cut, policy, context, ROUTERS["repair"], make_framewise)


def test_the_routers_of_these_tests_do_depend_on_what_was_before():
    engine = make_engine()
    bailed = run(engine, ROUTERS["bail-out"])
    assert [e.record.decision.reason for e in bailed][-4:] == [Reason.BAILED_OUT] * 4
    thresholds = [e.record.decision.threshold for e in run(engine, ROUTERS["relative"])[1:]]
    assert len(set(thresholds)) > 2


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_clip_that_goes_on_and_is_cut_ends_as_if_it_had_not_been(context):
    """The run's first block follows blocks of another run; the drafter's own history begins after those."""
    engine = make_engine()
    earlier = run(engine, scripted("raa"), blocks=3)
    whole = run(engine, ROUTE_AFTER_CLIP, blocks=5, start=earlier[-1].timeline, drafter_context=context)
    for cut in (1, 3, 4):
        check_rest(whole, cut, "recompute", context, ROUTE_AFTER_CLIP)
