"""The figures of a join between two shots."""

from __future__ import annotations

import pytest
import torch

from sdvg_core.report.joins import joins, levels_of


def shot(brightness: list[float], contrast: float = 0.0, red: float = 0.0) -> torch.Tensor:
    """Return levels of frames of these brightnesses; half of the pixels are so much above it, half below."""
    frames = torch.empty(1, len(brightness), 3, 4, 4)
    frames[:] = torch.tensor(brightness)[None, :, None, None, None] / 255
    frames[..., :2] += contrast / 255
    frames[..., 2:] -= contrast / 255
    frames[:, :, 0] += red / 255
    frames[:, :, 1] -= red / 255
    return levels_of(frames)


def test_join_is_the_step_between_two_frames() -> None:
    """Catches: other frames than the last and the first, a mean of steps, brightness for contrast."""
    before = shot([100, 101, 102, 110], contrast=10)
    after = shot([130, 132, 134], contrast=40)
    (join,) = joins([before, after])
    assert join.brightness == pytest.approx(20, abs=1e-3)
    assert join.contrast == pytest.approx(30, abs=1e-3)
    assert join.usual_brightness == pytest.approx(2, abs=1e-3)
    assert join.usual_contrast == pytest.approx(0, abs=1e-3)


def test_colours_are_compared_with_the_first_shot() -> None:
    """Catches: those of the shot before, and a shift of hue that brightness does not show."""
    first = shot([100, 100])
    second = shot([100, 100], red=12)
    third = shot([90, 90])
    assert [join.from_first for join in joins([first, second, third])] == pytest.approx([12, 10], abs=1e-3)
    assert joins([first]) == []


def test_single_frame_has_no_step_of_its_own() -> None:
    """Catches: a figure that is no number after a shot of one frame."""
    (join,) = joins([shot([100]), shot([120, 121])])
    assert join.usual_brightness == pytest.approx(1, abs=1e-3)
