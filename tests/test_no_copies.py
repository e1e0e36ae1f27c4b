"""No copy of a K/V cache, and none of a decode state, larger than the block itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import CONFIG, PROMPT, SIZE, EchoCodec, make_generator, make_noise, random_tree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sdvg_core.history import History
from sdvg_core.spans import plan_spans
from sdvg_core.types import Block

COPIES = ("copy_", "clone", "cat", "_to_copy", "contiguous", "stack", "repeat", "index_select")
# Wide enough that keys outweigh latents, as they do in a real model.
WIDE = replace(CONFIG, dim=96)
BLOCK_KV_BYTES = 3 * (SIZE[0] // 2) * (SIZE[1] // 2) * WIDE.dim * 4


class LargestCopy(TorchDispatchMode):
    """Watches every operation that copies, and keeps the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(func.name().startswith(f"aten::{name}") for name in COPIES):
            tensors = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
            self.bytes = max([self.bytes, *(t.nbytes for t in tensors)])
        return result


@pytest.mark.parametrize(
    "policy, options", [("recompute", {"frames": 9}), ("incremental", {"window": 30, "sink": 0})]
)
def test_generating_a_block_copies_nothing_larger_than_the_block(policy, options):
    """Catches: concatenating the cached keys with the block's own, which copies the whole window every step."""
    codec = EchoCodec()
    generator = make_generator(1, codec, policy, tree=random_tree(1, WIDE), **options)
    history, g = History(horizon=9), torch.Generator().manual_seed(0)
    for span in plan_spans(9, 3):
        latents = torch.randn(1, 4, 3, *SIZE, generator=g)
        history = history.commit(Block(span, latents, PROMPT), (torch.rand(1, 1, 3, 8, 8, generator=g),) * 3)
    span = plan_spans(1, 3, start=27)[0]
    generator.generate(history, span, make_noise(), PROMPT)
    with LargestCopy() as copies:
        generator.generate(history, span, make_noise(), PROMPT)
    # The widest thing of a block that is ever copied: its two halves, as rotary pairs are put together in float32.
    assert 0 < copies.bytes <= BLOCK_KV_BYTES


def test_the_watch_sees_a_copy_of_a_cache():
    with LargestCopy() as copies:
        torch.cat((torch.zeros(1, 1000), torch.zeros(1, 1)), 1)
    assert copies.bytes == 4004
