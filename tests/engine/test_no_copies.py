"""No copy of a K/V cache, and none of a decode state, larger than the block itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import CONFIG, PROMPT, SIZE, EchoCodec, make_generator, make_noise, random_tree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sdvg_core.engine.history import History
from sdvg_core.engine.noise import KeyedNoise
from sdvg_core.engine.types import Block, plan_spans

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


WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "item", "equal", "masked_select", "unique")


class Waits(TorchDispatchMode):
    """Notes every operation whose result the host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(func.name() == f"aten::{name}" for name in WAITS):
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_generating_a_block_never_waits_for_the_device(policy):
    """Catches: cache positions kept in tensors and read with `.item()`, one wait per layer and step."""
    generator = make_generator(1, EchoCodec(), policy, schedule="four-step")
    block = Block(plan_spans(1, 3)[0], torch.zeros(1, 4, 3, *SIZE), PROMPT)
    history = History(horizon=3).commit(block, (torch.zeros(1, 1, 3, 8, 8),) * 3)
    with Waits() as waits:
        generator.generate(history, plan_spans(1, 3, start=3)[0], make_noise(), PROMPT)
    assert waits.seen == []


def test_the_watch_sees_a_wait():
    with Waits() as waits:
        torch.ones(1).sum().item()
    assert waits.seen == ["aten::_local_scalar_dense"]


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (6, 10), (10, 4)])
@pytest.mark.parametrize("block_frames", [1, 2, 3, 4])
def test_any_size_and_any_block_length_runs(size, block_frames):
    """Catches: a token count or a block length written into the code."""
    noise = KeyedNoise(seed=0, channels=4, height=size[0], width=size[1])
    for policy in ("recompute", "incremental"):
        generator = make_generator(1, EchoCodec(), policy, window=9, sink=2)
        history = History(horizon=3)
        for span in plan_spans(4, block_frames):
            latents = generator.generate(history, span, noise, PROMPT).latents
            assert latents.shape == (1, 4, block_frames, *size)
            anchors = tuple(torch.zeros(1, 1, 3, 2 * size[0], 2 * size[1]) for _ in range(block_frames))
            history = history.commit(Block(span, latents, PROMPT), anchors)
