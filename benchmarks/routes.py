"""The routes to time. Decisions are scripted, but scores are still computed and their time counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sdvg_core.engine.router import Policy, RouterConfig
from sdvg_core.errors import BadInput

TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY, BAIL_OUT = "target-only", "draft-only", "anchor-only", "bail-out"
# On the route `bail-out`, the target makes the rest after this many rejections in a row.
BAIL_OUT_AFTER = 2
DEFAULT = (TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY, "first=2+2", "r=1", "r=2", "r=4", "r=8", BAIL_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route through a clip. `keeps`: for each block, whether the draft is kept.

    `handover`: steps the drafter makes of every block of the target's but the first.
    """

    name: str
    policy: Policy
    keeps: tuple[bool, ...]
    bail_out: int = 0
    handover: int = 0

    @property
    def routed(self) -> bool:
        """Whether the route uses both models."""
        return self.name not in (TARGET_ONLY, DRAFT_ONLY)

    @property
    def rejected(self) -> int:
        """How many blocks after the first the target makes."""
        return self.keeps[1:].count(False)

    @property
    def limit(self) -> float | None:
        """The speed-up over target-only if drafting and routing took no time; None if the target makes no block.

        Also None with a handover: then a block of the target's has fewer passes.
        """
        by_target = self.keeps.count(False)
        return len(self.keeps) / by_target if by_target and not self.handover else None

    @property
    def script(self) -> str:
        """The route as letters: a for a draft that is kept, r for a block from the target."""
        return "".join("a" if keep else "r" for keep in self.keeps)

    @property
    def router(self) -> RouterConfig:
        """The router that takes this route."""
        script = self.script if self.policy == "scripted" else ""
        return RouterConfig(
            policy=self.policy,
            script=script,
            bail_out=self.bail_out,
            forced_blocks=self.keeps.count(False) if self.policy == "first" else int(self.name != DRAFT_ONLY),
            handover=self.handover,
        )


def default_routes(blocks: int, names: Sequence[str] = DEFAULT) -> tuple[Route, ...]:
    """Return those of the usual routes that are possible in a clip of this many blocks."""
    # A clip of n blocks has at most n - 1 that are rejected, and n that are the target's.
    possible = {"r": blocks - 1, "first": blocks}
    counts = {name: re.match(r"(r|first)=(\d+)", name) for name in names}
    return tuple(
        parse_route(name, blocks) for name, of in counts.items() if not of or int(of[2]) <= possible[of[1]]
    )


def parse_route(name: str, blocks: int) -> Route:
    """Return a route by name: target-only, draft-only, anchor-only, bail-out, or r=2 for two rejected blocks.

    first=3 gives three blocks to the target without a verdict; first=3+2 hands over two steps of all but the first.
    Raises `BadInput` if a clip of this many blocks has no such route.
    """
    later = blocks - 1
    fixed: dict[str, tuple[Policy, tuple[bool, ...], int]] = {
        TARGET_ONLY: ("always-target", (False,) * blocks, 0),
        DRAFT_ONLY: ("always-draft", (True,) * blocks, 0),
        ANCHOR_ONLY: ("anchor-only", (False, *(True,) * later), 0),
        BAIL_OUT: ("scripted", (False,) * blocks, BAIL_OUT_AFTER),
    }
    if name in fixed:
        policy, keeps, bail_out = fixed[name]
        return Route(name=name, policy=policy, keeps=keeps, bail_out=bail_out)
    first = re.fullmatch(r"first=([1-9]\d{0,3})(?:\+(\d))?", name)
    if first:
        return _first(name, int(first[1]), int(first[2] or 0), blocks)
    found = re.fullmatch(r"r=(\d{1,4})", name)
    if found is None:
        raise BadInput(
            f"the routes are {', '.join(fixed)}, r=N and first=M or first=M+K, but got {name!r}; choose one of them"
        )
    rejected = int(found[1])
    if rejected > later:
        raise BadInput(
            f"of {blocks} blocks at most {later} can be rejected, as the first is always the target's, but got "
            f"{name}; reject fewer or ask for more blocks"
        )
    remade = evenly(rejected, blocks)
    return Route(name=name, policy="scripted", keeps=tuple(i > 0 and i not in remade for i in range(blocks)))


def _first(name: str, by_target: int, handover: int, blocks: int) -> Route:
    if by_target > blocks:
        raise BadInput(
            f"the clip has {blocks} blocks, but got {name}; give the target fewer or ask for more blocks"
        )
    keeps = (False,) * by_target + (True,) * (blocks - by_target)
    return Route(name=name, policy="first", keeps=keeps, handover=handover)


def evenly(count: int, blocks: int) -> tuple[int, ...]:
    """Return `count` of the blocks 1 to `blocks - 1`, evenly spread."""
    return tuple(1 + (2 * i + 1) * (blocks - 1) // (2 * count) for i in range(count))
