"""What the judge's training shows it: clips side by side, block by block, as the codec would take them."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.decoders.taehv_net import blank_memory, run_half
from training import train_judge
from training.train_judge import BLOCK, BLOCKS, LANES, Lanes, build, limited

FRAMES = BLOCKS * BLOCK


@pytest.fixture
def clip() -> tuple[Tensor, Tensor]:
    """Latents that say their time, and the pixel frames that belong to them."""
    times = torch.arange(FRAMES, dtype=torch.float16)
    latents = times.view(1, -1, 1, 1).expand(16, -1, 2, 2)
    return latents, (torch.arange(4 * FRAMES) // 4).byte().view(-1, 1, 1, 1).expand(-1, 3, 16, 16)


def test_every_lane_goes_through_its_clip_block_by_block(clip: tuple[Tensor, Tensor]):
    lanes, expected = Lanes([clip], [clip]), [lane * BLOCKS // LANES for lane in range(LANES)]
    for _ in range(2 * BLOCKS):
        z, frames, begins = lanes.next(random.Random(0))
        expected = [block % BLOCKS for block in expected]
        first = z.unflatten(0, (BLOCK, LANES))[0, :, 0, 0, 0]
        assert [int(time) for time in first] == [BLOCK * block for block in expected]
        assert begins.tolist() == [block == 0 for block in expected]
        shown = (frames * 255).round().unflatten(0, (4 * BLOCK, LANES))[:, :, 0, 0, 0]
        assert torch.equal(shown[::4], z.unflatten(0, (BLOCK, LANES))[:, :, 0, 0, 0])
        expected = [block + 1 for block in expected]


def test_the_training_sees_what_the_codec_shows():
    """Catches: other limits or another order of time than the engine's."""
    net = build().eval().requires_grad_(False)
    latents = torch.randn(1, 16, 4, 3, 3, generator=torch.Generator().manual_seed(0)) * 2
    z = limited(latents[0].transpose(0, 1))
    made, _ = run_half(net.decoder, z, blank_memory(net.decoder, z[:1], 1), 1)
    shown, _ = TaehvCodec(net, latent_channels=16, kind="taew2_1").decode(latents)
    assert torch.allclose(made[train_judge.LEADING :].clamp(0, 1), shown[0], atol=1e-5)
