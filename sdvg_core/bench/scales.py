"""The two sizes a benchmark runs at: the real pair on a GPU, and one that any machine runs in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..plan.request import PlanRequest
from ..pocket.random_set import DRAFTER, REWARD, TARGET, VAE_BASE

# The words the tiny scorer knows, and the tokens of a prompt.
TINY_WORDS, TINY_TEXT = 128, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What is run: `request` names the models' sizes, dtypes and presets, the video's size and its blocks."""

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
