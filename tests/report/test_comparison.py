"""Two videos next to each other."""

import pytest
import torch
from sample_reports import report, route

from sdvg_core.engine.router import RouterConfig
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
