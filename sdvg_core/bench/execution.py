"""How a route is carried out: the one place for whatever makes the same video faster or slower."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..causal_wan.attention import TorchOps
from ..causal_wan.backends import AUTO, choose_attention
from ..causal_wan.context import AnchorEncoder, ContextPolicy, Incremental, Recompute
from ..causal_wan.forward import Stages
from ..causal_wan.generator import CausalWanGenerator
from ..causal_wan.modules import WanTree
from ..causal_wan.presets import Preset
from ..causal_wan.schedule import get_schedule
from ..causal_wan.stages import compiled_stages
from ..decoders import VaeLayers, WanCodec
from ..devices.compiling import Backend, CompileMode, compiler_of
from ..engine.parts import Engine, Scorer
from ..engine.router import RouterConfig
from ..errors import BadInput
from ..pipeline.loading import DTYPES
from ..plan.request import PlanRequest
from .models import Models, codec_of
from .published import FillsBoth, FrameByFrame, OnceABlock, Unseeing
from .routes import ANCHOR_ONLY, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One way to carry routes out; target-only in it gets all that the routed ones get.

    `schedule`: of both models. `as_published`: the authors' order of work (see `published`). `compile`: of the
    transformers' stages and the VAE's decoder. `vae_layers`: how the VAE works. `overlap`: whether a block is begun
    beside the decoding of the one before it.
    """

    name: str
    schedule: str = "four-step"
    as_published: bool = False
    compile: CompileMode = "off"
    vae_layers: VaeLayers = "diffusers"
    overlap: bool = False


OURS = Execution(name="ours")
AS_PUBLISHED = Execution(name="as-published", schedule="reference5", as_published=True)
USUAL = (OURS.name, AS_PUBLISHED.name)
# What may be added to ours; of two that say the same thing, the later counts.
MARKS: Mapping[str, Mapping[str, Any]] = {
    "channels-last": {"vae_layers": "channels-last"},
    "planes": {"vae_layers": "planes"},
    "compiled": {"compile": "default", "vae_layers": "channels-last"},
    "overlap": {"overlap": True},
}


def parse_execution(name: str) -> Execution:
    """Return an execution by its name: ours, as-published, or marks joined by +, such as compiled+planes+overlap.

    Raises `BadInput` if there is none such.
    """
    for known in (OURS, AS_PUBLISHED):
        if name == known.name:
            return known
    changes: dict[str, Any] = {}
    for mark in name.split("+"):
        if mark not in MARKS:
            raise BadInput(
                f"expected an execution, but got {name!r}; use {OURS.name}, {AS_PUBLISHED.name}, or one or more of "
                f"{', '.join(MARKS)} joined by +"
            )
        changes |= MARKS[mark]
    return Execution(name=name, **changes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wan:
    """A transformer and all of its execution that outlasts a video: kernels, and what is compiled."""

    tree: WanTree
    preset: Preset
    ops: TorchOps
    attention: str
    stages: Stages | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """Models as one execution runs them."""

    execution: Execution
    models: Models
    drafter: Wan
    target: Wan
    codec: WanCodec
    kv_fp8: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the conditions it stands for."""
        execution = self.execution
        return {
            "schedule": execution.schedule,
            "as_published": execution.as_published,
            "compile": execution.compile,
            "vae_layers": execution.vae_layers,
            "attention": {"drafter": self.drafter.attention, "target": self.target.attention},
            "overlap": execution.overlap,
        }


def set_up(
    executions: Iterable[Execution], models: Models, request: PlanRequest, attention: str = AUTO
) -> dict[Execution, Setup]:
    """Return the models as each execution runs them; what two have alike is made and compiled once.

    `attention`: a kernel's name. Raises `BadInput` if it cannot be had.
    """
    device, dtype = models.device, DTYPES[request.dtype]

    def wan(tree: WanTree, preset: Preset, mode: CompileMode) -> Wan:
        kernel = choose_attention(attention, device=device, dtype=dtype, head_dim=tree.head_dim)
        ops, stages = TorchOps(dtype, kernel), compiled_stages(compiler_of(mode))
        return Wan(tree=tree, preset=preset, ops=ops, attention=kernel.name, stages=stages)

    @cache
    def wans(mode: CompileMode) -> tuple[Wan, Wan]:
        drafter, target = models.drafter, models.target
        return wan(drafter, request.drafter_preset, mode), wan(target, request.target_preset, mode)

    @cache
    def codec(layers: VaeLayers, compiler: Backend | None) -> WanCodec:
        # Other layers would change the one VAE for all.
        return codec_of(models.vae if layers == "diffusers" else copy.deepcopy(models.vae), layers, compiler)

    def setup(execution: Execution) -> Setup:
        drafter, target = wans(execution.compile)
        return Setup(
            execution=execution,
            models=models,
            drafter=drafter,
            target=target,
            codec=codec(execution.vae_layers, compiler_of(execution.compile)),
            kv_fp8=request.kv_fp8,
        )

    return {execution: setup(execution) for execution in executions}


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

    def engine(self, setup: Setup, clock: Callable[[], float]) -> Engine:
        """Return the parts of one video. Of the video before, only what is compiled is kept."""
        published = self.execution.as_published
        encoder = AnchorEncoder(setup.codec.encode)

        def build(name: str, wan: Wan) -> CausalWanGenerator:
            policy = _policy(wan.preset, encoder, undo=self.execution.overlap and name == "drafter")
            return CausalWanGenerator(
                wan.tree,
                name=name,
                ops=wan.ops,
                context=OnceABlock(policy) if published else policy,
                schedule=get_schedule(self.execution.schedule),
                block_frames=wan.preset.block_frames,
                device=setup.models.device,
                kv_fp8=setup.kv_fp8,
                stages=wan.stages,
                clock=clock,
            )

        drafter, target = build("drafter", setup.drafter), build("target", setup.target)
        engine = Engine(drafter=drafter, target=target, codec=setup.codec, scorer=setup.models.scorer)
        return as_published(engine, self.route) if published and self.route.routed else engine


def as_published(engine: Engine, route: Route) -> Engine:
    """Return the parts as the authors' code uses them on a route that both models take part in."""
    scorer: Scorer = Unseeing() if route.name == ANCHOR_ONLY else FrameByFrame(engine.scorer)
    return replace(engine, drafter=FillsBoth(engine.drafter, engine.target), scorer=scorer)


def _policy(preset: Preset, encoder: AnchorEncoder, *, undo: bool) -> ContextPolicy:
    if preset.policy == "recompute":
        return Recompute(encode_anchor=encoder, frames=preset.context_frames)
    return Incremental(window=preset.window, sink=preset.sink, undo=undo)


def cases(routes: tuple[Route, ...], executions: tuple[Execution, ...]) -> tuple[Case, ...]:
    """Return every route in every execution that has it, target-only before what is held against it."""
    every = (Case(route=route, execution=execution) for execution in executions for route in routes)
    return tuple(case for case in every if case.possible)
