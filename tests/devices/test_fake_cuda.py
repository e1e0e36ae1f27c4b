"""Every tensor on its device: the benchmark's videos at their real size, on tensors without memory.

torch's FakeTensorMode keeps shapes, dtypes and devices, and no numbers; an operation on tensors of two devices is
an error as on a GPU. The device `lazy` stands for CUDA, whose name a build of torch without CUDA cannot even index
with. What needs a GPU itself is not here: streams, events, compiled code and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import models
from benchmarks.measure import Bench, Gauge
from benchmarks.models import PROMPT, Models, random_models
from benchmarks.variants import Case, Variant, parse_route, parse_variant, set_up
from sdvg_core.causal_wan import attention, forward
from sdvg_core.causal_wan.presets import shifted_table
from sdvg_core.decoders import wan_vae
from sdvg_core.devices import execution
from sdvg_core.devices.execution import Execution
from sdvg_core.engine import speculate
from sdvg_core.engine.router import decide
from sdvg_core.engine.types import FiniteChecks
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.scorers import preprocess
from sdvg_core.scorers.blip import ImageRewardConfig

GPU, OTHER_GPU, CPU = torch.device("lazy", 0), torch.device("lazy", 1), torch.device("cpu")
BLOCKS = 3  # the third's context is the first that a picture is encoded for
# Three steps, the fewest of which two can be handed over: later ones meet and hold what the second does.
REQUEST = PlanRequest(
    **{
        role: replace(
            model,
            config=replace(model.config, num_layers=2),
            preset=replace(model.preset, schedule="1000,750,500"),
        )
        for role, model in PlanRequest().models.items()
    },
    blocks=BLOCKS,
    reward=replace(ImageRewardConfig(), vision_layers=2, text_layers=2),
)


class Shapes(FakeTensorMode):
    """A mode that what is made in it may be copied in."""

    def __deepcopy__(self, memo: Any) -> Shapes:
        return self


class NoFloat64(TorchDispatchMode):
    """A mode in which the device has no float64, as Apple's: no operation there may take or return any."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, kwargs, found)):
            if isinstance(one, Tensor) and one.device.type == GPU.type and one.dtype == torch.float64:
                raise TypeError(f"{func} has float64 on a device without it")
        return found


class Empty(models.Random):
    """Weights of no numbers; a generator of random ones needs the device."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, device=self.device)


@pytest.fixture
def shapes(monkeypatch) -> Iterator[None]:
    """Tensors without memory, and stand-ins for what looks at numbers or asks the device itself."""
    taps = preprocess._bicubic_taps

    def decide_blindly(config, index, count, score):
        scores = score(range(count))
        assert scores.device == CPU
        with unset_fake_temporarily():
            return decide(config, index, torch.zeros(scores.shape))

    def taps_of_the_host(source, target):
        with unset_fake_temporarily():
            found = taps(source, target)
        return tuple(torch.empty(each.shape, dtype=each.dtype) for each in found)

    monkeypatch.setattr(models, "Random", Empty)
    monkeypatch.setattr(preprocess, "_bicubic_taps", taps_of_the_host)
    monkeypatch.setattr(speculate, "score_and_decide", decide_blindly)
    monkeypatch.setattr(FiniteChecks, "read", lambda *_: None)
    monkeypatch.setattr(speculate, "drift_of", lambda *_: None)
    shifted_table()  # of numbers, not of shapes: made before the tensors lose theirs
    preprocess._taps_on.cache_clear()
    preprocess._normalisation.cache_clear()
    monkeypatch.setattr(attention, "capability", lambda device: attention.HOPPER)
    for module in (forward, wan_vae):
        monkeypatch.setattr(module, "compiled", lambda work, backend: work)
    with Shapes():
        yield
    preprocess._taps_on.cache_clear()
    preprocess._normalisation.cache_clear()


def make(made: Models, request: PlanRequest, variant: Variant, route: str) -> tuple[int, ...]:
    """Make a video; return the shape of its frames."""
    setups = set_up([variant], made, request)
    assert setups[variant.name].kernels == {"drafter": "cudnn", "target": "cudnn"}
    bench = Bench(setups=setups, request=request, clock=float, gauge=Gauge(torch.device("cpu")))
    case = Case(route=parse_route(route, BLOCKS), variant=variant)
    found = list(bench.run(case).blocks())
    assert sum(block.latents.shape[2] for block in (one.block for one in found)) == 3 * BLOCKS
    return tuple(torch.cat([one.frames for one in found], dim=1).shape)


def test_a_tensor_of_the_host_that_meets_one_of_the_device_is_seen(shapes):
    here, there = torch.empty(2), torch.empty(2, device=GPU)
    with pytest.raises(RuntimeError, match=r"same device|different devices"):
        here + there
    assert (there + torch.tensor(1.0)).device == GPU  # a number alone may come from the host, there as here


heavy = pytest.mark.heavy


@heavy
def test_a_video_of_real_size_meets_no_tensor_of_another_device(shapes):
    elsewhere = random_models(REQUEST, OTHER_GPU)
    made = replace(random_models(REQUEST, GPU), vae=elsewhere.vae, scorer=elsewhere.scorer)
    assert make(made, REQUEST, parse_variant("diffusers"), "anchor-only") == (1, 33, 3, 480, 832)


@heavy
def test_so_it_is_with_weights_and_keys_and_values_in_fp8(shapes):
    preset = replace(REQUEST.target.preset, policy="incremental", window=6)
    models = {role: replace(model, preset=preset) for role, model in REQUEST.models.items()}
    request = replace(REQUEST, execution=Execution(kv_dtype="float8_e4m3fn"), **models)
    made = random_models(request, GPU, fp8=True)
    assert make(made, request, parse_variant("diffusers", request.execution), "r=1") == (1, 33, 3, 480, 832)


@heavy
def test_a_device_without_float64_is_given_none(shapes, monkeypatch):
    """Catches: angles, time embeddings or a denoising step in float64 on a Mac's GPU, which refuses it."""
    monkeypatch.setattr(execution, "WITHOUT_FLOAT64", (GPU.type,))
    target = replace(REQUEST.target, preset=replace(REQUEST.target.preset, policy="incremental", window=6))
    request = replace(REQUEST, target=target)
    made = random_models(request, GPU)
    with NoFloat64():
        assert make(made, request, parse_variant("diffusers"), "r=1") == (1, 33, 3, 480, 832)
        with pytest.raises(TypeError, match="float64"):
            torch.empty(2, device=GPU).double()


def test_scores_come_to_the_host_from_frames_on_either(shapes):
    scorer = random_models(REQUEST, GPU).scorer
    for device in (GPU, CPU):
        scores = scorer.score(torch.empty(1, 5, 3, 480, 832, device=device), PROMPT)
        assert (scores.shape, scores.dtype, scores.device) == ((5,), torch.float32, CPU)
