"""What a generator keeps is little, and freed with it; its rotary tables are of their position."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tiny import POLICIES, PROMPT, EchoCodec, make_generator, make_noise, random_tree

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.generator import REMEMBERED_TABLES
from sdvg_core.engine.history import History
from sdvg_core.engine.protocols import BlockCall
from sdvg_core.engine.types import plan_spans


@pytest.mark.parametrize("policy", POLICIES)
def test_a_generator_is_freed_when_nobody_holds_it_without_the_garbage_collector(policy: str) -> None:
    """Catches a generator and its model that hold each other: keys and values would stay on the GPU for a while."""
    generator = make_generator(1, EchoCodec(), policy)
    generator.generate(BlockCall(History(horizon=3), plan_spans(1, 3)[0], make_noise(), PROMPT))
    alive = weakref.ref(generator)
    gc.disable()
    try:
        del generator
        assert alive() is None
    finally:
        gc.enable()


# --- rotary tables


CPU = torch.device("cpu")
GRID = (3, 2, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rotated_in_float32_and_rounded_once(dtype):
    """Catches: angles rounded to the activations' dtype, whose error grows with the length of the clip."""
    ops, tree = TorchOps(dtype), random_tree(1)
    table = ops.rope(tree, 300, GRID, CPU)
    x = torch.randn(1, 12, tree.num_heads, tree.dim // tree.num_heads, generator=torch.Generator().manual_seed(0))
    exact = TorchOps(torch.float64).rotate(x.to(dtype).float(), table)
    assert torch.equal(ops.rotate(x.to(dtype), table), exact.to(dtype))


def test_of_a_thousand_positions_a_few_tables_are_alive():
    """Catches: a memo that keeps all of them, 2.4 MB each at 832x480, as long as the video goes on."""
    rope = make_generator(1, EchoCodec())._model.rope
    seen = [weakref.ref(rope(first, GRID)[0]) for first in range(1000)]
    gc.collect()
    assert sum(ref() is not None for ref in seen) == REMEMBERED_TABLES
