"""The bytes on a card of each layout, counted while a video of the real size is made, against the plan.

On tensors without memory (see `test_fake_cuda`), through the loop, policies and layer streams that a GPU runs.
What a GPU adds, workspaces of its libraries and what its allocator cannot hand out again, is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from live_bytes import Peak
from test_fake_cuda import GPU, REQUEST, shapes  # noqa: F401 - a fixture

from benchmarks.measure import Gauge, metered
from benchmarks.models import Models, random_models
from benchmarks.variants import Setup, Variant, set_up
from research.observed import plan_run
from sdvg_core.causal_wan.generator import build_engine
from sdvg_core.devices.execution import Execution
from sdvg_core.devices.streaming import LayerStream
from sdvg_core.engine.plan import EVERY_ROLE
from sdvg_core.engine.router import ROUTER_PRESETS, RouterConfig
from sdvg_core.memory.plan import Plan, plan
from sdvg_core.memory.sizes import PlanRequest

BLOCKS, LAYERS = 3, 6
USUAL = replace(
    REQUEST,
    **{
        role: replace(model, config=replace(model.config, num_layers=LAYERS))
        for role, model in REQUEST.models.items()
    },
    where="on the command line",
    fp8=False,
)
ROUTERS = {
    EVERY_ROLE: RouterConfig(directions="ttr"),
    frozenset({"drafter", "target"}): ROUTER_PRESETS["balanced"],
    frozenset({"target"}): RouterConfig(policy="always-target"),
    frozenset({"drafter"}): RouterConfig(policy="first", forced_blocks=0),
}
"""Routes by the models that they need."""
INCREMENTAL = {
    role: replace(model, preset=replace(model.preset, policy="incremental", window=9))
    for role, model in REQUEST.models.items()
}
SLOW = INCREMENTAL["drafter"]
FRAMEWISE = {"drafter": replace(SLOW, preset=replace(SLOW.preset, block_frames=1))}


class Card(Peak, Gauge):
    """Counts the bytes alive on the stand-in for a GPU, and the most there were since it was last cleared."""

    def clear(self) -> None:
        self.bytes = self.now()

    def peak(self) -> int:
        return self.bytes


def made(planned: Plan) -> tuple[Models, Setup]:
    """Make the models of a plan."""
    request = planned.request
    models = random_models(request, GPU, fp8=planned.fp8)
    variant = Variant(name="it", execution=request.execution, vae=request.vae)
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
    request, peaks = planned.request, dict[str, int]()
    models, setup = made(planned)
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
    found = plan((everything.peak - missing) / 1e9, request)
    assert found.fits
    return found


def check(planned: Plan) -> None:
    peaks = peaks_of(planned)
    assert set(peaks) == set(planned.parts)
    for step, peak in peaks.items():
        assert peak == pytest.approx(sum(planned.parts[step].values()), rel=0.05), step


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
    "target in fp8": {"fp8": True},
    "as in ComfyUI": {"where": "in ComfyUI"},
}
STREAMED = [("as in ComfyUI", "target"), ("gate", "drafter"), ("target in fp8", "target")]
STREAMED += [("target in fp8", "drafter"), ("incremental", "target"), ("TAEHV", "drafter")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, streamed", [*((name, None) for name in CASES), *STREAMED])
def test_every_step_takes_what_is_planned(name, streamed, shapes):  # noqa: F811
    """`streamed`: the transformer of which a card copies some layers, and all of any before it."""
    request = replace(USUAL, **CASES[name])
    planned = lacking(request, 1.5, streamed) if streamed else plan(10_000, request)
    expected = {None: [], "target": ["target"], "drafter": ["target", "drafter"]}
    assert list(planned.streamed) == expected[streamed]
    check(planned)


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["on the command line", "in ComfyUI"])
def test_a_given_clip_is_encoded_in_what_is_planned_for_decoding(where, shapes):  # noqa: F811
    """So the models may be there already, where memory is short too. Catches: a clip that goes over as a whole."""
    planned = lacking(replace(USUAL, where=where), 1.5)
    models, setup = made(planned)
    with Card(device=GPU) as card:
        load(planned, models, setup, card)
        peaks = []
        for frames in (9, 33):
            card.clear()
            setup.codec.encode(torch.zeros(1, frames, 3, planned.request.height, planned.request.width))
            peaks.append(card.peak())
    assert max(peaks) <= sum(planned.parts["decode"].values())
    assert peaks[1] - peaks[0] < 20e6
