"""Rotary tables are computed once for every position in use, are those of that position, and do not pile up."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from tiny import make_engine, random_tree, run, scripted

from sdvg_core.causal_wan.attention import REMEMBERED_TABLES, RopeTables, TorchOps

CPU = torch.device("cpu")
GRID = (3, 2, 2)


class CountingOps(TorchOps):
    """Notes each table that is built."""

    def __init__(self) -> None:
        super().__init__(torch.float32)
        self.built: list[tuple[int, tuple[int, int, int]]] = []

    def rope(self, tree, first, grid, device):
        self.built.append((first, grid))
        return super().rope(tree, first, grid, device)


def counted(generator) -> CountingOps:
    ops, model = CountingOps(), generator._model
    generator._model = replace(model, ops=ops, rope=RopeTables(model.tree, ops, model.device))
    return ops


@pytest.mark.parametrize(
    "policy, script, drafter, target",
    [
        ("recompute", "raarraaar", 2, 2),
        # One for every position that the model makes a block at, and of blocks it did not make, for the context.
        ("incremental", "raaaaaaar", 9, 9),
    ],
)
def test_a_nine_block_run_builds_so_many_tables(policy, script, drafter, target):
    """Catches: a table built anew for each context pass and each block, 17 in a run of nine."""
    engine = make_engine(policy)
    ops = [counted(engine.drafter), counted(engine.target)]
    run(engine, scripted(script))
    assert [len(found.built) for found in ops] == [drafter, target]
    if policy == "recompute":
        assert ops[1].built == [(0, GRID), (3, GRID)]


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
    tables = RopeTables(random_tree(1), TorchOps(torch.float32), CPU)
    seen = [weakref.ref(tables(first, GRID)[0]) for first in range(1000)]
    gc.collect()
    assert sum(ref() is not None for ref in seen) == REMEMBERED_TABLES
