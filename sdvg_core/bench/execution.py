"""How a route is carried out: the one place for whatever makes the same video faster or slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..causal_wan.attention import TorchOps
from ..causal_wan.context import AnchorEncoder, ContextPolicy, Incremental, Recompute
from ..causal_wan.generator import CausalWanGenerator
from ..causal_wan.presets import Preset
from ..loading import DTYPES
from ..plan.request import PlanRequest
from ..router import RouterConfig
from ..schedule import get_schedule
from ..speculate import Engine
from ..types import Scorer
from .models import Models
from .published import FillsBoth, FrameByFrame, OnceABlock, Unseeing
from .routes import ANCHOR_ONLY, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One way to carry routes out.

    `schedule`: of both models. `as_published`: the authors' order of work (see `published`). `loop`: further
    options of `speculate`. `built`: what was done to the models and the VAE when they were made, reported only.
    """

    name: str
    schedule: str = "four-step"
    as_published: bool = False
    loop: tuple[tuple[str, Any], ...] = ()
    built: tuple[tuple[str, Any], ...] = (("attention", "torch sdpa"), ("compile", False), ("overlap", False))

    def as_dict(self) -> dict[str, Any]:
        """Return the conditions it stands for."""
        named = {"schedule": self.schedule, "as_published": self.as_published}
        return {**named, **dict(self.built), **dict(self.loop)}


OURS = Execution(name="ours")
AS_PUBLISHED = Execution(name="as-published", schedule="reference5", as_published=True)
EXECUTIONS: Mapping[str, Execution] = {execution.name: execution for execution in (OURS, AS_PUBLISHED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A route and how it is carried out."""

    route: Route
    execution: Execution

    @property
    def possible(self) -> bool:
        """Whether there is such a case: the authors have no bail-out."""
        return not (self.execution.as_published and self.route.bail_out)

    @property
    def router(self) -> RouterConfig:
        """The router of the route; as published, the first block is drafted and judged before it is rejected."""
        if self.execution.as_published and self.route.routed:
            return RouterConfig(policy="scripted", script=self.route.keeps, force_first=False)
        return self.route.router

    def engine(self, models: Models, request: PlanRequest, clock: Callable[[], float]) -> Engine:
        """Return the parts of one video. Nothing is kept from the video before: the prompt counts as new."""
        published = self.execution.as_published
        encoder = AnchorEncoder(models.codec.encode)

        def build(name: str, tree: Any, preset: Preset) -> CausalWanGenerator:
            policy = _policy(preset, encoder)
            return CausalWanGenerator(
                tree,
                name=name,
                ops=TorchOps(DTYPES[request.dtype]),
                context=OnceABlock(policy) if published else policy,
                schedule=get_schedule(self.execution.schedule),
                block_frames=preset.block_frames,
                device=models.device,
                clock=clock,
            )

        drafter = build("drafter", models.drafter, request.drafter_preset)
        target = build("target", models.target, request.target_preset)
        engine = Engine(drafter=drafter, target=target, codec=models.codec, scorer=models.scorer)
        return as_published(engine, self.route) if published and self.route.routed else engine


def as_published(engine: Engine, route: Route) -> Engine:
    """Return the parts as the authors' code uses them on a route that both models take part in."""
    scorer: Scorer = Unseeing() if route.name == ANCHOR_ONLY else FrameByFrame(engine.scorer)
    return replace(engine, drafter=FillsBoth(engine.drafter, engine.target), scorer=scorer)


def _policy(preset: Preset, encoder: AnchorEncoder) -> ContextPolicy:
    if preset.policy == "recompute":
        return Recompute(encode_anchor=encoder, frames=preset.context_frames)
    return Incremental(window=preset.window, sink=preset.sink)


def cases(routes: tuple[Route, ...], executions: tuple[Execution, ...]) -> tuple[Case, ...]:
    """Return every route in every execution that has it, target-only before what is held against it."""
    every = (Case(route=route, execution=execution) for execution in executions for route in routes)
    return tuple(case for case in every if case.possible)
