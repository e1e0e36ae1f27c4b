"""The benchmark's videos at their real size, on tensors without memory: devices that do not meet, and bytes.

torch's FakeTensorMode keeps shapes, dtypes and devices, and no numbers; an operation on tensors of two devices is
an error as on a GPU. The device `lazy` stands for CUDA, whose name a build of torch without CUDA cannot even index
with. The bytes of each layout are counted through the loop and the layer streams that a GPU runs, against the plan.
What needs a GPU itself is not here: streams, events, compiled code, kernels and their workspaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lab.benchmarks.measure import Bench, Gauge, metered
from lab.benchmarks.variants import Case, Setup, Variant, parse_route, parse_variant, set_up
from sdvg_core.causal_wan import attention, forward
from sdvg_core.causal_wan.generator import build_engine
from sdvg_core.decoders import wan_vae
from sdvg_core.devices import compiling
from sdvg_core.devices.streaming import LayerStream
from sdvg_core.engine import session, speculate
from sdvg_core.engine.plan import EVERY_ROLE
from sdvg_core.engine.run import plan_run
from sdvg_core.engine.types import FiniteChecks
from sdvg_core.memory.plan import Plan, plan
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.scorers import preprocess
from sdvg_core.scorers.blip import ImageRewardConfig
from sdvg_core.settings.context import Rolling
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.route import ROUTE_PRESETS, First, Route, TargetOnly
from sdvg_core.settings.schedules import shifted_table
from tests.support import random_models as models
from tests.support.live_bytes import Peak
from tests.support.random_models import PROMPT, Models, random_models
from tests.support.routers import planned_route

GPU = torch.device("lazy", 0)
OTHER_GPU = torch.device("lazy", 1)
CPU = torch.device("cpu")
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
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and leaf.device.type == GPU.type and leaf.dtype == torch.float64:
                raise TypeError(f"{func} has float64 on a device without it")
        return result


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

    def read_blindly(scores):
        assert scores.device == CPU
        return (0.0,) * len(scores)

    def taps_of_the_host(source, target):
        with unset_fake_temporarily():
            numbers = taps(source, target)
        return tuple(torch.empty(each.shape, dtype=each.dtype) for each in numbers)

    monkeypatch.setattr(models, "Random", Empty)
    monkeypatch.setattr(preprocess, "_bicubic_taps", taps_of_the_host)
    monkeypatch.setattr(session, "read_scores", read_blindly)
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


def make_video(models: Models, request: PlanRequest, variant: Variant, route: str) -> tuple[int, ...]:
    """Make a video; return the shape of its frames."""
    setups = set_up([variant], models, request)
    assert setups[variant.name].kernels == {"drafter": "cudnn", "target": "cudnn"}
    bench = Bench(setups=setups, request=request, clock=float, gauge=Gauge(torch.device("cpu")))
    case = Case(route=parse_route(route, BLOCKS), variant=variant)
    emitted = list(bench.run(case).blocks())
    assert sum(block.block.latents.shape[2] for block in emitted) == 3 * BLOCKS
    return tuple(torch.cat([block.frames for block in emitted], dim=1).shape)


def test_watch_sees_tensors_of_two_devices(shapes):
    """A number alone may come from the host, as on a GPU."""
    host = torch.empty(2)
    device = torch.empty(2, device=GPU)
    with pytest.raises(RuntimeError, match=r"same device|different devices"):
        host + device
    assert (device + torch.tensor(1.0)).device == GPU


@pytest.mark.heavy
def test_real_size_video_mixes_no_devices(shapes):
    side = random_models(REQUEST, OTHER_GPU)
    models = replace(random_models(REQUEST, GPU), vae=side.vae, scorer=side.scorer)
    assert make_video(models, REQUEST, parse_variant("diffusers"), "anchor-only") == (1, 33, 3, 480, 832)


@pytest.mark.heavy
def test_fp8_video_needs_no_float64(shapes, monkeypatch):
    """Weights, keys and values in fp8. Catches: angles, time embeddings or a step in float64 on a Mac's GPU."""
    monkeypatch.setattr(compiling, "WITHOUT_FLOAT64", (GPU.type,))
    preset = replace(REQUEST.target.preset, context=Rolling(window=6))
    sizes = {role: replace(model, preset=preset) for role, model in REQUEST.models.items()}
    request = replace(REQUEST, execution=Execution(kv_dtype="float8_e4m3fn"), **sizes)
    models = random_models(request, GPU, fp8="stored")
    variant = parse_variant("diffusers", request.execution)
    with NoFloat64():
        assert make_video(models, request, variant, "r=1") == (1, 33, 3, 480, 832)


def test_watch_sees_float64(shapes):
    with NoFloat64(), pytest.raises(TypeError, match="float64"):
        torch.empty(2, device=GPU).double()


def test_scores_come_to_the_host(shapes):
    scorer = random_models(REQUEST, GPU).scorer
    for device in (GPU, CPU):
        scores = scorer.score(torch.empty(1, 5, 3, 480, 832, device=device), PROMPT)
        assert (scores.shape, scores.dtype, scores.device) == ((5,), torch.float32, CPU)


LAYERS = 6
USUAL = replace(
    REQUEST,
    **{
        role: replace(model, config=replace(model.config, num_layers=LAYERS))
        for role, model in REQUEST.models.items()
    },
    where="on the command line",
    stored="plain",
)
ROUTERS = {
    EVERY_ROLE: planned_route("rrr"),
    frozenset({"drafter", "target"}): ROUTE_PRESETS["balanced"],
    frozenset({"target"}): Route(TargetOnly()),
    frozenset({"drafter"}): Route(First(0)),
}
"""Routes by the models that they need."""
INCREMENTAL = {
    role: replace(model, preset=replace(model.preset, context=Rolling(window=9)))
    for role, model in USUAL.models.items()
}
SLOW = INCREMENTAL["drafter"]
FRAMEWISE = {"drafter": replace(SLOW, preset=replace(SLOW.preset, block_frames=1))}


class Card(Peak, Gauge):
    """Count the bytes alive on the stand-in for a GPU, and the most there were since it was last cleared."""

    def clear(self) -> None:
        self.bytes = self.now()

    def peak(self) -> int:
        return self.bytes


def make_models(planned: Plan) -> tuple[Models, Setup]:
    """Make the models of a plan."""
    request = planned.request
    models = random_models(request, GPU, fp8="stored" if planned.fp8 else None)
    variant = Variant(name="planned", execution=request.execution, vae=request.vae)
    [setup] = set_up([variant], models, request).values()
    return models, setup


def load(planned: Plan, models: Models, setup: Setup, card: Card) -> None:
    """Count the models, but for layers that are copied over in every pass."""
    parts: dict[str, Any] = {
        "drafter": models.drafter,
        "target": models.target,
        "scorer": models.scorer.model,
        "vae": getattr(setup.codec, "_vae", None) or setup.codec.net,
    }
    for role in planned.request.parts:
        for tensor in parts[role].state_dict().values():
            card.count(tensor)
    for role, count in planned.streamed.items():
        LayerStream(parts[role].blocks[:count], GPU)


def peaks_of(planned: Plan, blocks: int = BLOCKS) -> Mapping[str, int]:
    """Make a video in the layout of a plan; return the peak of every step."""
    request = planned.request
    peaks: dict[str, int] = {}
    models, setup = make_models(planned)
    with Card(device=GPU) as card:
        load(planned, models, setup, card)
        engine = build_engine(
            setup.drafter if "drafter" in request.parts else None,
            setup.target if "target" in request.parts else None,
            setup.codec,
            models.scorer if "scorer" in request.parts else None,
            clock=float,
        )
        run = plan_run(
            metered(engine, card, peaks),
            ROUTERS[request.needed],
            lambda _: models.condition,
            blocks=blocks,
            seed=0,
            width=request.width,
            height=request.height,
        )
        for _ in run.play():
            pass
    return peaks


def lacking(request: PlanRequest, layers: float, role: str = "target") -> Plan:
    """Return the plan of a card that lacks so many layers of a transformer."""
    everything = plan(10_000, request)
    missing = layers * everything.sizes.layers[role]
    if role == "drafter":
        missing += (LAYERS - 2) * everything.sizes.layers["target"]
    planned = plan((everything.peak - missing) / 1e9, request)
    assert planned.fits
    return planned


CASES: dict[str, dict[str, Any]] = {
    "gate": {},
    "balanced": {"needed": frozenset({"drafter", "target"})},
    "always target": {"needed": frozenset({"target"})},
    "always draft": {"needed": frozenset({"drafter"})},
    "TAEHV": {"vae": "tae", "where": "in ComfyUI"},
    "incremental": INCREMENTAL,
    "framewise drafter": INCREMENTAL | FRAMEWISE,
    "half precision": {"vae_dtype": "bfloat16"},
    "keys and values in fp8": {"execution": Execution(kv_dtype="float8_e4m3fn")},
    "target in fp8": {"stored": "fp8"},
    "as in ComfyUI": {"where": "in ComfyUI"},
}
STREAMED = [
    ("as in ComfyUI", "target"),
    ("gate", "drafter"),
    ("target in fp8", "target"),
    ("target in fp8", "drafter"),
    ("incremental", "target"),
    ("TAEHV", "drafter"),
]


LAYOUTS = [*((name, None) for name in CASES), *STREAMED]


def layout_of(name: str, streamed: str | None) -> Plan:
    """Return the plan of a case. `streamed`: the transformer of which some layers are copied, and all before it."""
    request = replace(USUAL, **CASES[name])
    return lacking(request, 1.5, streamed) if streamed else plan(10_000, request)


@pytest.mark.parametrize("name, streamed", LAYOUTS)
def test_short_card_copies_the_named_layers(name, streamed):
    """Catches: a case of the count below with too few layers to copy any, which fits no short card."""
    planned = layout_of(name, streamed)
    expected = {None: [], "target": ["target"], "drafter": ["target", "drafter"]}
    assert list(planned.streamed) == expected[streamed]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, streamed", LAYOUTS)
def test_every_step_takes_what_is_planned(name, streamed, shapes):
    planned = layout_of(name, streamed)
    peaks = peaks_of(planned)
    assert set(peaks) == set(planned.parts)
    for step, peak in peaks.items():
        assert peak == pytest.approx(sum(planned.parts[step].values()), rel=0.05), step


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["on the command line", "in ComfyUI"])
def test_clip_is_encoded_in_the_memory_for_decoding(where, shapes):
    """So the models may be there already, where memory is short too. Catches: a clip that goes over as a whole."""
    planned = lacking(replace(USUAL, where=where), 1.5)
    models, setup = make_models(planned)
    with Card(device=GPU) as card:
        load(planned, models, setup, card)
        peaks = []
        for frames in (9, 33):
            card.clear()
            setup.codec.encode(torch.zeros(1, frames, 3, planned.request.height, planned.request.width))
            peaks.append(card.peak())
    assert max(peaks) <= sum(planned.parts["decode"].values())
    assert peaks[1] - peaks[0] < 20e6
