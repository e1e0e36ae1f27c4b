"""Plan a run before anything is loaded: its blocks, the models that they may need, and whether the parts fit.

In messages, blocks of a run count from 1 like the squares of its strip; a clip that it continues does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BadInput, MissingModel, count
from ..settings.request import Strength, check_directions, check_strengths, read_takes
from ..settings.route import ROUTER_DECIDES, ROUTER_PRESETS, RouterConfig, cascades, decide_early
from .protocols import Engine, ModelShape, steps_made
from .types import Span, plan_spans, spans_of_clip
from .wrappers import check_sub_blocks

# --- which models a run needs


MISSING = {
    "drafter": ("a drafter", "choose the route always-target", "d, a and r"),
    "target": ("a target", "choose the route first with 0 blocks by the target", "t, a and r"),
    "scorer": ("a reward model", "choose a route without scores, such as first", "a and r"),
}
"""By role: its name, the remedy without it, and the directions that need it."""
Roles = frozenset[str]
"""The roles of the models that a run may need, or that are available."""
EVERY_ROLE = Roles(MISSING)


def models_needed(router: RouterConfig, spans: Iterable[Span]) -> Roles:
    """Return the models that the blocks at `spans` may need; an undecided block may need all."""
    needed: set[str] = set()
    for span in spans:
        decision = decide_early(router, span.index, ())
        if decision is None:
            return EVERY_ROLE
        needed.add("drafter" if decision.accepted or router.handover_at(span.index) else "target")
        if not decision.accepted:
            needed.add("target")
    return Roles(needed)


def check_available(router: RouterConfig, spans: Sequence[Span], available: Roles) -> Roles:
    """Return the models that a run may need. Raises `MissingModel` if one is not available."""
    needed = models_needed(router, spans)
    for role, (model, way_out, letters) in MISSING.items():
        if role not in needed - available:
            continue
        if role not in models_needed(replace(router, handover=0), spans):
            raise MissingModel(role, f"a handover needs {model}", "set handover to 0")
        if role not in models_needed(replace(router, directions=""), spans):
            raise MissingModel(role, f"the directions need {model}", f"take {letters} out of them")
        if router.part:
            raise MissingModel(role, f"the router {type(router.part).__name__} needs {model}", "take another")
        from_start = replace(router, route_start=0)
        presets = [name for name, preset in ROUTER_PRESETS.items() if RouterConfig() != preset == from_start]
        raise MissingModel(role, f"the route {(*presets, router.policy)[0]} needs {model}", way_out)
    return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The latent frames before a run's first block.

    `picture`: a single picture, held for one block of the size that the plan chooses. `start_image_frames`: number
    of first frames that show a start image, of which the video shows one pixel frame. `from_pixels`: number of
    first frames given as pixels. The route begins after both, as no model made them.
    """

    frames: int = 0
    picture: bool = False
    start_image_frames: int = 0
    from_pixels: int = 0

    def __post_init__(self) -> None:
        as_pixels = self.start_image_frames + self.from_pixels
        if not self.picture and not 0 <= as_pixels <= self.frames:
            problem = f"a clip of {self.frames} latent frames cannot begin with {as_pixels} given as pixels"
            raise BadInput(f"{problem}; make it again")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The blocks of a run. `router`: with the user's directions. `clip`: spans of the clip it continues.

    `spans`: of the new blocks. `strengths`: of restyling, by block. `notes`: for the report.
    """

    router: RouterConfig
    clip: tuple[Span, ...]
    spans: tuple[Span, ...]
    models_needed: Roles
    lead: Lead = Lead()
    strengths: tuple[Strength, ...] = ()
    notes: tuple[str, ...] = ()


NO_TARGET_BLOCK = (
    "The target makes none of the new blocks, as the route counts from the beginning of the clip's latents; give "
    "it some by directions, or continue from the clip's frames, after which the route begins anew."
)
NOT_CASCADED = (
    "All frames are scored where the weakest one does not decide alone (a mean, a quantile, a router of your own, "
    "a and r)."
)
NOT_HANDED_OVER = "The target makes a restyled block alone where the clip replaces all steps of a handover."


def plan_blocks(
    router: RouterConfig,
    *,
    blocks: int,
    block_frames: Mapping[str, int],
    scorer: bool = True,
    lead: Lead = Lead(),
    directions: str = "",
    takes: str = "",
    strengths: Sequence[Strength] = (),
) -> RunPlan:
    """Plan a run of `blocks` blocks after a lead.

    `block_frames`: latent frames per block of the available models, by role; the target's apply if it is needed.
    `scorer`: whether one is available. `directions`, `takes`: as text. `strengths`: of restyling, by block.
    Raises `BadInput` for an invalid argument, and if a model is missing that a block may need.
    """

    def plan(sizes: Mapping[str, int]) -> RunPlan:
        available = Roles(sizes) | Roles(["scorer"] if scorer else [])
        size = sizes["target" if "target" in sizes else "drafter"]
        begun = (
            replace(lead, frames=size, start_image_frames=size, from_pixels=0, picture=False)
            if lead.picture
            else lead
        )
        spans = plan_spans(blocks, size, begun.frames, read_takes(takes, blocks), begun.start_image_frames)
        first = spans[0].index
        check_directions(directions, blocks)
        changes: dict[str, Any] = {"route_start": min(begun.from_pixels // size, first)}
        if directions.strip(ROUTER_DECIDES):
            changes["directions"] = ROUTER_DECIDES * first + directions
        if strengths:
            changes["skipped"] = (*(0,) * first, *(strength.skip for strength in strengths))
        directed = replace(router, **changes)
        notes: tuple[str, ...] = ()
        if directed.cascade is not None and not all(cascades(directed, span.index) for span in spans):
            notes = (*notes, NOT_CASCADED)
        if any(0 < directed.handover <= skip for skip in directed.skipped):
            notes = (*notes, NOT_HANDED_OVER)
        needed = check_available(directed, spans, available)
        if "target" in available - needed:
            from_here = replace(directed, route_start=first)
            notes = (*notes, NO_TARGET_BLOCK) if "target" in models_needed(from_here, spans) else notes
        return RunPlan(
            router=directed,
            clip=spans_of_clip(begun.frames, size, begun.start_image_frames),
            spans=spans,
            models_needed=needed,
            lead=begun,
            strengths=tuple(strengths),
            notes=notes,
        )

    run_plan = plan(block_frames)
    if "target" in run_plan.models_needed or len(set(block_frames.values())) == 1:
        return run_plan
    if router.policy == "stride":  # later blocks will be the target's, so keep its size
        return replace(run_plan, models_needed=run_plan.models_needed | {"target"})
    # Without the target, blocks have the drafter's size.
    return plan({"drafter": block_frames["drafter"]})


# --- do parts, router, blocks and sizes fit together? Shapes are enough to tell


def check_parts(engine: Engine, router: RouterConfig, spans: tuple[Span, ...]) -> None:
    """Raise `BadInput` unless the parts of a run fit together and include all that the router may need."""
    check_available(router, spans, Roles(role for role in MISSING if getattr(engine, role) is not None))
    # A missing model counts with the shape of the other one.
    check_compatible(engine.models[0], engine.models[-1], engine.codec.latent_channels, router, spans)


def check_compatible(
    drafter: ModelShape, target: ModelShape, latent_channels: int, router: RouterConfig, spans: tuple[Span, ...]
) -> None:
    """Raise `BadInput` unless two models, a VAE's `latent_channels`, the router and the blocks fit together."""
    for model in (drafter, target):
        if model.latent_channels != latent_channels:
            problem = f"the VAE has {latent_channels} latent channels and the {model.name} {model.latent_channels}"
            raise BadInput(f"{problem}; load models and VAE of one family")
    check_sub_blocks(drafter.block_frames, drafter.anchor_horizon, target.block_frames)
    certain = {span.index: decide_early(router, span.index, ()) for span in spans}
    by_target = [index for index, decision in certain.items() if not (decision and decision.accepted)]
    if not any(map(router.handover_at, by_target)):
        return
    steps = router.handover
    if steps > (most := steps_made(drafter)):
        problem = f"handover is {steps}, but drafts stop after {count(most, 'step')}"
        raise BadInput(f"{problem}; hand over {most} at most, or give the drafter more draft_steps")
    if drafter.timesteps != target.timesteps:
        raise BadInput("a handover needs one schedule for both models; give both one, or set handover to 0")
    if steps >= len(target.timesteps):
        problem = f"handover is {steps} of {len(target.timesteps)} denoising steps"
        raise BadInput(f"{problem}; leave the target at least one")


def check_restyle(drafter: ModelShape, target: ModelShape, plan: RunPlan) -> None:
    """Raise `BadInput` unless both models can skip the steps of a plan's strengths."""
    check_strengths(plan.strengths, [drafter.timesteps, target.timesteps])
    skip = max((strength.skip for strength in plan.strengths), default=0)
    if "drafter" in plan.models_needed and skip >= steps_made(drafter):
        problem = f"the clip replaces {skip} steps, and drafts stop after {steps_made(drafter)}"
        raise BadInput(f"{problem}; give a stronger word, a number, or the drafter more draft_steps")
    if plan.spans[0].index == 0:
        firsts = [model.first_timesteps or model.timesteps for model in (drafter, target)]
        check_strengths(plan.strengths[:1], firsts)


def most_handover(drafter: ModelShape, target: ModelShape) -> int:
    """Return the most steps to hand over: all of a draft, but not the target's last; 0 if timesteps differ."""
    equal = tuple(drafter.timesteps) == tuple(target.timesteps)
    return min(steps_made(drafter), len(target.timesteps) - 1) if equal else 0


def check_size(width: int, height: int, step: int) -> None:
    """Raise `BadInput` unless both are multiples of `step` pixels: the latent stride times the model's patch."""
    for name, size in (("width", width), ("height", height)):
        if size < step or size % step:
            near = sorted({max(size // step, 1) * step, (max(size, 0) // step + 1) * step})
            raise BadInput(f"{name} {size} is no multiple of {step}; use {' or '.join(map(str, near))}")
