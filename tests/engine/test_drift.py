"""How far the colours of a block are from those its scene began with, and the hold on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import PROMPT, SIZE, condition, generator_of, make_engine, make_noise, run, scripted
from torch import Tensor

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, Generated, History, plan_spans
from sdvg_core.engine.wrappers import ColourHold, drift
from sdvg_core.errors import BadInput
from sdvg_core.request.request import VideoRequest

CUT = replace(condition(6), cut=True)
SPANS = plan_spans(4, 3)


def latents(seed: int) -> Tensor:
    """Four channels that differ in mean and deviation."""
    drawn, means = torch.randn(1, 4, 3, *SIZE, generator=generator_of(seed)), seed * torch.arange(4)
    return drawn * torch.tensor([0.5, 1.0, 2.0, 3.0]).view(1, 4, 1, 1, 1) + means.view(1, 4, 1, 1, 1)


def plainly(block: Tensor, first: Tensor) -> float:
    """The same channel by channel, with other words."""
    total = 0.0
    for channel in range(4):
        a, b = block[0, channel].double().flatten(), first[0, channel].double().flatten()
        spread_a, spread_b = a.std(unbiased=False), b.std(unbiased=False)
        total += float(((a.mean() - b.mean()) / spread_b) ** 2 + (spread_a / spread_b - 1) ** 2)
    return (total / 4) ** 0.5


def test_drift_is_the_distance_of_the_channels_means_and_deviations():
    """Catches: a mean over the wrong axis, and deviations that do not count."""
    assert drift(latents(2), latents(1)) == pytest.approx(plainly(latents(2), latents(1)), rel=1e-5)
    assert drift(latents(1), latents(1)) == 0
    assert drift(latents(1) * 2 - latents(1).mean(dim=(0, 2, 3, 4), keepdim=True), latents(1)) == pytest.approx(1)


def test_each_record_tells_the_drift_from_the_first_block_of_its_scene():
    """But for the clip's first one, which begins with a latent frame of one pixel frame."""
    made = run(make_engine(), scripted("rarar"), blocks=5, condition_of=lambda at: CUT if at >= 3 else PROMPT)
    blocks = [one.block.latents for one in made]
    expected = [None, None, drift(blocks[2], blocks[1]), None, drift(blocks[4], blocks[3])]
    assert [one.record.drift for one in made] == expected


class Maker:
    """Makes given latents."""

    name, block_frames, latent_channels, anchor_horizon = "model", 3, 4, 0
    timesteps = first_timesteps = (1000.0, 500.0)

    def generate(self, call: BlockCall) -> Generated:
        return Generated((latents(8), latents(9))[: call.stop])


def held(hold: float, conditions=(PROMPT, PROMPT, PROMPT), stop=None) -> Generated:
    history = History()
    for span, shown in zip(SPANS, conditions[:-1], strict=False):
        history = history.commit(Block(span, latents(span.index + 1), shown))
    call = BlockCall(history, SPANS[len(conditions) - 1], make_noise(), conditions[-1], stop=stop)
    return ColourHold(Maker(), hold).generate(call)


def test_a_full_hold_gives_each_channel_the_colours_the_scene_began_with():
    made = held(1.0)
    assert drift(made.latents, latents(2)) < 1e-5
    assert torch.equal(made.predictions[0], latents(8)), "steps before the last stay as they are"


def test_a_cut_begins_anew_and_steps_to_be_continued_are_not_held():
    """Catches: a hold across a cut, and estimates that the target would get changed."""
    assert torch.equal(held(1.0, (PROMPT, PROMPT, CUT)).latents, latents(9))
    assert drift(held(1.0, (PROMPT, CUT, CUT)).latents, latents(2)) < 1e-5
    for before in (0, 1):
        assert torch.equal(held(1.0, (PROMPT,) * (before + 1)).latents, latents(9))
    assert torch.equal(held(1.0, stop=1).latents, latents(8))


@pytest.mark.parametrize("hold", [-0.1, 1.1, float("nan"), "much"])
def test_a_hold_is_a_share(hold):
    with pytest.raises(BadInput, match="colour_hold is"):
        VideoRequest(colour_hold=hold)
