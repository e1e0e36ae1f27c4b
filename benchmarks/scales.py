"""The scales of a benchmark: the real pair on a GPU, one in its proportions for a CPU, and a tiny one.

Proportional means operations: a block of the drafter, its decode and its score stand to a block of the target as
with the published pair, to 10 % (a test counts). How fast each of them runs is the machine's own matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.plan.request import PlanRequest
from sdvg_core.scorers.config import ImageRewardConfig

from .routes import ANCHOR_ONLY, DEFAULT, TARGET_ONLY

# The words the tiny scorer knows, and the tokens of a prompt.
TINY_WORDS, TINY_TEXT = 128, 64

TEXT_WIDTH = 128  # the trained set's, so that each may read the other's text
VAE_BASE = 8
DRAFTER = WanConfig(dim=128, ffn_dim=256, num_layers=2, num_heads=1, text_dim=TEXT_WIDTH)
TARGET = WanConfig(dim=256, ffn_dim=512, num_layers=3, num_heads=2, text_dim=TEXT_WIDTH)
REWARD = ImageRewardConfig(
    image_size=32,
    patch_size=8,
    vision_width=64,
    vision_layers=2,
    vision_mlp=128,
    vision_heads=1,
    positions=64,
    text_width=64,
    text_layers=2,
    text_mlp=128,
    text_heads=1,
    head=((0, 32), (2, 16), (4, 8), (6, 4), (7, 1)),
)

# In the real pair's proportions, for a CPU. Layers are wide, as many small ones would cost more than their work.
SMALL_TEXT = 64
SMALL_DRAFTER = WanConfig(
    dim=384, ffn_dim=2240, num_layers=11, num_heads=3, text_dim=TEXT_WIDTH, text_len=SMALL_TEXT
)
SMALL_TARGET = WanConfig(
    dim=1024, ffn_dim=3072, num_layers=18, num_heads=8, text_dim=TEXT_WIDTH, text_len=SMALL_TEXT
)
SMALL_REWARD = ImageRewardConfig(
    image_size=64,
    patch_size=16,
    vision_width=96,
    vision_layers=6,
    vision_mlp=384,
    vision_heads=1,
    vocabulary=TINY_WORDS,
    positions=64,
    text_width=64,
    text_layers=2,
    text_mlp=256,
    text_heads=1,
    head=REWARD.head,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What to run. `request`: the models' sizes, dtypes and presets, and the video's size and blocks.

    `routes`: which ones, unless others are asked for.
    """

    name: str
    device: str
    request: PlanRequest
    routes: tuple[str, ...] = DEFAULT


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="full", device="cuda", request=PlanRequest()),
        Scale(
            name="proportional",
            device="cpu",
            request=PlanRequest(
                width=112,
                height=64,
                drafter=SMALL_DRAFTER,
                target=SMALL_TARGET,
                dtype="float32",
                vae_base=12,
                vae_dtype="float32",
                reward=SMALL_REWARD,
                reward_dtype="float32",
            ),
            routes=(TARGET_ONLY, ANCHOR_ONLY, "first=2+2", "r=1", "r=2"),
        ),
        Scale(
            name="tiny",
            device="cpu",
            request=PlanRequest(
                width=32,
                height=16,
                drafter=replace(DRAFTER, text_len=TINY_TEXT),
                target=replace(TARGET, text_len=TINY_TEXT),
                dtype="float32",
                vae_base=VAE_BASE,
                vae_dtype="float32",
                reward=replace(REWARD, vocabulary=TINY_WORDS),
                reward_dtype="float32",
            ),
        ),
    )
}
