"""Forecast the next run: which blocks of a sampler stay, change, or may change. Runs nothing.

The latents of a block follow from the settings, the prompts so far, the block's noise, who makes it, and all blocks
before it. A hash of these names the latents without making them, so a run is forecast by walking its blocks through
what earlier runs made, by the router itself. Keys of the engine's store would be exact too, but need loaded models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ...sdvg_core.engine.routing import (
    DIRECTED,
    Frames,
    PlannedBlock,
    decide_early,
    handover_at,
    refining_at,
    score_and_decide,
    steps_left_out,
)
from ...sdvg_core.settings.decision import Decision, Reason
from ...sdvg_core.settings.request import ROUTE_DECIDES, Strength
from ...sdvg_core.settings.route import Custom, Route, Scores
from .asked import Asked, Trace

STAYS = "s"
CHANGES = "c"
MAY_CHANGE = "m"
"""What the next run does to a block: nothing; it makes the block; the scores decide."""
ABSENT = 0
PERHAPS = 1
AT_HAND = 2
"""Whether latents are in the store; a run that lost some of its results has the others perhaps."""
ANSWERS = {ABSENT: CHANGES, PERHAPS: MAY_CHANGE, AT_HAND: STAYS}
UNKNOWN_NAME = 0
Names = tuple[int, ...]
Key = tuple[Any, ...]
MOST_BRANCHES = 64
"""Courses that a run may take, of which each ends in latents that earlier runs made."""


# --- what earlier runs made


class EarlierRuns:
    """What earlier runs made, by names of latents; names of other settings do no harm."""

    def __init__(self) -> None:
        self.latents = dict[int, int]()
        self.scores = dict[Key, dict[Frames, Scores]]()
        self.decisions = dict[Key, Decision]()
        self.locks = dict[str, int]()
        self.courses = dict[str, list[list[int]]]()

    def learn(self, trace: Trace, at_hand: int) -> None:
        """Take in what a run made. `at_hand`: how surely the store has it."""
        courses = list[list[int]]()
        ends = clip_names(trace.asked[0])
        for asked in trace.asked:
            course = self._learn_shot(asked, trace.decisions, ends.get(asked.origin, UNKNOWN_NAME), at_hand)
            if len(course) == asked.blocks:
                ends[asked.key] = course[-1]
            courses.append(course)
        self.courses[trace.run] = courses
        self.locks |= dict(zip(trace.digests, chain.from_iterable(courses), strict=False))

    def _learn_shot(self, asked: Asked, decisions: Mapping[int, Decision], frame: int, at_hand: int) -> list[int]:
        """Take in a shot, and return the names of its course. `decisions`: by the film's block. `frame`: of its origin."""
        begun = self.start(asked, frame)
        course = self._before(asked.first - 1, begun)
        history = begun
        for number in range(asked.first, asked.blocks + 1):
            decision = decisions.get(asked.start + number)
            if decision is None:
                break
            block = Place(asked, number, history, begun)
            for name in block.made_by(decision):
                self.latents[name] = max(at_hand, self.latents.get(name, ABSENT))
            if decision.scored:
                self.scores.setdefault(block.scores, {}).update(scores_asked(asked.route, block.planned, decision))
            self.decisions[block.decision] = decision
            history = block.after(block.latents_of(decision))
            course.append(history)
        return course

    def start(self, asked: Asked, frame: int = UNKNOWN_NAME) -> int:
        """Return the name of what a shot begins after: locked blocks, or else the last frame of another shot.

        `frame`: name of the course that ends in that frame.
        """
        if asked.lock:
            return self.locks.get(asked.lock, hash(asked.lock))
        return hash(("frame", frame)) if asked.origin else hash(asked.lock)

    def _before(self, kept: int, history: int) -> list[int]:
        """Return the names of locked blocks, as far as the run that made them is known."""
        if not kept:
            return []
        shots = chain.from_iterable(self.courses.values())
        known = [course[:kept] for course in shots if history in course[kept - 1 : kept]]
        return known[0] if known else [*[UNKNOWN_NAME] * (kept - 1), history]

    def as_if_kept(self) -> EarlierRuns:
        """Return the same with all at hand that was ever made."""
        memory = EarlierRuns()
        memory.__dict__ |= {**self.__dict__, "latents": dict.fromkeys(self.latents, AT_HAND)}
        return memory

    def has(self, needs: Iterable[Names]) -> int:
        """Return how surely all of these are at hand; each under any one of its names."""
        return min((max(self.latents.get(name, ABSENT) for name in names) for names in needs), default=AT_HAND)


def clip_names(asked: Asked) -> dict[str, int]:
    """Return the names of the frames with which the film's clips end."""
    return {clip: hash(("clip", words)) for clip, words in asked.signature["clips"].items()}


@dataclass(frozen=True, slots=True)
class Place:
    """A block of a shot, after the blocks that `history` names, and the names of what may be made there.

    `begun`: name of what the shot begins after.

    A name is a hash of all that latents follow from, so equal names are equal latents. Where a restyled clip ends, a
    TAEHV encodes its last frames in another way; `as_if_longer`: as it would without that end, or with one here.
    """

    asked: Asked
    number: int
    history: int
    begun: int
    as_if_longer: bool = False

    @property
    def planned(self) -> PlannedBlock:
        """The block as the route sees it."""
        return self.asked.planned(self.number)

    @property
    def handover(self) -> int:
        """How many steps of the drafter the target would go on from."""
        return handover_at(self.asked.route, self.planned)

    @property
    def left_out(self) -> int:
        """How many of its steps the target would leave out."""
        return steps_left_out(self.asked.route, self.planned, self.asked.target_steps)

    @property
    def refining(self) -> Strength | None:
        """The strength by which the target would refine the draft, if it would."""
        return refining_at(self.asked.route, self.planned)

    @property
    def draft(self) -> int:
        """The name of its draft."""
        if not self.asked.own_drafts:
            return self._name("draft", self.history)
        takes = [self.asked.takes.get(number, 1) for number in range(self.asked.first, self.number)]
        return self._name("draft", self.begun, *takes)

    @property
    def scores(self) -> Key:
        """The name of the scores of its draft."""
        return self.asked.signature["scorer"], self.history, self.draft

    @property
    def decision(self) -> Key:
        """The name of the decision of its router."""
        return (*self.asked.router, self.history, self.draft)

    def latents_of(self, decision: Decision) -> int:
        """Return the name of the block's latents by a decision."""
        if decision.accepted:
            return self.draft
        refined = (self.refining.skip, self.draft) if self.refining else ()
        return self._name("target", self.history, self.handover, self.left_out, *refined)

    def after(self, latents: int) -> int:
        """Return the name of the course that goes on with these latents."""
        return hash((self.history, latents))

    def kept_draft(self, handover: int) -> int:
        """Return the name of its draft with as many first predictions, which are kept to be handed over."""
        return hash((self.draft, handover))

    def needs(self, decision: Decision, *, scored: bool) -> list[Names]:
        """Return what must be at hand for a decision: of each its own name, then those of what serves as well."""
        whole = self.kept_draft(self.asked.route.handover)
        draft: list[Names] = []
        if decision.accepted or scored or self.refining:
            draft = [(whole,)]
        elif self.handover:  # of which the whole draft has the beginning too
            draft = [(self._name("begun", self.draft, self.handover), whole)]
        if draft and self.asked.own_drafts:  # each goes on from the one before
            numbers = range(self.asked.first, self.number)
            earlier = [replace(self, number=number, as_if_longer=False) for number in numbers]
            draft += [(block.kept_draft(self.asked.route.handover),) for block in earlier]
        return [*draft, (self.latents_of(decision),)]

    def made_by(self, decision: Decision) -> Names:
        """Return the names of all that a decision made. A draft serves where fewer of its predictions are needed."""
        own_names = tuple(own_name for own_name, *_ in self.needs(decision, scored=decision.scored))
        if not (decision.accepted or decision.scored or self.refining):
            return own_names
        return (*own_names, self.draft, *map(self.kept_draft, range(self.asked.route.handover)))

    def _name(self, *parts: Any) -> int:
        asked = self.asked
        take = asked.takes.get(self.number, 1)
        ends = asked.restyles and (self.number == asked.blocks) != self.as_if_longer
        shot = asked.key, asked.begins_with, asked.shown(self.number)
        return hash((asked.signature["rest"], shot, take, self.number, ends, *parts))


# --- the walk


@dataclass(frozen=True, slots=True)
class Branch:
    """A course that the next run may take: the name of its latents so far, and its decisions."""

    history: int
    begun: int
    past: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`answers`: one letter per block. `old`: the blocks whose pictures were made for something else."""

    answers: str
    old: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """What is known of a shot after some block. `answer`: on the block. `names`: that its latents so far may have.

    `is_lost`: whether it may be another, which no run made.
    """

    answer: str
    names: frozenset[int]
    is_lost: bool = False


def walk_film(film: Sequence[Asked], memory: EarlierRuns) -> Iterator[list[Course]]:
    """Yield the courses of each shot, by block; of locked blocks, which stay, the name of the last one alone."""
    ends = {clip: Course(STAYS, frozenset({name})) for clip, name in clip_names(film[0]).items()}
    for asked in film:
        frame = ends.get(asked.origin, Course(STAYS, frozenset({UNKNOWN_NAME})))
        begun = Course(STAYS, frozenset(memory.start(asked, name) for name in frame.names), frame.is_lost)
        if asked.lock:
            begun = replace(begun, is_lost=False)
        locked = [Course(STAYS, frozenset()) for _ in range(asked.first - 2)] + [begun] * (asked.first > 1)
        courses = [*locked, *walk(asked, memory, begun)]
        ends[asked.key] = courses[-1]
        yield courses


def walk(asked: Asked, memory: EarlierRuns, begun: Course) -> Iterator[Course]:
    """Yield the course after each block of a shot that is made. `begun`: what it begins after."""
    branches = {Branch(name, name) for name in begun.names}
    # Whether some branch ended in latents that no run made. All that follows there is new; of own drafts, perhaps not.
    is_lost = begun.is_lost
    for number in range(asked.first, asked.blocks + 1):
        if len(branches) > MOST_BRANCHES:
            yield Course(MAY_CHANGE, frozenset(branch.history for branch in branches), is_lost)
            continue
        may_stay = asked.own_drafts and not refining_at(asked.route, asked.planned(number))
        answers = {MAY_CHANGE if may_stay else CHANGES} if is_lost else set()
        after = set[Branch]()
        for branch in branches:
            block = Place(asked, number, branch.history, branch.begun)
            own_answers, known, new = _look_up(block, branch.past, memory)
            answers |= own_answers
            after |= known
            is_lost |= new
            if asked.restyles and own_answers != {STAYS}:
                other_answers, known, _ = _look_up(replace(block, as_if_longer=True), branch.past, memory)
                answers |= other_answers
                after |= known
        branches = after
        answer = answers.pop() if len(answers) == 1 else MAY_CHANGE
        yield Course(answer, frozenset(branch.history for branch in branches), is_lost)


def _look_up(block: Place, past: tuple[Decision, ...], memory: EarlierRuns) -> tuple[set[str], set[Branch], bool]:
    """Return the answers for a block by each decision, the branches after it, and whether some latents are new."""
    answers = set[str]()
    branches = set[Branch]()
    new = False
    for decision, scored, at_hand in decisions(block, past, memory):
        answers.add(ANSWERS[min(at_hand, memory.has(block.needs(decision, scored=scored)))])
        latents = block.latents_of(decision)
        if memory.has([(latents,)]) == ABSENT:
            new = True
        else:
            branches.add(Branch(block.after(latents), block.begun, (*past, decision)))
    return answers, branches, new


def decisions(
    block: Place, past: tuple[Decision, ...], memory: EarlierRuns
) -> Iterator[tuple[Decision, bool, int]]:
    """Yield each decision that may be taken on a block, whether it scores the draft, and if the scores are at hand."""
    asked = block.asked
    planned = block.planned
    letter = planned.direction
    if letter in DIRECTED:
        yield DIRECTED[letter], False, AT_HAND
        return
    if asked.known and (early := decide_early(asked.route, planned, past)):
        yield early, False, AT_HAND
        return
    known = memory.decisions.get(block.decision)
    if not asked.known and letter == ROUTE_DECIDES and known:
        yield known, known.scored, AT_HAND
        return
    scores = memory.scores.get(block.scores)
    gated = asked.known or letter != ROUTE_DECIDES
    if scores and gated and (decision := decide_by(asked.route, planned, scores)):
        yield decision, True, AT_HAND
        return
    for accepted in (letter == "a",) if letter in ("a", "r") else (True, False):
        reason = Reason.REACHED if accepted else Reason.FELL_SHORT
        yield Decision(accepted=accepted, reason=reason), gated, ABSENT if gated else PERHAPS


def scores_asked(route: Route, planned: PlannedBlock, decision: Decision) -> dict[Frames, Scores]:
    """Return the scores that a decision asked for, by the frames that were scored together."""
    asked = dict[Frames, Scores]()
    if isinstance(route.policy, Custom):  # scores all frames at once, and is not called here
        return {tuple(range(len(decision.frame_scores))): decision.known_scores}

    def look_up(frames: Frames) -> Scores:
        asked[frames] = tuple(score for frame in frames if (score := decision.frame_scores[frame]) is not None)
        return asked[frames]

    score_and_decide(route, planned, len(decision.frame_scores), look_up)
    return asked


def decide_by(route: Route, planned: PlannedBlock, scores: Mapping[Frames, Scores]) -> Decision | None:
    """Return the decision by scores that are known; None if it asks for frames that were not scored together.

    The store has them by these frames, as a scorer may round those of another batch differently.
    """
    try:
        return score_and_decide(route, planned, max(max(frames) for frames in scores) + 1, scores.__getitem__)
    except LookupError:
        return None


def forecast_film(film: Sequence[Asked], made: Trace, memory: EarlierRuns) -> Forecast:
    """Forecast a film, and compare it with one that was `made`."""
    answers = "".join(course.answer for courses in walk_film(film, memory) for course in courses)
    shown = list(chain.from_iterable(memory.courses.get(made.run, [])))
    # Other noise or another model, which are the whole video's, make no picture one of something else.
    rest = made.asked[0].signature["rest"]
    alike = [replace(asked, signature={**asked.signature, "rest": rest}) for asked in film]
    old: list[int] = []
    for asked, courses in zip(alike, walk_film(alike, memory.as_if_kept()), strict=True):
        of_shot = shown[asked.start : asked.start + asked.blocks]
        checked = list(zip(of_shot, courses, strict=False))[max(asked.first - 2, 0) :]
        differ = [name not in course.names for name, course in checked]
        if True in differ:
            # Locked blocks are of one film: if the last of them are others, so may all be.
            first = differ.index(True) + max(asked.first - 1, 1)
            old += range(asked.start + (1 if first < asked.first else first), asked.start + len(of_shot) + 1)
    return Forecast(answers=answers, old=tuple(old))


def seconds_of(
    forecast: Forecast,
    film: Sequence[Asked],
    made: Sequence[Asked],
    events: Sequence[Mapping[str, Any]],
    loading: float | None,
    decoding: Sequence[int],
) -> float | None:
    """Return about how many seconds a film takes, by the blocks of the film `made`; None: not known.

    `loading`: seconds to load its models; None if its results are gone. `decoding`: see `answers.forecast`.
    """
    fresh = [event for event in events if not event["reused"]]
    if loading is None or MAY_CHANGE in forecast.answers or film[0].signature["rest"] != made[0].signature["rest"]:
        return None
    new = [number for number, answer in enumerate(forecast.answers, 1) if answer != STAYS]
    unchanged = len(forecast.answers) - len(new)
    decodes = unchanged
    if len(film) > 1:
        decodes = min([*decoding[-1:], unchanged])
    elif film[0].given + unchanged < len(decoding):
        decodes = decoding[film[0].given + unchanged]
    parts = [loading, decodes * _mean(fresh, "decode", None) if decodes else 0.0]
    for number in new:
        asked = next(asked for asked in reversed(film) if asked.start < number)
        letter = asked.planned(number - asked.start).direction
        author = AUTHORS.get(letter) or (author_of(events[number - 1]) if number <= len(events) else None)
        parts.append(_mean(fresh, "seconds", author))
    return sum(parts) if all(map(math.isfinite, parts)) else None


AUTHORS = {"t": "target", "r": "target", "d": "drafter", "a": "drafter"}
"""The model whose block a direction asks for."""


def author_of(event: Mapping[str, Any]) -> str | None:
    """Return the model that made the block of an event; None for a block that is kept."""
    outcome = event["outcome"]
    if outcome == "given":
        return None
    return "drafter" if outcome in ("kept", "drafted_unseen") else "target"


def _mean(events: Iterable[Mapping[str, Any]], name: str, author: str | None) -> float:
    values = [event[name] for event in events if author in (None, author_of(event))]
    return sum(values) / len(values) if values else math.nan
