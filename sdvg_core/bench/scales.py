"""The two scales of a benchmark: the real pair on a GPU, and a tiny one that any machine runs in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..causal_wan.config import WanConfig
from ..plan.request import PlanRequest
from ..scorers.config import ImageRewardConfig

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What to run. `request`: the models' sizes, dtypes and presets, and the video's size and blocks."""

    name: str
    device: str
    request: PlanRequest


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="full", device="cuda", request=PlanRequest()),
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
