"""Decide who makes a block: by the worst frame's score and tau (the paper), or by another policy.

A decision is a pure function of settings, block index, scores and earlier decisions, so a run can be resumed.
Source: SDVG (arXiv 2604.17397), Section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from ..errors import BadInput
from .fields import check_fields, checked, float32, setting
from .parts import check_part, faults_of

Aggregation = Literal["min", "mean", "quantile"]

DIRECTION_LETTERS = ("a", "r", "d", "t")
LETTERS_IN_SHORT = "a (score, keep), r (score, reject), d (keep), t (target)"
ROUTER_DECIDES = "."
FIRST_FRAMES = 4
"""Frames of a draft that a cascade scores first."""
Frames = tuple[int, ...]
"""Indices of pixel frames in a block, from 0."""


class Reason(Enum):
    """Why the drafter or the target made a block. The value is shown to users."""

    FORCED = "by rule, whatever the route"
    REACHED = "the score reaches tau"
    FELL_SHORT = "the score is below tau"
    NOT_FINITE = "a frame's score is not a finite number"
    BAILED_OUT = "too many blocks in a row were rejected, so the target makes the rest"
    UNJUDGED_DRAFT = "the route keeps the draft without scoring it"
    UNJUDGED_TARGET = "the route gives the block to the target"
    DIRECTED_DRAFT = "a direction keeps the draft without scoring it"
    DIRECTED_TARGET = "a direction gives the block to the target"
    DIRECTED_KEPT = "a direction keeps the draft"
    DIRECTED_REMADE = "a direction rejects the draft"
    ROUTER_KEPT = "the router keeps the draft"
    ROUTER_REMADE = "the router rejects the draft"


REJECTED = (Reason.FELL_SHORT, Reason.NOT_FINITE, Reason.ROUTER_REMADE)
BY_DIRECTION = (Reason.DIRECTED_DRAFT, Reason.DIRECTED_TARGET, Reason.DIRECTED_KEPT, Reason.DIRECTED_REMADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the draft is kept, why, and by which scores.

    `score`: aggregated, or None if nothing was scored. `threshold`: the one it was compared with. `frame_scores`:
    one per pixel frame, None for frames that were not scored.
    """

    accepted: bool
    reason: Reason
    score: float | None = None
    threshold: float | None = None
    frame_scores: tuple[float | None, ...] = ()

    @property
    def scored(self) -> bool:
        """True if the draft was scored."""
        return bool(self.frame_scores)

    @property
    def worst_frame(self) -> int | None:
        """The index in the block of the frame with the lowest score, or of the first that is not finite."""
        ranked = {
            frame: score if math.isfinite(score) else -math.inf
            for frame, score in enumerate(self.frame_scores)
            if score is not None
        }
        return min(ranked, key=lambda frame: ranked[frame], default=None)

    @property
    def known_scores(self) -> tuple[float, ...]:
        """The scores of the frames that were scored."""
        return tuple(score for score in self.frame_scores if score is not None)


UNSEEN_DRAFT = Decision(accepted=True, reason=Reason.UNJUDGED_DRAFT)
UNSEEN_TARGET = Decision(accepted=False, reason=Reason.UNJUDGED_TARGET)
DIRECTED = {
    "d": Decision(accepted=True, reason=Reason.DIRECTED_DRAFT),
    "t": Decision(accepted=False, reason=Reason.DIRECTED_TARGET),
}


def check_letters(directions: str) -> None:
    """Raise `BadInput` for a letter that is no direction."""
    if not isinstance(directions, str) or set(directions) - {ROUTER_DECIDES, *DIRECTION_LETTERS}:
        known = f"{ROUTER_DECIDES} (route), {LETTERS_IN_SHORT}"
        raise BadInput(f"unknown letters in the directions {directions!r:.60}; write per block {known}")


Policy = Literal["reward", "first", "stride", "always-target"]
REWARD: Policy = "reward"
POLICIES: Mapping[Policy, tuple[str, ...]] = {
    REWARD: ("tau", "aggregation", "quantile", "cascade", "bail_out", "forced_blocks"),
    "first": ("forced_blocks",),
    "stride": ("stride", "forced_blocks"),
    "always-target": (),
}
"""The fields of `RouterConfig` that each policy reads; see `fields_read`. Only `reward` scores drafts.

With no forced blocks `first` is the drafter alone, with one the target makes the first block only.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Settings of the router; the help of each field describes it, and the defaults are the paper's.

    A draft with `score >= tau` is kept, in the scorer's units. `quantile`: 0 is the worst frame, 1 the best.
    `cascade`: None scores all frames at once. `handover`: of all blocks but the route's first. `directions`: the
    user's decisions under every policy, a letter per block of the clip. `skipped`: number of steps that a restyled
    clip replaces, by block of the clip; if it is `handover` or more, nothing is handed over. `part`: a custom
    router that replaces the policy. `route_start`: the clip's first block of the route, after a clip given as
    pixels.
    """

    policy: Policy = setting(REWARD, help=", ".join(POLICIES), metavar="POLICY")
    tau: float = setting(
        -0.7,
        help="reward gate (paper): keep a draft whose weakest frame scores at least this (paper: -0.7)",
        flags=("--gate", "--tau"),
        chooses=REWARD,
        widget={"min": -3.0, "max": 3.0, "step": 0.05},
        part="scorer",
    )
    aggregation: Aggregation = setting(
        "min",
        help="the frames' scores as one: min (the weakest frame), mean, or a quantile as a number, such as 0.1",
        metavar="HOW",
        widget={"advanced": True},
        part="scorer",
    )
    quantile: float = setting(0.1, least=0, most=1, widget={"step": 0.05, "advanced": True, "optional": True})
    cascade: float | None = setting(
        None,
        least=0,
        help="score four frames of a draft first: below tau they reject it, MARGIN above it they keep it, in "
        "between the others are scored too (inf: those of every draft that is kept)",
        metavar="MARGIN",
        chooses=REWARD,
        part="scorer",
    )
    stride: float = setting(
        4.0,
        least=1,
        most=4096,
        help="the target makes blocks 1, 1 + N, 1 + 2N and so on of the route, rounded: for k of B blocks, B / k",
        metavar="N",
        chooses="stride",
        widget={"step": 1.0, "round": 0.01},
    )
    forced_blocks: int = setting(
        1,
        least=0,
        help="the target makes the clip's first M blocks whatever the route; --policy first drafts all others",
        metavar="M",
        widget={"max": 4096, "advanced": True},
    )
    bail_out: int = setting(
        0,
        least=0,
        help="target-only after this many rejections in a row (0: never)",
        widget={"max": 64, "advanced": True},
        part="scorer",
    )
    handover: int = setting(
        0,
        least=0,
        help="of a block that the target makes, the drafter makes the first K denoising steps (0: none)",
        metavar="K",
        widget={"max": 16, "advanced": True},
    )
    directions: str = setting("", check=check_letters)
    skipped: tuple[int, ...] = ()
    # Not hashed, as a router may be an object without a hash.
    part: Any = field(default=None, hash=False)
    route_start: int = setting(0, least=0)

    def __post_init__(self) -> None:
        if self.part is not None:
            check_part("router", self.part)
        check_fields(self)

    @property
    def needs_scorer(self) -> bool:
        """True if the policy may score a block, unless a direction decides."""
        if self.part is not None:
            with faults_of("router", self.part):
                return bool(self.part.needs_scorer)
        return self.policy == REWARD

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for the report."""
        values = asdict(replace(self, part=None))
        del values["skipped"], values["part"], values["route_start"]
        if self.cascade is not None:
            values["cascade"] = min(self.cascade, MOST_MARGIN)
        values["tau"] = min(max(self.tau, -MOST_MARGIN), MOST_MARGIN)
        return values if self.part is None else {**values, "part": type(self.part).__name__}

    def place(self, index: int) -> int:
        """Return the index in the route of block `index` of the clip."""
        return index - self.route_start

    def direction(self, index: int) -> str:
        """Return the user's letter for block `index` of the clip."""
        return self.directions[index : index + 1] or ROUTER_DECIDES

    def handover_at(self, index: int) -> int:
        """Return the number of steps that the drafter hands over if the target makes block `index` of the clip."""
        skip = self.skipped[index] if index < len(self.skipped) else 0
        whole = self.place(index) < 1 or self.direction(index) == "t"
        return 0 if whole or skip >= self.handover else self.handover


MOST_MARGIN = 1e9
"""Stands for infinity in reports, as JSON has none; scores are far smaller."""
CASCADE_MARGIN = 0.2
"""Our choice, as the authors' is not published: from training prompts of the miniature (docs/study.md)."""
ROUTER_PRESETS: Mapping[str, RouterConfig] = {
    "paper": RouterConfig(),
    "hybrid": RouterConfig(handover=3, cascade=CASCADE_MARGIN),
    "fast": RouterConfig(policy="first", forced_blocks=1),
    "balanced": RouterConfig(policy="first", forced_blocks=2, handover=2),
    "careful": RouterConfig(policy="first", forced_blocks=4, handover=2),
}
"""Routers by name: the paper's two, then ours from the fastest to the closest to the target."""
DEFAULT_PRESET = "balanced"
"""The default of commands and nodes; `RouterConfig()` is the paper's."""


def is_preset(router: RouterConfig) -> bool:
    """Return True if a router is a preset, with any tau."""
    return replace(router, tau=ROUTER_PRESETS["paper"].tau) in ROUTER_PRESETS.values()


def router_preset(name: str) -> RouterConfig:
    """Return a router by name. Raises `BadInput` for an unknown name."""
    if checked(name, str, "preset") not in ROUTER_PRESETS:
        raise BadInput(f"there is no router preset {name!r:.60}; choose one of {', '.join(ROUTER_PRESETS)}")
    return ROUTER_PRESETS[name]


def decide_early(config: RouterConfig, index: int, past: tuple[Decision, ...]) -> Decision | None:
    """Return the decision on block `index` if it is certain before drafting; None if it depends on scores."""
    direction = config.direction(index)
    if direction != ROUTER_DECIDES:
        return DIRECTED.get(direction)
    place = config.place(index)
    if place < config.forced_blocks:
        return Decision(accepted=False, reason=Reason.FORCED)
    if _bailed_out(config, past):
        return Decision(accepted=False, reason=Reason.BAILED_OUT)
    if config.part is not None:
        return None if config.needs_scorer else _by_part(config, place)
    if config.policy == REWARD:
        return None
    if config.policy == "stride":
        below = int(place // config.stride)
        multiples = (
            round(below * config.stride),
            round((below + 1) * config.stride),
        )  # a half goes to the even one
        return UNSEEN_TARGET if place in multiples else UNSEEN_DRAFT
    return UNSEEN_TARGET if config.policy == "always-target" else UNSEEN_DRAFT


def fields_read(config: RouterConfig, blocks: Iterable[int]) -> set[str]:
    """Return the fields that the decisions on these blocks of a clip read."""
    fields = POLICIES[config.policy]
    read: set[str] = set()
    after_forced = 0
    handing = config if config.handover else replace(config, handover=1)
    for index in blocks:
        direction = config.direction(index)
        if direction == ROUTER_DECIDES and "forced_blocks" in fields and config.place(index) < config.forced_blocks:
            read.add("forced_blocks")
        elif direction == ROUTER_DECIDES:
            read |= {"policy", *fields}
            after_forced += 1
        elif direction not in DIRECTED:  # a and r score the draft
            read.add("aggregation")
        certain = decide_early(handing, index, ())
        if handing.handover_at(index) and not (certain and certain.accepted):
            read.add("handover")
    if after_forced <= config.bail_out:  # no block comes after so many rejections
        read.discard("bail_out")
    return read


def _by_part(config: RouterConfig, index: int, score: float | None = None) -> Decision:
    assert config.part is not None
    with faults_of("router", config.part):
        kept = config.part.keep(index, score)
    if not isinstance(kept, bool):
        name = type(config.part).__name__
        raise BadInput(f"the router {name:.40} answered {kept!r:.20} for block {index + 1}; return True or False")
    if score is None:
        return UNSEEN_DRAFT if kept else UNSEEN_TARGET
    return Decision(accepted=kept, reason=Reason.ROUTER_KEPT if kept else Reason.ROUTER_REMADE, score=score)


def _bailed_out(config: RouterConfig, past: tuple[Decision, ...]) -> bool:
    in_a_row = 0
    for decision in past if config.bail_out else ():
        if decision.reason in BY_DIRECTION:
            continue  # the user decided, which says nothing about the drafts
        in_a_row = in_a_row + 1 if decision.reason in REJECTED else 0
        if in_a_row == config.bail_out:
            return True
    return False


def decide(config: RouterConfig, index: int, scores: tuple[float, ...]) -> Decision:
    """Decide whether a drafted block is kept.

    `scores`: one per pixel frame, exact in float32, scorer units, higher is better.
    A score that is not finite rejects the draft. Source: SDVG (arXiv 2604.17397), Section 3, worst-frame rule.
    """
    if not all(map(math.isfinite, scores)):
        return Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=scores)
    score = aggregate(config, scores)
    direction = config.direction(index)
    if direction != ROUTER_DECIDES:
        keep = direction == "a"
        reason = Reason.DIRECTED_KEPT if keep else Reason.DIRECTED_REMADE
        decision = Decision(accepted=keep, reason=reason, score=score)
    elif config.part is not None:
        decision = _by_part(config, config.place(index), score)
    else:
        keep = score >= float32(config.tau)
        reason = Reason.REACHED if keep else Reason.FELL_SHORT
        decision = Decision(accepted=keep, reason=reason, score=score, threshold=config.tau)
    return replace(decision, frame_scores=scores)


def aggregate(config: RouterConfig, scores: tuple[float, ...]) -> float:
    """Aggregate frame scores to the score of a block: minimum, mean or quantile, rounded to float32."""
    if config.aggregation == "min":
        return min(scores)
    if config.aggregation == "mean":
        return float32(math.fsum(scores) / len(scores))
    ranked = sorted(scores)
    rank = config.quantile * (len(ranked) - 1)
    below = ranked[math.floor(rank)]
    above = ranked[math.ceil(rank)]
    return float32(below + (above - below) * (rank % 1))


# --- The cascade scores a few frames of a draft first, and the others only if those do not decide. Rejecting by the
# first frames is exact, as the worst of all is no better than theirs; keeping by them is a guess, so it takes a
# margin above tau. Source: the authors' SDVG-hybrid, whose margin is not published and which also rejects by one.


def stages(config: RouterConfig, index: int, count: int) -> tuple[Frames, ...]:
    """Return the pixel frames of block `index` that are scored first, and those that may follow."""
    frames = tuple(range(count))
    if not cascades(config, index) or count <= FIRST_FRAMES:
        return (frames,)
    first = evenly_spaced(count)
    return first, tuple(frame for frame in frames if frame not in first)


def cascades(config: RouterConfig, index: int) -> bool:
    """Return True if a cascade is set and can decide block `index`."""
    by_worst_frame = config.aggregation == "min" and config.part is None
    return config.cascade is not None and by_worst_frame and config.direction(index) not in ("a", "r")


def evenly_spaced(count: int) -> Frames:
    """Return the indices of the frames scored first: 0, 4, 7, 11 of 12, and 0, 3, 5, 8 of 9."""
    return tuple(round(place * (count - 1) / (FIRST_FRAMES - 1)) for place in range(FIRST_FRAMES))


def score_and_decide(
    config: RouterConfig, index: int, count: int, score: Callable[[Frames], tuple[float, ...]]
) -> Decision:
    """Score as many of a draft's `count` pixel frames as needed, and decide whether it is kept.

    `score`: returns the scores of frames by their indices.
    """
    first, *others = stages(config, index, count)
    scores = score(first)
    decision = decide(config, index, scores)
    if not others:
        return decision
    known = dict(zip(first, scores, strict=True))
    if decision.accepted and not clearly_kept(config, decision):
        [rest] = others
        known |= zip(rest, score(rest), strict=True)
        decision = decide(config, index, tuple(known[frame] for frame in range(count)))
    return replace(decision, frame_scores=tuple(map(known.get, range(count))))


def clearly_kept(config: RouterConfig, decision: Decision) -> bool:
    """Return True if the first frames' worst score is above tau by the margin, so that the others stay unscored."""
    assert decision.score is not None
    assert config.cascade is not None
    return decision.score >= float32(config.tau) + config.cascade
