"""Who makes each block of a video: the worst frame's score against tau (the paper), or another policy.

A policy is a value with those settings alone that it reads. Its decisions are pure functions of these, of a block's
place in the route, of scores and of earlier decisions, so a run can be resumed.
Source: SDVG (arXiv 2604.17397), Section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from ..errors import BadInput, quoted
from .decision import (
    BAILED_OUT,
    BY_DIRECTION,
    FORCED,
    REFINED,
    REJECTED,
    UNSCORED_DRAFT,
    UNSCORED_TARGET,
    Decision,
    Reason,
)
from .fields import Setting, check_fields, checked, float32, setting
from .parts import check_part, faults_of

Past = tuple[Decision, ...]
"""The decisions on a run's earlier blocks."""
Scores = tuple[float, ...]
"""One per pixel frame, exact in float32, in the scorer's units; higher is better."""
StrengthWord = Literal["light", "medium", "strong"]
"""How much of a clip or a draft is made anew; `STRENGTHS` in settings.request says how many steps."""


# --- the frames' scores as one


@dataclass(frozen=True, slots=True)
class WorstFrame:
    """The lowest score decides.

    `margin`: of a cascade, which scores a few frames of a draft first, and the others only if those do not decide;
    None scores all at once. Rejecting by the frames scored first is exact, as the worst of all is no better than
    theirs; keeping by them is a guess, so it takes a margin above tau. Source: the authors' SDVG-hybrid, whose
    margin is not published; theirs takes a margin for rejecting too.
    """

    margin: float | None = setting(
        None,
        least=0,
        help="score four frames of a draft first: below tau they reject it, MARGIN above it they keep it, in "
        "between the others are scored too (inf: keep none before all are scored)",
        flags=("--cascade",),
        called="cascade",
        metavar="MARGIN",
        parts=("scorer",),
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def aggregate(self, scores: Scores) -> float:
        """Return the score of a block."""
        return min(scores)


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean score decides."""

    def aggregate(self, scores: Scores) -> float:
        """Return the score of a block, rounded to float32."""
        return float32(math.fsum(scores) / len(scores))


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of the scores decides: 0 is the worst frame, 1 the best."""

    q: float = setting(
        0.1, least=0, most=1, called="quantile", widget={"step": 0.05, "advanced": True, "optional": True}
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def aggregate(self, scores: Scores) -> float:
        """Return the score of a block, interpolated between two frames and rounded to float32."""
        ranked = sorted(scores)
        rank = self.q * (len(ranked) - 1)
        below = ranked[math.floor(rank)]
        above = ranked[math.ceil(rank)]
        return float32(below + (above - below) * (rank % 1))


Aggregation = WorstFrame | Mean | Quantile


# --- policies


def _forced_blocks() -> Any:
    return setting(
        1,
        least=0,
        help="the target makes the route's first M blocks by rule, before the policy is asked; with --policy first "
        "the drafter makes all others",
        metavar="M",
        widget={"max": 4096, "advanced": True},
    )


def _bail_out() -> Any:
    return setting(
        0,
        least=0,
        help="target-only after this many rejections in a row (0: never)",
        widget={"max": 64, "advanced": True},
        parts=("scorer",),
    )


@dataclass(frozen=True, slots=True)
class Gate:
    """The paper's policy: a draft is kept if its score, by the rule `by`, reaches `tau`."""

    tau: float = setting(
        -0.7,
        help="reward gate (paper): keep a draft whose weakest frame scores at least this (paper: -0.7)",
        flags=("--gate", "--tau"),
        widget={"min": -3.0, "max": 3.0, "step": 0.05},
        parts=("scorer",),
    )
    by: Aggregation = setting(
        WorstFrame(),
        help="the frames' scores as one: min (the weakest frame), mean, or a quantile as a number, such as 0.1",
        flags=("--aggregation",),
        metavar="HOW",
        parts=("scorer",),
    )
    forced_blocks: int = _forced_blocks()
    bail_out: int = _bail_out()
    needs_scorer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def decide_early(self, place: int, past: Past) -> Decision | None:
        """Return the decision on a block that is not drafted yet; None if scores decide."""
        return _decided_without_scores(self, place, past)

    def decide(self, place: int, scores: Scores) -> Decision:
        """Decide by scores. One that is not finite rejects the draft.

        Tau is compared in float32, as scores are; the value keeps it as the user wrote it.
        """
        if not all(map(math.isfinite, scores)):
            return Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=scores)
        score = self.by.aggregate(scores)
        keep = score >= float32(self.tau)
        reason = Reason.REACHED if keep else Reason.FELL_SHORT
        return Decision(accepted=keep, reason=reason, score=score, threshold=self.tau, frame_scores=scores)

    @property
    def cascades(self) -> bool:
        """True if a few frames are scored first."""
        return isinstance(self.by, WorstFrame) and self.by.margin is not None

    def is_clear(self, decision: Decision) -> bool:
        """Return True if the frames scored first reach tau by the margin, so that the others stay unscored."""
        margin = self.by.margin if isinstance(self.by, WorstFrame) else None
        return margin is not None and decision.score is not None and decision.score >= float32(self.tau) + margin


@dataclass(frozen=True, slots=True)
class First:
    """The target makes the first `n` blocks, and the drafter all others: forced blocks, and no rule after them."""

    n: int = setting(1, least=0, flags=("--forced-blocks",), called="first blocks")
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def decide_early(self, place: int, past: Past) -> Decision:
        """Return the decision on a block."""
        return FORCED if place < self.n else UNSCORED_DRAFT


def _check_block_numbers(blocks: tuple[int, ...]) -> None:
    """Raise `BadInput` for a number that no block has: they are counted from 1."""
    number = Setting(name="target at", kinds=(int,), least=1)
    for block in blocks:
        number.fitted(block)


@dataclass(frozen=True, slots=True)
class At:
    """The target makes block 1 and these blocks, counted from 1, and the drafter the others.

    `blocks`: kept in order, each once, without block 1. They are places in the route and no shares of its length,
    so that a video that becomes longer keeps what it has.
    """

    blocks: tuple[int, ...] = setting(
        (2, 5),
        check=_check_block_numbers,
        help="the target makes block 1 of the route and these, counted from 1, such as 2 5",
        flags=("--target-at",),
        called="target at",
        metavar="BLOCK",
    )
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "blocks", tuple(sorted({*self.blocks} - {1})))

    def decide_early(self, place: int, past: Past) -> Decision:
        """Return the decision on a block."""
        return FORCED if place < 1 or place + 1 in self.blocks else UNSCORED_DRAFT


@dataclass(frozen=True, slots=True)
class Stride:
    """The target makes blocks 1, 1 + n, 1 + 2n and so on, rounded, and the drafter the others."""

    n: float = setting(
        4.0,
        least=1,
        most=4096,
        help="the target makes blocks 1, 1 + N, 1 + 2N and so on of the route, rounded: about one in N",
        flags=("--stride",),
        called="stride",
        metavar="N",
        widget={"step": 1.0, "round": 0.01},
    )
    forced_blocks: int = _forced_blocks()
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def decide_early(self, place: int, past: Past) -> Decision:
        """Return the decision on a block."""
        if place < self.forced_blocks:
            return FORCED
        below = int(place // self.n)
        multiples = (round(below * self.n), round((below + 1) * self.n))  # a half goes to the even one
        return UNSCORED_TARGET if place in multiples else UNSCORED_DRAFT


@dataclass(frozen=True, slots=True)
class TargetOnly:
    """The target makes all blocks."""

    needs_scorer: ClassVar[bool] = False

    def decide_early(self, place: int, past: Past) -> Decision:
        """Return the decision on a block."""
        return UNSCORED_TARGET


@dataclass(frozen=True, slots=True)
class Refine:
    """The target refines every draft: it makes its last steps over it, as if it restyled a clip.

    The route's first block too. Drafts follow each other and not the target's blocks, so those of an earlier run
    by the drafter alone serve, such as a live one's.
    """

    strength: StrengthWord = setting(
        "medium",
        help="the drafter makes every block, and the target its last steps over it: of four steps one (light), two "
        "or three (strong)",
        flags=("--refine",),
        called="refine",
    )
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def decide_early(self, place: int, past: Past) -> Decision:
        """Return the decision on a block."""
        return REFINED


@dataclass(frozen=True, slots=True)
class Custom:
    """A router of the user's own decides; `sdvg_core.Router` says what it has."""

    # Not hashed, as a router may be an object without a hash.
    router: Any = field(hash=False)
    forced_blocks: int = _forced_blocks()
    bail_out: int = _bail_out()

    def __post_init__(self) -> None:
        check_part("router", self.router)
        check_fields(self)

    @property
    def needs_scorer(self) -> bool:
        """True if the router decides by scores."""
        with faults_of("router", self.router):
            return bool(self.router.needs_scorer)

    def decide_early(self, place: int, past: Past) -> Decision | None:
        """Return the decision on a block that is not drafted yet; None if scores decide."""
        early = _decided_without_scores(self, place, past)
        if early or self.needs_scorer:
            return early
        return UNSCORED_DRAFT if self._keeps(place, None) else UNSCORED_TARGET

    def decide(self, place: int, scores: Scores) -> Decision:
        """Decide by scores. One that is not finite rejects the draft."""
        if not all(map(math.isfinite, scores)):
            return Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=scores)
        score = min(scores)
        keep = self._keeps(place, score)
        reason = Reason.ROUTER_KEPT if keep else Reason.ROUTER_REMADE
        return Decision(accepted=keep, reason=reason, score=score, frame_scores=scores)

    def _keeps(self, place: int, score: float | None) -> bool:
        with faults_of("router", self.router):
            kept = self.router.keep(place, score)
        if not isinstance(kept, bool):
            name = type(self.router).__name__
            answer = f"answered {quoted(kept, 20)} for block {place + 1}"
            raise BadInput(f"the router {name:.40} {answer}; return True or False")
        return kept


NamedPolicy = Gate | First | At | Stride | Refine | TargetOnly
Policy = NamedPolicy | Custom
POLICIES: Mapping[str, type[NamedPolicy]] = {
    "reward": Gate,
    "first": First,
    "at": At,
    "stride": Stride,
    "refine": Refine,
    "always-target": TargetOnly,
}
"""The policies that users choose by name."""


def policy_name(policy: Policy) -> str:
    """Return a policy's name for users; `custom` for a router of their own."""
    return next((name for name, kind in POLICIES.items() if isinstance(policy, kind)), "custom")


def _decided_without_scores(policy: Gate | Custom, place: int, past: Past) -> Decision | None:
    """Return the decision on a block that the target makes by rule, or after a bail-out; else None."""
    if place < policy.forced_blocks:
        return FORCED
    in_a_row = 0
    for decision in past if policy.bail_out else ():
        if decision.reason in BY_DIRECTION:
            continue  # the user decided, which says nothing about the drafts
        in_a_row = in_a_row + 1 if decision.reason in REJECTED else 0
        if in_a_row == policy.bail_out:
            return BAILED_OUT
    return None


# --- routes


@dataclass(frozen=True, slots=True)
class Route:
    """Who makes each block of a video: a policy, and how much of the target's blocks the drafter begins.

    `handover`: number of the drafter's steps that the target goes on from, but for the route's first block and
    those directed `t`: see `engine.routing.handover_at`. `target_steps`: see `steps_left_out` there. Raises
    `BadInput` for either with `Refine`, whose strength says how many steps the target makes.
    """

    policy: Policy = Gate()
    handover: int = setting(
        0,
        least=0,
        help="of a block that the target makes, the drafter makes the first K denoising steps (0: none)",
        metavar="K",
        widget={"max": 16, "advanced": True},
    )
    target_steps: int = setting(
        0,
        least=0,
        help="of a block that the target makes, but for the route's first, it makes N denoising steps at most: the "
        "first and the last ones, or the last ones after a handover (0: all)",
        metavar="N",
        widget={"max": 16, "advanced": True},
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.policy, Refine) and (self.handover or self.target_steps):
            name = "handover" if self.handover else "target_steps"
            fault = f"refine has no {name}, as its strength says how many steps the target makes"
            raise BadInput(f"{fault}; set {name} to 0, or choose another policy")

    @property
    def name(self) -> str:
        """Its name for users: of a preset, of its policy, or of a custom router."""
        if isinstance(self.policy, Custom):
            return f"router {type(self.policy.router).__name__:.40}"
        # *paper* is left out: it is the gate at the usual tau, and a gate is called so at any tau.
        presets = (name for name, route in ROUTE_PRESETS.items() if route == self and name != "paper")
        return f"route {next(presets, policy_name(self.policy))}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The route that costs this share of what the target alone would cost; see `memory.budget`."""

    share: float = setting(
        least=0.01,
        most=1,
        help="instead: spend this share of what the target alone would cost, such as 0.5, on the first blocks",
        flags=("--budget",),
        called="budget",
        metavar="SHARE",
    )

    def __post_init__(self) -> None:
        check_fields(self)


CASCADE_MARGIN = 0.2
"""Our choice, as the authors' is not published: from training prompts of the miniature (docs/study.md)."""
ROUTE_PRESETS: Mapping[str, Route] = {
    "paper": Route(),
    "hybrid": Route(Gate(by=WorstFrame(CASCADE_MARGIN)), handover=3),
    "fast": Route(First(1)),
    "balanced": Route(At((2, 5)), handover=3),
    "careful": Route(First(4), handover=2),
}
"""Routes by name: the paper's two, then ours from the fastest to the closest to the target."""
DEFAULT_PRESET = "balanced"
"""The default of commands and nodes; `Route()` is the paper's."""


def is_preset(route: Route) -> bool:
    """Return True if a route is a preset, with any tau."""
    if isinstance(route.policy, Gate):
        route = replace(route, policy=replace(route.policy, tau=Gate().tau))
    return route in ROUTE_PRESETS.values()


def lower_handover(route: Route, most: int) -> Route:
    """Return a preset with `most` steps handed over at most: presets are for every pair of models. Others stay."""
    return replace(route, handover=min(route.handover, most)) if is_preset(route) else route


def route_preset(name: str) -> Route:
    """Return a route by name. Raises `BadInput` for an unknown name."""
    if checked(name, str, "preset") not in ROUTE_PRESETS:
        raise BadInput(f"there is no route preset {quoted(name)}; choose one of {', '.join(ROUTE_PRESETS)}")
    return ROUTE_PRESETS[name]
