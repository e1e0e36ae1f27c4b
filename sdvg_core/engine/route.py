"""Which blocks a run makes, who may make them, and so which models it needs; known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .directions import direct, read_takes
from .roles import Roles, check_roles
from .router import ROUTER_DECIDES, RouterConfig
from .types import Span, plan_spans, spans_of_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A run's blocks. `clip`: the spans of what it continues; `asked`: the parts its blocks may ask for.

    `notes`: what a reader of the report must know.
    """

    router: RouterConfig
    clip: tuple[Span, ...]
    spans: tuple[Span, ...]
    asked: Roles
    notes: tuple[str, ...] = ()


NOT_FORCED = "There is no target, so the first block was not forced."


def without_target(router: RouterConfig) -> RouterConfig:
    """Return the router for a run without a target, which forces the first block only where that was asked for.

    A router that needs a target all the same is refused by `check_roles`.
    """
    by_default = router.forced_blocks == RouterConfig().forced_blocks and router.policy != "first"
    return replace(router, forced_blocks=0) if by_default else router


def plan_route(
    router: RouterConfig,
    *,
    blocks: int,
    block_frames: int,
    there: Roles,
    given_frames: int = 0,
    directions: str = "",
    takes: str = "",
) -> Route:
    """Return the route of a run of `blocks` blocks after a clip of `given_frames` latent frames.

    `directions`, `takes`: as users write them (see `directions`). `there`: the parts to be had.
    Raises `BadInput` if they are wrong, or if a part is missing that a block may ask for.
    """
    clip = spans_of_clip(given_frames, block_frames)
    spans = plan_spans(blocks, block_frames, clip[-1].stop if clip else 0, read_takes(takes, blocks))
    first = spans[0].index
    directed = direct(router, directions, blocks, first)
    notes: tuple[str, ...] = ()
    if not there.target and first == 0 and directed.direction(0) == ROUTER_DECIDES:
        unforced = without_target(directed)
        directed, notes = unforced, () if unforced == directed else (NOT_FORCED,)
    directed.check_blocks(spans[-1].index)
    return Route(router=directed, clip=clip, spans=spans, asked=check_roles(directed, spans, there), notes=notes)
