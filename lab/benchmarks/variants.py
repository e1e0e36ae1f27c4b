"""The cases to time: routes by name, and ways to execute them: ours, and faster ones.

Decisions are planned, but scores are still computed and their time counts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sdvg_core.causal_wan.attention import TorchOps, choose_attention
from sdvg_core.causal_wan.context import Wan
from sdvg_core.causal_wan.forward import compiled_stages
from sdvg_core.causal_wan.generator import build_engine
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.devices.compiling import Backend, compiler_of
from sdvg_core.devices.device import DTYPES
from sdvg_core.engine.protocols import Engine, Scorer
from sdvg_core.errors import BadInput
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.settings.context import Preset
from sdvg_core.settings.execution import CompileMode, Execution, VaeLayers
from sdvg_core.settings.load import DecoderName
from sdvg_core.settings.route import CASCADE_MARGIN, First, Gate, Route, Stride, WorstFrame
from tests.support.random_models import Models, codec_of, fast_codec
from tests.support.routers import planned_route

TARGET_ONLY = "target-only"
DRAFT_ONLY = "draft-only"
ANCHOR_ONLY = "anchor-only"
ROUTES = (TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY, "first=2+2", "r=1", "r=2", "r=4", "r=8")
NUMBERED = "r=N, cascade=N, first=M or stride=N, perhaps with +K"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRoute:
    """A route through a clip. `plan`: as letters, a for a draft that is kept, r for a block from the target."""

    name: str
    plan: str
    rule: Route

    @property
    def keeps(self) -> tuple[bool, ...]:
        """For each block, whether the draft is kept."""
        return tuple(letter == "a" for letter in self.plan)

    @property
    def routed(self) -> bool:
        """Whether the route uses both models."""
        return self.name not in (TARGET_ONLY, DRAFT_ONLY)


def default_routes(blocks: int) -> tuple[NamedRoute, ...]:
    """Return those of the usual routes that are possible in a clip of this many blocks."""
    routes = []
    for name in ROUTES:
        with suppress(BadInput):
            routes.append(parse_route(name, blocks))
    return tuple(routes)


def parse_route(name: str, blocks: int) -> NamedRoute:
    """Return a route by name: target-only, draft-only, anchor-only, or r=2 for two rejected blocks.

    cascade=2 rejects them by their first four frames; first=3 gives three blocks to the target without a verdict,
    stride=3 every third. A number after a +, as in r=2+3, is of steps that are handed over of all but the first.
    Raises `BadInput` if a clip of this many blocks has no such route.
    """
    by_target = {TARGET_ONLY: blocks, DRAFT_ONLY: 0, ANCHOR_ONLY: 1}
    if name in by_target:
        return _first(name, by_target[name], blocks)
    match = re.fullmatch(r"(r|cascade|first|stride)=(\d{1,4})(?:\+(\d))?", name)
    if match is None or (match[1] in ("first", "stride") and not int(match[2])):
        raise BadInput(f"there is no route {name!r}; choose among {', '.join(by_target)}, {NUMBERED}")
    kind = match[1]
    count = int(match[2])
    handover = int(match[3] or 0)
    if kind == "first":
        if count > blocks:
            raise BadInput(f"{name} is more than the {blocks} blocks of the clip; give the target fewer")
        return _first(name, count, blocks, handover)
    if kind == "stride":
        rule = Route(Stride(count), handover=handover)
        plan = "".join("a" if index % count else "r" for index in range(blocks))
        return NamedRoute(name=name, plan=plan, rule=rule)
    if count >= blocks:
        raise BadInput(f"{name} rejects more than {blocks - 1} blocks, and the first is the target's; reject fewer")
    remade = [0, *(1 + (2 * i + 1) * (blocks - 1) // (2 * count) for i in range(count))]  # evenly spread
    plan = "".join("r" if index in remade else "a" for index in range(blocks))
    if kind == "cascade":
        rule = Route(Gate(0.0, by=WorstFrame(CASCADE_MARGIN)), handover=handover)
    else:
        rule = planned_route(plan, handover=handover)
    return NamedRoute(name=name, plan=plan, rule=rule)


def _first(name: str, m: int, blocks: int, handover: int = 0) -> NamedRoute:
    """Return the route whose first `m` blocks are the target's."""
    rule = Route(First(m), handover=handover)
    return NamedRoute(name=name, plan="r" * m + "a" * (blocks - m), rule=rule)


# --- ways to execute a route


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to execute routes. Target-only gets every speed-up that the other routes get.

    `vae`: what decodes. `draft_steps`: after how many steps drafts end; None for the request's.
    """

    name: str
    execution: Execution = field(default_factory=Execution)
    vae: DecoderName = "wan"
    draft_steps: int | None = None


OURS = Variant(name="ours")
# Options that can be added to ours. If two set the same thing, the later one counts.
MARKS: Mapping[str, Mapping[str, Any]] = {
    "diffusers": {"vae_layers": "diffusers"},
    "planes": {"vae_layers": "planes"},
    "compiled": {"compile": "default", "vae_layers": "planes"},
    "tae": {"vae": "tae"},
    "lightvae": {"vae": "lightvae"},
    "drafts3": {"draft_steps": 3},
}


def parse_variant(name: str, common: Execution | None = None) -> Variant:
    """Return a variant by name: ours, or marks joined by +, such as compiled+planes.

    `common`: the settings that all variants share. Raises `BadInput` if there is no such variant.
    """
    common = common or Execution()
    if name == OURS.name:
        return replace(OURS, execution=common)
    if unknown := set(name.split("+")) - set(MARKS):
        known = f"use {OURS.name}, or some of {', '.join(MARKS)} joined by +"
        raise BadInput(f"there is no execution {'+'.join(sorted(unknown))!r}; {known}")
    changes = {key: value for mark in name.split("+") for key, value in MARKS[mark].items()}
    own = {setting: changes.pop(setting) for setting in ("vae", "draft_steps") if setting in changes}
    return Variant(name=name, execution=replace(common, **changes), **own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """Models as one variant runs them. `kernels`: the names of their attention."""

    variant: Variant
    models: Models
    drafter: Wan
    target: Wan
    codec: WanCodec | TaehvCodec
    kernels: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        variant = self.variant
        execution = self.variant.execution
        return {
            "vae": variant.vae,
            **{name: getattr(execution, name) for name in ("compile", "vae_layers")},
            "attention": self.kernels,
        }


def set_up(variants: Iterable[Variant], models: Models, request: PlanRequest) -> dict[str, Setup]:
    """Return the models as each variant runs them, by the variant's name. Shared parts are made and compiled once.

    Raises `BadInput` if an attention kernel is not available.
    """
    device = models.device
    dtype = DTYPES[request.dtype]

    @cache
    def kernel(tree: WanTree, name: str) -> Any:
        return choose_attention(name, device=device, dtype=dtype, head_dim=tree.head_dim)

    @cache
    def stages(tree: WanTree, mode: CompileMode) -> Any:
        return compiled_stages(compiler_of(mode))

    @cache
    def codec(name: DecoderName, layers: VaeLayers, compiler: Backend | None) -> WanCodec | TaehvCodec:
        if name != "wan":
            return fast_codec(name, request, models.device, layers, compiler)
        # Other layers change the VAE itself, so they get their own copy.
        return codec_of(models.vae if layers == "diffusers" else copy.deepcopy(models.vae), layers, compiler)

    def wan(tree: WanTree, preset: Preset, variant: Variant) -> Wan:
        execution = variant.execution
        return Wan(
            tree=tree,
            ops=TorchOps(dtype, kernel(tree, execution.attention)),
            preset=preset,
            device=device,
            kv_fp8=execution.kv_fp8,
            stages=stages(tree, execution.compile),
        )

    def shortened(preset: Preset, variant: Variant) -> Preset:
        return replace(preset, draft_steps=variant.draft_steps or preset.draft_steps)

    def setup(variant: Variant) -> Setup:
        execution = variant.execution
        shared = execution.vae_layers, compiler_of(execution.compile)
        return Setup(
            variant=variant,
            models=models,
            drafter=wan(models.drafter, shortened(request.drafter.preset, variant), variant),
            target=wan(models.target, request.target.preset, variant),
            codec=codec(variant.vae, *shared),
            kernels={of: kernel(getattr(models, of), execution.attention).name for of in ("drafter", "target")},
        )

    return {variant.name: setup(variant) for variant in variants}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A route and how to execute it."""

    route: NamedRoute
    variant: Variant

    def engine(self, setup: Setup, clock: Callable[[], float]) -> Engine:
        """Return the parts for one video. Only compiled code is kept from the previous one."""
        scorer = setup.models.scorer
        return build_engine(
            setup.drafter,
            setup.target,
            setup.codec,
            PlannedScores(scorer, self.route.keeps[1:]) if isinstance(self.route.rule.policy, Gate) else scorer,
            clock=clock,
        )


class PlannedScores:
    """A scorer that does its work and answers by a plan, far enough from 0 for the first frames to decide.

    `keeps`: of the drafts, one for each call, in order.
    """

    def __init__(self, inner: Scorer, keeps: Sequence[bool]) -> None:
        self._inner = inner
        self._keeps = iter(keeps)
        self.describe = inner.describe

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return `(f,)` equal scores of `b f c h w`."""
        real = self._inner.score(frames, prompt)
        return torch.full_like(real, 1.0 if next(self._keeps) else -1.0)
