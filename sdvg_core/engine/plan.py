"""Plan a run before anything is loaded: its blocks, the models that they may need, and whether the parts fit.

In messages, blocks of a run count from 1 like the squares of its strip; a clip that it continues does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import BadInput, MissingModel, count
from ..settings.request import ROUTE_DECIDES, Strength, check_directions, check_strengths, read_takes
from ..settings.route import Custom, Refine, Route, Stride
from .protocols import Engine, ModelShape, steps_made
from .routing import PlannedBlock, decide_early, handover_at, is_made_whole, refining_at
from .types import Span, plan_spans, spans_of_clip
from .wrappers import check_sub_blocks

# --- which models a run needs


REMEDIES = {
    "drafter": ("a drafter", "choose the route always-target", "d, a and r"),
    "target": ("a target", "choose the route first with 0 blocks by the target", "t, a and r"),
    "scorer": ("a reward model", "choose a route without scores, such as first", "a and r"),
}
"""By role: its name, what to do without it, and the directions that need it.

Of a block that the user directs, `d` keeps the draft and `t` has the target make it, both unscored; `a` and `r`
score the draft, which `a` keeps and `r` rejects; a score that is not finite rejects it under both.
"""
Roles = frozenset[str]
"""The roles of the models that a run may need, or that are available."""
EVERY_ROLE = Roles(REMEDIES)


def models_needed(route: Route, blocks: Iterable[PlannedBlock]) -> Roles:
    """Return the models that the blocks may need; an undecided block may need all."""
    needed: set[str] = set()
    for block in blocks:
        decision = decide_early(route, block, ())
        if decision is None:
            return EVERY_ROLE
        if decision.accepted or handover_at(route, block) or refining_at(route, block):
            needed.add("drafter")
        if not decision.accepted:
            needed.add("target")
    return Roles(needed)


def check_available(route: Route, blocks: Sequence[PlannedBlock], available: Roles) -> Roles:
    """Return the models that a run may need. Raises `MissingModel` if one is not available."""
    needed = models_needed(route, blocks)
    # To name what asks for a missing model, drop the handover, then the directions.
    undirected = [replace(block, direction=ROUTE_DECIDES) for block in blocks]
    for role, (model, way_out, letters) in REMEDIES.items():
        if role not in needed - available:
            continue
        if role not in models_needed(replace(route, handover=0), blocks):
            raise MissingModel(role, f"a handover needs {model}", "set handover to 0")
        if role not in models_needed(route, undirected):
            raise MissingModel(role, f"the directions need {model}", f"take {letters} out of them")
        cure = "take another" if isinstance(route.policy, Custom) else way_out
        raise MissingModel(role, f"the {route.name} needs {model}", cure)
    return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The latent frames before a run's first block: none, a start image, or a clip, which may begin with one.

    `picture`: a start image that is not encoded yet: `frames` is 0 until `plan_blocks` knows a block's length.
    `start_image_frames`: number of first frames that show a start image. They begin `RunPlan.clip`'s first span,
    whose index is 0, and so is that of the first block after them. The video shows one pixel frame of them.
    `from_pixels`: of the frames after the start image, how many were given as pixels. The route begins after these,
    as no model made them.
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

    def of_one_block(self, size: int) -> Lead:
        """Return the lead of a start image, held for a block of `size` latent frames."""
        return Lead(frames=size, start_image_frames=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The blocks of a run.

    `clip`: spans of the clip or start image that it continues. `blocks`: the new ones; none if it shows the clip
    alone. `models_needed`: those that a new block may need. `notes`: for the report.
    """

    route: Route
    clip: tuple[Span, ...]
    blocks: tuple[PlannedBlock, ...]
    models_needed: Roles
    lead: Lead = Lead()
    notes: tuple[str, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of the new blocks."""
        return tuple(block.span for block in self.blocks)

    @property
    def new_indices(self) -> range:
        """The indices of the new blocks."""
        return range(self.spans[0].index, self.spans[-1].index + 1) if self.spans else range(0)

    @property
    def stop(self) -> int:
        """The number of latent frames of the whole video."""
        return self.spans[-1].stop if self.spans else self.lead.frames

    @property
    def strengths(self) -> tuple[Strength, ...]:
        """The strengths of restyling, by new block."""
        return tuple(block.strength for block in self.blocks)


NO_TARGET_BLOCK = (
    "The target makes none of the new blocks, as the route counts from the beginning of the clip's latents; give "
    "it some by directions, or continue from the clip's frames, after which the route begins anew."
)
NOT_HANDED_OVER = "Where the restyled clip replaces all steps of a handover, the target makes the others alone."


def plan_blocks(
    route: Route,
    *,
    blocks: int,
    block_frames: Mapping[str, int],
    scorer: bool = True,
    lead: Lead = Lead(),
    directions: str = "",
    takes: str = "",
    strengths: Sequence[Strength] = (),
    block_length: int | None = None,
) -> RunPlan:
    """Plan a run of `blocks` blocks after a lead.

    `block_frames`: latent frames per block of the available models, by role; the target's apply if it is needed.
    `block_length`: latent frames that every block has, whoever makes it; None for those of the models.
    `scorer`: whether one is available. `directions`, `takes`: as text. `strengths`: of restyling, by block.
    Raises `BadInput` for an invalid argument, and if a model is missing that a block may need.
    """
    check_directions(directions, blocks)
    _check_refined(route, directions)
    letters = directions or ROUTE_DECIDES * blocks
    strengths = strengths or (Strength(),) * blocks

    def plan_with(sizes: Mapping[str, int]) -> RunPlan:
        """Plan with the models in `sizes`; a block is as long as the target's, if the target is among them."""
        available = Roles(sizes) | Roles(["scorer"] if scorer else [])
        size = sizes["target" if "target" in sizes else "drafter"]
        begun = lead.of_one_block(size) if lead.picture else lead
        spans = plan_spans(blocks, size, begun.frames, read_takes(takes, blocks), begun.start_image_frames)
        route_start = begun.from_pixels // size  # 1 after 4 frames in threes, as the next block is block 1
        planned = tuple(
            PlannedBlock(span=span, place=span.index - route_start, direction=letter, strength=strength)
            for span, letter, strength in zip(spans, letters, strengths, strict=True)
        )
        notes: list[str] = []
        if any(0 < route.handover <= strength.skip for strength in strengths):
            notes.append(NOT_HANDED_OVER)
        needed = check_available(route, planned, available)
        if "target" in available - needed:
            begun_here = [replace(block, place=number) for number, block in enumerate(planned)]
            if "target" in models_needed(route, begun_here):
                notes.append(NO_TARGET_BLOCK)
        return RunPlan(
            route=route,
            clip=spans_of_clip(begun.frames, size, begun.start_image_frames),
            blocks=planned,
            models_needed=needed,
            lead=begun,
            notes=tuple(notes),
        )

    own_frames = block_frames.get("target")
    if block_length:
        block_frames = dict.fromkeys(block_frames, block_length)
    run_plan = plan_with(block_frames)
    if "target" in run_plan.models_needed and block_length not in (None, own_frames):
        fault = (
            f"the video is of blocks of {count(block_length, 'latent frame')}, and the target makes {own_frames}"
        )
        raise BadInput(f"{fault}; load the target that it was drafted for, or one with such blocks")
    if "target" in run_plan.models_needed or len(set(block_frames.values())) == 1:
        return run_plan
    if isinstance(route.policy, Stride):
        # A stride comes back to the target when the video is extended, so these blocks are as long as the target's,
        # though it makes none of them. A drafter of shorter blocks makes several for one only where the target is
        # loaded too, so it is.
        return replace(run_plan, models_needed=run_plan.models_needed | {"target"})
    # No block needs the target, so blocks are as long as the drafter's.
    return plan_with({"drafter": block_frames["drafter"]})


def _check_refined(route: Route, directions: str) -> None:
    """Raise `BadInput` for a block of a refining route whose direction asks for scores."""
    scored = next((place for place, letter in enumerate(directions, 1) if letter in "ar"), 0)
    if scored and isinstance(route.policy, Refine):
        fault = (
            f"block {scored} is directed {directions[scored - 1]}, which scores its draft, and refine scores none"
        )
        raise BadInput(f"{fault}; write d there (the draft is kept), t (made whole) or {ROUTE_DECIDES} (refined)")


# --- do parts, route, blocks and sizes fit together? Shapes are enough to tell


def check_parts(engine: Engine, route: Route, blocks: Sequence[PlannedBlock]) -> None:
    """Raise `BadInput` unless the parts of a run fit together and include all that the route may need."""
    check_available(route, blocks, Roles(role for role in REMEDIES if getattr(engine, role) is not None))
    # A missing model counts with the shape of the other one.
    check_compatible(engine.models[0], engine.models[-1], engine.codec.latent_channels, route, blocks)


def check_compatible(
    drafter: ModelShape, target: ModelShape, latent_channels: int, route: Route, blocks: Sequence[PlannedBlock]
) -> None:
    """Raise `BadInput` unless two models, a VAE's `latent_channels`, the route and the blocks fit together."""
    for model in (drafter, target):
        if model.latent_channels != latent_channels:
            problem = f"the VAE has {latent_channels} latent channels and the {model.name} {model.latent_channels}"
            raise BadInput(f"{problem}; load models and VAE of one family")
    check_sub_blocks(drafter.block_frames, drafter.anchor_horizon, target.block_frames)
    has_target = any(_may_be_remade(route, block) for block in blocks)
    if has_target and route.target_steps > (most := len(target.timesteps)):
        problem = f"target_steps is {route.target_steps}, and the {target.name} makes {count(most, 'step')}"
        raise BadInput(f"{problem}; give {most} at most, or 0 for all")
    _check_refining(target, route, blocks)
    if not any(_may_hand_over(route, block) for block in blocks):
        return
    steps = route.handover
    if steps > (most := steps_made(drafter)):
        problem = f"handover is {steps}, but drafts stop after {count(most, 'step')}"
        raise BadInput(f"{problem}; hand over {most} at most, or give the drafter more draft_steps")
    if drafter.timesteps != target.timesteps:
        raise BadInput("a handover needs one schedule for both models; give both one, or set handover to 0")
    if steps >= len(target.timesteps):
        problem = f"handover is {steps} of {len(target.timesteps)} denoising steps"
        raise BadInput(f"{problem}; leave the target at least one")


def _check_refining(target: ModelShape, route: Route, blocks: Sequence[PlannedBlock]) -> None:
    """Raise `BadInput` for a strength that leaves the target no step of some block."""
    for block in blocks:
        strength = refining_at(route, block)
        steps = len(target.timesteps if block.span.index else target.first_timesteps or target.timesteps)
        if strength and strength.skip >= steps:
            fault = f"this strength of refine leaves out {strength.skip} steps, and the {target.name} makes {steps}"
            raise BadInput(f"{fault} of block {block.span.index + 1}; choose a stronger word, or another policy")


def _may_hand_over(route: Route, block: PlannedBlock) -> bool:
    return handover_at(route, block) > 0 and _may_be_remade(route, block)


def _may_be_remade(route: Route, block: PlannedBlock) -> bool:
    decision = decide_early(route, block, ())
    return not (decision and decision.accepted)


def has_partial_blocks(plan: RunPlan) -> bool:
    """Return True if a handover, or fewer steps, would leave the target only a part of some block."""
    return any(_may_be_remade(plan.route, block) for block in plan.blocks if not is_made_whole(block))


def check_restyle(drafter: ModelShape, target: ModelShape, plan: RunPlan) -> None:
    """Raise `BadInput` unless both models can skip the steps of a plan's strengths."""
    check_strengths(plan.strengths, [drafter.timesteps, target.timesteps])
    skip = max((strength.skip for strength in plan.strengths), default=0)
    if "drafter" in plan.models_needed and skip >= steps_made(drafter):
        problem = f"the clip replaces {skip} steps, and drafts stop after {steps_made(drafter)}"
        raise BadInput(f"{problem}; give a stronger word, a number, or the drafter more draft_steps")
    if 0 in plan.new_indices:
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
