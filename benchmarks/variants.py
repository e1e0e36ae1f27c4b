"""The ways to execute a route, by name: ours, the authors' order of work, and options that make ours faster."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.backends import choose_attention
from sdvg_core.causal_wan.build import Wan, build_engine
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.presets import Preset
from sdvg_core.causal_wan.stages import compiled_stages
from sdvg_core.decoders import TaehvCodec, WanCodec
from sdvg_core.devices.compiling import Backend, CompileMode, compiler_of
from sdvg_core.devices.dtypes import DTYPES
from sdvg_core.devices.execution import Execution, VaeLayers
from sdvg_core.engine.parts import Engine, Scorer
from sdvg_core.engine.router import RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.plan.decoders import DecoderName
from sdvg_core.plan.request import PlanRequest

from .models import Models, codec_of, fast_codec
from .published import FillsBoth, FrameByFrame, OnceABlock, Unseeing
from .routes import ANCHOR_ONLY, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to execute routes. Target-only gets every speed-up that the other routes get.

    `schedule`: for both models. `as_published`: the authors' order of work (see `published`), with the VAE's layers
    as released. `vae`: what makes the video's pixels; `judge`: what decodes drafts, None for the same.
    """

    name: str
    schedule: str = "four-step"
    as_published: bool = False
    execution: Execution = field(default_factory=Execution)
    vae: DecoderName = "wan"
    judge: DecoderName | None = None


OURS = Variant(name="ours")
AS_PUBLISHED = Variant(
    name="as-published", schedule="reference5", as_published=True, execution=Execution(vae_layers="diffusers")
)
USUAL = (OURS.name, AS_PUBLISHED.name)
# Options that can be added to ours. If two set the same thing, the later one counts.
MARKS: Mapping[str, Mapping[str, Any]] = {
    "diffusers": {"vae_layers": "diffusers"},
    "channels-last": {"vae_layers": "channels-last"},
    "planes": {"vae_layers": "planes"},
    "compiled": {"compile": "default", "vae_layers": "channels-last"},
    "overlap": {"overlap": True},
}
DECODERS: Mapping[str, Mapping[str, Any]] = {
    "judge-tae": {"judge": "tae"},
    "judge-lightvae": {"judge": "lightvae"},
    "tae": {"vae": "tae"},
    "lightvae": {"vae": "lightvae"},
}
"""Marks that change who decodes."""


def parse_variant(name: str, common: Execution | None = None) -> Variant:
    """Return a variant by name: ours, as-published, or marks joined by +, such as compiled+planes+overlap.

    `common`: the settings that all variants share. Raises `BadInput` if there is no such variant.
    """
    common = common or Execution()
    if name == OURS.name:
        return replace(OURS, execution=common)
    if name == AS_PUBLISHED.name:
        return replace(AS_PUBLISHED, execution=replace(common, vae_layers=AS_PUBLISHED.execution.vae_layers))
    changes: dict[str, Any] = {}
    decoders: dict[str, Any] = {}
    for mark in name.split("+"):
        if mark not in MARKS and mark not in DECODERS:
            raise BadInput(
                f"there is no execution {name!r}; use {OURS.name}, {AS_PUBLISHED.name}, or one or more of "
                f"{', '.join((*MARKS, *DECODERS))} joined by +"
            )
        changes |= MARKS.get(mark, {})
        decoders |= DECODERS.get(mark, {})
    return Variant(name=name, execution=replace(common, **changes), **decoders)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """Models as one variant runs them. `kernels`: the attention of drafter and target, by name."""

    variant: Variant
    models: Models
    drafter: Wan
    target: Wan
    codec: WanCodec | TaehvCodec
    judge: WanCodec | TaehvCodec | None
    kernels: tuple[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return its conditions for the result."""
        execution = self.variant.execution
        return {
            "schedule": self.variant.schedule,
            "as_published": self.variant.as_published,
            "compile": execution.compile,
            "vae_layers": execution.vae_layers,
            "attention": dict(zip(("drafter", "target"), self.kernels, strict=True)),
            "overlap": execution.overlap,
            "vae": self.variant.vae,
            "judge": self.variant.judge,
        }


def set_up(variants: Iterable[Variant], models: Models, request: PlanRequest) -> dict[str, Setup]:
    """Return the models as each variant runs them, by the variant's name. Shared parts are made and compiled once.

    Raises `BadInput` if an attention kernel is not available.
    """
    device, dtype = models.device, DTYPES[request.dtype]

    @cache
    def kernel(tree: WanTree, name: str) -> Any:
        return choose_attention(name, device=device, dtype=dtype, head_dim=tree.head_dim)

    @cache
    def stages(tree: WanTree, mode: CompileMode) -> Any:
        return compiled_stages(compiler_of(mode))

    @cache
    def codec(name: DecoderName, layers: VaeLayers, compiler: Backend | None) -> WanCodec | TaehvCodec:
        if name != "wan":
            return fast_codec(name, request, models.side_device, layers, compiler)
        # Other layers change the VAE itself, so they get their own copy.
        return codec_of(models.vae if layers == "diffusers" else copy.deepcopy(models.vae), layers, compiler)

    def decoder(name: DecoderName, execution: Execution) -> WanCodec | TaehvCodec:
        return codec(name, execution.vae_layers, compiler_of(execution.compile))

    def wan(tree: WanTree, preset: Preset, variant: Variant) -> Wan:
        execution = variant.execution
        return Wan(
            tree=tree,
            ops=TorchOps(dtype, kernel(tree, execution.attention)),
            preset=replace(preset, schedule=variant.schedule),
            device=device,
            kv_fp8=execution.kv_fp8,
            stages=stages(tree, execution.compile),
        )

    def setup(variant: Variant) -> Setup:
        execution, trees = variant.execution.on(models.side_device), (models.drafter, models.target)
        return Setup(
            variant=replace(variant, execution=execution),
            models=models,
            drafter=wan(models.drafter, request.drafter_preset, variant),
            target=wan(models.target, request.target_preset, variant),
            codec=decoder(variant.vae, execution),
            judge=decoder(variant.judge, execution) if variant.judge else None,
            kernels=(kernel(trees[0], execution.attention).name, kernel(trees[1], execution.attention).name),
        )

    return {variant.name: setup(variant) for variant in variants}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A route and how to execute it."""

    route: Route
    variant: Variant

    @property
    def possible(self) -> bool:
        """Whether the case exists: the authors have no bail-out, and no policy `first`."""
        return not (self.variant.as_published and (self.route.bail_out or self.route.policy == "first"))

    @property
    def router(self) -> RouterConfig:
        """The router for the route. As published, the first block is drafted and scored before it is rejected."""
        if self.variant.as_published and self.route.routed:
            return RouterConfig(policy="scripted", script=self.route.script, forced_blocks=0)
        return self.route.router

    def engine(self, setup: Setup, clock: Callable[[], float]) -> Engine:
        """Return the parts for one video. Only compiled code is kept from the previous one."""
        published = self.variant.as_published
        engine = build_engine(
            setup.drafter,
            setup.target,
            setup.codec,
            setup.models.scorer,
            judge=setup.judge,
            overlap=self.variant.execution.overlap,
            clock=clock,
            around_context=OnceABlock if published else lambda policy: policy,
        )
        return as_published(engine, self.route) if published and self.route.routed else engine


def as_published(engine: Engine, route: Route) -> Engine:
    """Return the parts as the authors' code uses them, on a route that uses both models."""
    assert engine.scorer is not None, "a benchmark's models include a scorer"
    scorer: Scorer = Unseeing() if route.name == ANCHOR_ONLY else FrameByFrame(engine.scorer)
    return replace(engine, drafter=FillsBoth(engine.drafter, engine.target), scorer=scorer)


def cases(routes: tuple[Route, ...], variants: tuple[Variant, ...]) -> tuple[Case, ...]:
    """Return every route in every variant that has it; target-only comes before the routes compared with it."""
    every = (Case(route=route, variant=variant) for variant in variants for route in routes)
    return tuple(case for case in every if case.possible)
