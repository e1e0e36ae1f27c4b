"""What a block costs does not grow with the clip: operations and passes, counted over 64 blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny import CONFIG, make_engine, run, scripted
from torch.utils.flop_counter import FlopCounterMode

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.generator import CausalWanGenerator


class OpenOps(TorchOps):
    """Attention as two matrix products, which every torch counts."""

    def attention(self, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return (F.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v).transpose(1, 2).flatten(2)


@dataclass
class Counted:
    """A generator whose operations are counted, and its denoising and context passes, by the block's number."""

    inner: Any
    operations: dict[int, int] = field(default_factory=dict)
    passes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inner._model = replace(self.inner._model, ops=OpenOps(torch.float32))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, call: Any) -> Any:
        # Not in inference mode, where torch 2.5 does not count linear layers.
        with torch.no_grad(), FlopCounterMode(display=False) as count:
            made = CausalWanGenerator.generate.__wrapped__(self.inner, call)
        self.operations[call.span.index] = count.get_total_flops()
        self.passes[call.span.index] = made.work.denoising_passes, made.work.context_passes
        return made


def counted_run(policy: str, script: str, **options: Any) -> tuple[Counted, Counted]:
    engine = make_engine(policy, **options)
    engine = replace(engine, drafter=Counted(engine.drafter), target=Counted(engine.target))
    run(engine, scripted(script), blocks=len(script))
    return engine.drafter, engine.target


# Of the linear layers, for every token of the block, in one pass: two for each weight.
LINEAR_OPERATIONS = 2 * 12 * CONFIG.num_layers * (6 * CONFIG.dim**2 + 2 * CONFIG.dim * CONFIG.ffn_dim)


@pytest.mark.parametrize(
    "policy, window, blocks, relative",
    [
        ("recompute", 0, 8, False),
        pytest.param("incremental", 9, 64, False, marks=pytest.mark.exhaustive),
        pytest.param("incremental", 9, 64, True, marks=pytest.mark.heavy),
        pytest.param("incremental", 9, 256, True, marks=pytest.mark.exhaustive),
        pytest.param("recompute", 0, 64, False, marks=pytest.mark.exhaustive),
    ],
)
def test_the_cost_of_a_block_is_flat_from_block_3_on(policy, window, blocks, relative):
    """Catches: context that grows with the history, and a window that is passed anew."""
    for model in counted_run(policy, "r" * blocks, window=window, relative=relative):
        assert {model.operations[block] for block in range(3, blocks)} == {model.operations[3]}
        assert model.operations[3] > 2 * LINEAR_OPERATIONS
        assert {model.passes[block] for block in range(3, blocks)} == {(2, 1)}
        # A window that is kept is full from there on; one that is recomputed is as long for block 1.
        assert (model.operations[1] < model.operations[3]) == (policy == "incremental")
