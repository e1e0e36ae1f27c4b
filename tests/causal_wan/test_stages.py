"""Layers with compiled stages: the same video, and few shapes."""

from __future__ import annotations

import pytest
import torch
from tiny import POLICIES, PROMPT, can_compile, latents_of, make_engine, run, scripted
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from sdvg_core.causal_wan.forward import compiled_stages
from sdvg_core.devices.execution import INDUCTOR
from sdvg_core.engine.speculate import EmittedBlock

ROUTE, BLOCKS = scripted("rarraaar"), 8
STEPS = "1000,750,250"


def plain(policy: str) -> list[EmittedBlock]:
    return run(make_engine(policy, schedule=STEPS), ROUTE, blocks=BLOCKS)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_layer_is_compiled_in_three_pieces_and_never_again(policy, fresh_compiler):
    """Catches a position, a slot, a layer's number or a timestep that is a constant of the compiled code."""
    counter = CompileCounterWithBackend("eager")
    stages = compiled_stages(counter)
    engine = make_engine(policy, schedule=STEPS, stages=stages)
    seen: list[int] = []

    def note(index: int):
        seen.append(counter.frame_count)
        return PROMPT

    made = run(engine, ROUTE, blocks=BLOCKS, condition_of=note)
    assert counter.frame_count == 3
    assert set(seen[4:]) == {3}  # asked before every block
    assert torch.equal(latents_of(made), latents_of(plain(policy)))


@pytest.mark.exhaustive
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
@pytest.mark.parametrize("policy", POLICIES)
def test_stages_compiled_to_machine_code_make_the_same_video_to_rounding(policy, fresh_compiler):
    """Fused sums are taken in another order; float32 has 24 bits, and blocks follow from one another."""
    stages = compiled_stages(INDUCTOR)
    made = run(make_engine(policy, schedule=STEPS, stages=stages), ROUTE, blocks=BLOCKS)
    expected = latents_of(plain(policy))
    assert (latents_of(made) - expected).norm() < 1e-3 * expected.norm()


def test_what_cannot_be_compiled_whole_is_an_error_and_not_half_compiled(fresh_compiler):
    stages = compiled_stages("eager")
    engine = make_engine("recompute", schedule=STEPS, stages=stages)

    class Asking(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    engine.target._model.tree.blocks[0].ffn = Asking()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        run(engine, ROUTE, blocks=BLOCKS)
