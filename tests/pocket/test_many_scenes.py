"""Scenes rendered, judged and recognised many at a time are what they are one by one."""

import torch

from research.metrics import judge
from research.world import render_with_mask
from training.common import seeded
from training.many_scenes import Scenes, quality, recognise
from training.measure_pair import scenes_of
from training.presence import presence
from training.roll_out import moment

CPU = torch.device("cpu")


def test_many_scenes_are_what_they_are_one_by_one():
    """Pictures, the oracle's decibels, and the moment that late, early and spoiled frames show."""
    scenes = scenes_of(seeded(3, "many"), 24)
    many, times = Scenes.of(scenes, CPU), torch.arange(40)
    frames, visible = many.render(times.expand(24, -1))
    spoiled = (frames + 0.1 * torch.randn(frames.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    dB = quality(many, spoiled)
    ahead, errors, on_things = recognise(many, spoiled[:, 16:24], 13, 12)
    wrong = recognise(many, frames.flip(0)[:, 16:24], 13, 12)
    for number, scene in enumerate(scenes):
        one, mask = render_with_mask(scene, times)
        torch.testing.assert_close(frames[number], one)
        torch.testing.assert_close(visible[number].sum(dim=1, keepdim=True), mask)
        torch.testing.assert_close(dB[number], judge(spoiled[number], scene).quality)
        assert ahead[number] == moment(scene, spoiled[number, 16:24], 13)
        recognised = moment(scene, frames.flip(0)[number, 16:24], 13)
        assert (wrong[1][number] < 0.06) == (recognised is not None)
        assert errors[number] < 0.02
        assert on_things[number].max() < 0.02
    blank, _ = Scenes.of(scenes, CPU).render(times.expand(24, -1))
    bare = many.ground.mean(dim=1)[:, None, :, None, None].expand_as(blank[:, :8])
    lost = recognise(many, bare, 13, 12)[2].amax(dim=1) > 0.01
    assert lost.float().mean() > 0.9
    assert presence(blank[0, :8], scenes[0], times[:8]).nan_to_num(1).min() == 1
