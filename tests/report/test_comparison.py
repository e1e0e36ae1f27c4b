"""Two videos side by side, and what a route that was taken would cost the real pair."""

from dataclasses import replace

import pytest
import torch
from sample_reports import report, route

from sdvg_core.engine.router import RouterConfig
from sdvg_core.plan.choose import block_seconds, plan, route_seconds
from sdvg_core.plan.rates import H100
from sdvg_core.plan.request import PlanRequest
from sdvg_core.pocket.comparison import ABOVE, MARGIN, SIDE, Side, side_by_side

ROUTED = report(route(RouterConfig(), [[0.0], [1.0, 0.5], [-2.0]]))
ALONE = report(route(RouterConfig(policy="always-target"), [[0.0]] * 3))


def frames(made, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(made.pixel_frames, 3, 16, 32, generator=generator)


@pytest.fixture(scope="module")
def pictures() -> list[torch.Tensor]:
    return list(side_by_side(Side("ours", frames(ROUTED, 1), ROUTED), Side("theirs", frames(ALONE, 2), ALONE)))


def test_every_pixel_of_both_videos_is_shown_as_a_sharp_square(pictures):
    """Catches smoothing, a shift by a pixel, and the two sides swapped."""
    factor = SIDE // 32
    assert len(pictures) == ROUTED.pixel_frames
    for made, seed, left in ((ROUTED, 1, MARGIN), (ALONE, 2, 2 * MARGIN + SIDE)):
        for picture, frame in zip(pictures, frames(made, seed), strict=True):
            shown = picture[0, :, ABOVE : ABOVE + 16 * factor, left : left + SIDE]
            squares = shown.unflatten(2, (32, factor)).unflatten(1, (16, factor))
            assert torch.equal(squares, frame[:, :, None, :, None].expand_as(squares))


def test_a_route_is_predicted_to_take_what_the_plan_says_of_its_blocks():
    request = PlanRequest(rates=H100, blocks=3)
    seconds = block_seconds(request)
    routed, alone = route_seconds(ROUTED.blocks, request)
    assert routed == pytest.approx(seconds.first + seconds.accepted + seconds.rejected)
    assert alone == pytest.approx(seconds.first + 2 * seconds.by_target)
    planned = plan(1000, replace(request, router=RouterConfig(policy="always-target")))
    assert alone == pytest.approx(planned.seconds.video)


def test_a_draft_that_nobody_scores_and_steps_handed_over_are_predicted_as_such():
    request = PlanRequest(rates=H100)
    balanced = RouterConfig(policy="first", forced_blocks=2, handover=2)
    made = report(route(balanced, [[0.0]] * 9))
    blocks = [made.blocks[0], replace(made.blocks[1], handover=2), *made.blocks[2:]]
    planned = plan(1000, replace(request, router=balanced))
    assert route_seconds(blocks, request)[0] == pytest.approx(planned.seconds.video)
