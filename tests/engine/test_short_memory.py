"""A model that is shown only the last blocks of a clip."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.types import Block, History, plan_spans
from sdvg_core.engine.wrappers import ShortMemory
from tests.support.tiny import (
    CONFIG,
    POLICIES,
    PROMPT,
    SIZE,
    EchoCodec,
    generator_of,
    history_of,
    make_generator,
    make_noise,
)


def blocks_of(seed: int, clip: tuple[Block, ...] = ()) -> tuple[Block, ...]:
    """Return three blocks; those of `clip` are the first."""
    spans = plan_spans(3, 3)[len(clip) :]
    random = generator_of(seed)
    made = (torch.randn(1, CONFIG.in_dim, 3, *SIZE, generator=random) for _ in spans)
    return (*clip, *(Block(span, latents, PROMPT) for span, latents in zip(spans, made, strict=True)))


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_depends_on_its_call_alone(policy: str) -> None:
    """Histories in turn, with other blocks at the same places. Catches: a block of an earlier call shown again."""
    codec = EchoCodec()
    clip = blocks_of(1)[:2]
    first, second = blocks_of(2, clip), blocks_of(3, clip)
    image = torch.full((1, CONFIG.in_dim, 1, *SIZE), 0.5)
    span = plan_spans(4, 3)[3]

    def memory() -> ShortMemory:
        return ShortMemory(make_generator(1, codec, policy), clip[1], lambda: image)

    def latents(model: ShortMemory, blocks: tuple[Block, ...]) -> Tensor:
        history: History = history_of(blocks, codec, 3)[0]
        return model.generate(BlockCall(history, span, make_noise(), PROMPT)).latents

    model = memory()
    for blocks in (first, second, first):
        assert torch.equal(latents(model, blocks), latents(memory(), blocks))


def test_memory_passes_each_block_once() -> None:
    """Catches: a first block that is another object at every call, so that all are passed again."""
    codec = EchoCodec()
    blocks = blocks_of(1)
    image = torch.zeros(1, CONFIG.in_dim, 1, *SIZE)
    model = ShortMemory(make_generator(1, codec, "incremental"), blocks[0], lambda: image)
    calls = (
        BlockCall(history_of(blocks[:past], codec, 3)[0], plan_spans(4, 3)[past], make_noise(), PROMPT)
        for past in (1, 2, 3)
    )
    assert [model.generate(call).cost.context_passes for call in calls] == [1, 1, 1]
