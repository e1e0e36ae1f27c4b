"""What a block costs, and what a generator keeps, does not grow with the clip: operations, passes, tables."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.forward import compiled_stages
from sdvg_core.causal_wan.generator import REMEMBERED_TABLES, CausalWanGenerator
from sdvg_core.devices.compiling import INDUCTOR
from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.speculate import EmittedBlock
from sdvg_core.engine.types import History, plan_spans
from tests.support.tiny import (
    CONFIG,
    POLICIES,
    PROMPT,
    EchoCodec,
    can_compile,
    latents_of,
    make_engine,
    make_generator,
    make_noise,
    random_tree,
    run,
    scripted,
)


class OpenOps(TorchOps):
    """Attention as two matrix products, which every torch counts."""

    def attention(self, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return (F.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v).transpose(1, 2).flatten(2)


@dataclass
class Counted:
    """Count a generator's operations, and its denoising and context passes, by the block's number."""

    inner: Any
    operations: dict[int, int] = field(default_factory=dict)
    passes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.inner._model
        self.inner._model = replace(model, wan=replace(model.wan, ops=OpenOps(torch.float32)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, call: Any) -> Any:
        # Not in inference mode, where torch 2.5 does not count linear layers.
        with torch.no_grad(), FlopCounterMode(display=False) as count:
            generated = CausalWanGenerator.generate.__wrapped__(self.inner, call)
        self.operations[call.span.index] = count.get_total_flops()
        self.passes[call.span.index] = (generated.cost.denoising_passes, generated.cost.context_passes)
        return generated


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
        ("incremental", 9, 16, True),
        pytest.param("incremental", 9, 256, True, marks=pytest.mark.exhaustive),
        pytest.param("recompute", 0, 64, False, marks=pytest.mark.exhaustive),
    ],
)
def test_cost_of_blocks_is_flat_from_block_three(policy, window, blocks, relative):
    """Catches: context that grows with the history, and a window that is passed anew."""
    for model in counted_run(policy, "r" * blocks, window=window, relative=relative):
        assert {model.operations[block] for block in range(3, blocks)} == {model.operations[3]}
        assert model.operations[3] > 2 * LINEAR_OPERATIONS
        assert {model.passes[block] for block in range(3, blocks)} == {(2, 1)}
        # A window that is kept is full from there on; one that is recomputed is as long for block 1.
        assert (model.operations[1] < model.operations[3]) == (policy == "incremental")


# --- what is kept


@pytest.mark.parametrize("policy", POLICIES)
def test_generator_is_freed_without_the_garbage_collector(policy: str) -> None:
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


GRID = (3, 2, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rotated_in_float32(dtype):
    """And rounded once. Catches: angles rounded to the activations' dtype, an error that grows with the clip."""
    ops = TorchOps(dtype)
    tree = random_tree(1)
    table = ops.rope(tree, 300, GRID, torch.device("cpu"))
    x = torch.randn(1, 12, tree.num_heads, tree.dim // tree.num_heads, generator=torch.Generator().manual_seed(0))
    exact = TorchOps(torch.float64).rotate(x.to(dtype).float(), table)
    assert torch.equal(ops.rotate(x.to(dtype), table), exact.to(dtype))


def test_few_of_a_thousand_rotary_tables_stay_alive():
    """Catches: a memo that keeps all of them, 2.4 MB each at 832x480, as long as the video goes on."""
    rope = make_generator(1, EchoCodec())._model.rope
    tables = [weakref.ref(rope(first, GRID)[0]) for first in range(1000)]
    gc.collect()
    assert sum(table() is not None for table in tables) == REMEMBERED_TABLES


ROUTE = scripted("rarraaar")
BLOCKS = 8
STEPS = "1000,750,250"


def plain(policy: str) -> list[EmittedBlock]:
    return run(make_engine(policy, schedule=STEPS), ROUTE, blocks=BLOCKS)


@pytest.mark.parametrize("policy", POLICIES)
def test_layer_is_compiled_in_three_pieces_once(policy, fresh_compiler):
    """Catches a position, a slot, a layer's number or a timestep that is a constant of the compiled code."""
    counter = CompileCounterWithBackend("eager")
    stages = compiled_stages(counter)
    engine = make_engine(policy, schedule=STEPS, stages=stages)
    counts: list[int] = []

    def count_before_block(index: int):
        counts.append(counter.frame_count)
        return PROMPT

    blocks = run(engine, ROUTE, blocks=BLOCKS, condition_of=count_before_block)
    assert counter.frame_count == 3
    assert set(counts[4:]) == {3}
    assert torch.equal(latents_of(blocks), latents_of(plain(policy)))


@pytest.mark.exhaustive
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
@pytest.mark.parametrize("policy", POLICIES)
def test_machine_code_makes_the_same_video_to_rounding(policy, fresh_compiler):
    """Fused sums are taken in another order; float32 has 24 bits, and blocks follow from one another."""
    stages = compiled_stages(INDUCTOR)
    blocks = run(make_engine(policy, schedule=STEPS, stages=stages), ROUTE, blocks=BLOCKS)
    expected = latents_of(plain(policy))
    assert (latents_of(blocks) - expected).norm() < 1e-3 * expected.norm()


def test_layer_that_cannot_be_compiled_whole_is_refused(fresh_compiler):
    """Catches: a layer that is compiled by half, in silence, for a branch that depends on its values."""
    stages = compiled_stages("eager")
    engine = make_engine("recompute", schedule=STEPS, stages=stages, tree_of=random_tree)

    class Asking(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    engine.target._model.wan.tree.blocks[0].ffn = Asking()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        run(engine, ROUTE, blocks=BLOCKS)
