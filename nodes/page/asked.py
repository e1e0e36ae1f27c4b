"""What a run of the sampler is asked for: by its plan, or, before it is queued, by its API prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ...sdvg_core.engine.plan import most_handover
from ...sdvg_core.engine.routing import PlannedBlock, context_of_drafts
from ...sdvg_core.engine.types import Span
from ...sdvg_core.errors import BadInput
from ...sdvg_core.loading.headers import Headers
from ...sdvg_core.memory.budget import BudgetedRun, route_for_budget
from ...sdvg_core.settings.decision import Decision
from ...sdvg_core.settings.request import (
    FIRST_KEY,
    ROUTE_DECIDES,
    DrafterContext,
    Shot,
    Strength,
    check_directions,
    read_shots,
    read_takes,
)
from ...sdvg_core.settings.route import Budget, Custom, Route, lower_handover
from ...sdvg_core.videos.film import ResolvedFilm
from ...sdvg_core.videos.resolve import budgeted_run
from .locks import read_locks
from .route_inputs import OLDER_INPUTS, route_of_prompt
from .signature import ANY_BLOCK, UNREADABLE, router_inputs, signature

MOST_FORECAST = 4096
NOWHERE = Span(0, 0, 1)
USUAL_BLOCK = 3
"""Latent frames of most models' blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the run of one shot is asked for. Its blocks count from 1.

    `key`, `origin`: see `Shot`. `start`: number of the film's blocks before it; `place`: of its shots. `signature`: of
    its sampler. `known`: whether `route` is what decides; a router of another pack decides as it
    did. `lock`: digest of the blocks before `first`, or empty. `before`: number of blocks before block 1, as prompts
    count them: those of the film, and of a clip that it continues; a start image is none. `route_start`: number of those before the route begins. `given`:
    number of blocks that are decoded before block 1, a start image's too. `strengths`: of restyling, from block
    `first` on. `block_frames`, `stride`: latent frames of a block, and pixel frames of each of these but a shot's first.
    `drafter_context`: as the sampler has it. `budgeted`: what a budget would be spent on; None
    without two models.
    """

    signature: Mapping[str, Any]
    route: Route
    known: bool
    blocks: int
    directions: str
    takes: Mapping[int, int]
    strengths: tuple[Strength, ...] = ()
    block_frames: int = USUAL_BLOCK
    stride: int = 4
    route_start: int = 0
    lock: str = ""
    first: int = 1
    before: int = 0
    given: int = 0
    target_steps: int = 0
    most_handover: int = 0
    drafter_context: DrafterContext = "committed"
    budgeted: BudgetedRun | None = None
    key: str = FIRST_KEY
    origin: str = ""
    start: int = 0
    place: int = 0

    @property
    def restyles(self) -> bool:
        """True if the run restyles a clip."""
        return any(strength != Strength() for strength in self.strengths)

    @property
    def own_drafts(self) -> bool:
        """True if drafts continue each other."""
        return context_of_drafts(self.route, self.drafter_context) == "own"

    @property
    def router(self) -> tuple[Any, ...]:
        """The name of the router's node and its settings."""
        return self.signature["router"], self.signature["tau"]

    def planned(self, number: int) -> PlannedBlock:
        """Return a block as the route sees it, without its place in the latents."""
        strengths = dict(enumerate(self.strengths, self.first))
        return PlannedBlock(
            span=NOWHERE,
            place=self.before + number - 1 - self.route_start,
            direction=self.directions[number - 1 : number] or ROUTE_DECIDES,
            strength=strengths.get(number, (Strength(), *self.strengths)[-1]),
        )

    def shown(self, number: int) -> tuple[Any, ...]:
        """Return what the prompts up to a block are. They count from the shot's first one, wherever it stands."""
        first = self.before + 1 if self.start else 1
        lines = [(at, words) for at, words in self.signature["prompts"] if at <= self.before + number]
        in_force = max((at for at, _ in lines if at <= first), default=0)
        entries = [(max(at - first, 0), words) for at, words in lines if at in (ANY_BLOCK, in_force) or at > first]
        return self.signature["positive"], *entries, *self._stretch

    @property
    def _stretch(self) -> tuple[Any, ...]:
        """Of a clip to restyle, the pixel frame with which the shot begins, and the strength in force there."""
        if not self.restyles:
            return ()
        strengths = [strength for at, strength in self.signature["strengths"] if at <= self.before + 1]
        first = self.stride * self.block_frames * self.start - (self.stride - 1) * self.place
        return first, *strengths[-1:]

    @property
    def begins_with(self) -> Any:
        """What the shot begins with, but for another one's last frame: the first has the film's start."""
        return self.signature["start"] if self.place == 0 else ""


@dataclass(slots=True, eq=False)
class Trace:
    """What a run of the sampler left: its decisions, by block, and whether the store has its results.

    `asked`: for each shot. `keys`: of the store; None if some did not fit. `models`: weak references. `digests`: of
    the beginning of a shot up to each block.
    """

    run: str
    asked: tuple[Asked, ...]
    decisions: dict[int, Decision] = field(default_factory=dict)
    keys: tuple[str, ...] | None = ()
    models: tuple[Any, ...] = ()
    digests: list[str] = field(default_factory=list)


def asked_of_film(
    signature: Mapping[str, Any], film: ResolvedFilm, begin: Mapping[str, Any], headers: Headers
) -> tuple[Asked, ...]:
    """Return what a film was asked for, by shot. `begin`: the fields of its first event. `headers`: of its models."""
    locks = read_locks(str(begin["kept"]))
    takes = read_takes(begin["takes"], begin["of"])
    has_pair = len(headers.models) == 2
    block_frames = next((span.frames for run in film.runs for span in run.plan.spans), USUAL_BLOCK)
    shots = []
    start = 0
    for place, run in enumerate(film.runs):
        plan = run.plan
        locked = run.start.locked_blocks
        shot = read_shots(film.request.shots)[place]
        _, lock = _lock_of(locks, shot.key, place)
        before = begin["before"] + start
        asked = Asked(
            signature=signature,
            route=plan.route,
            known=not isinstance(plan.route.policy, Custom),
            blocks=run.block_count,
            directions=begin["directions"][start : start + run.block_count],
            strengths=plan.strengths,
            block_frames=block_frames,
            stride=headers.vae.temporal_stride,
            route_start=before if place or not plan.blocks else plan.spans[0].index - plan.blocks[0].place,
            takes=_takes_of(takes, start, run.block_count),
            lock=lock,
            first=locked + 1,
            before=before,
            given=len(plan.clip) - locked,
            target_steps=len(headers.shape("target").timesteps),
            most_handover=most_handover(headers.shape("drafter"), headers.shape("target")),
            drafter_context=film.request.drafter_context,
            budgeted=budgeted_run(run.request.blocks, headers, plan.lead) if has_pair else None,
            key=shot.key,
            origin=shot.origin,
            start=start,
            place=place,
        )
        shots.append(asked)
        start += run.block_count
    return tuple(shots)


def _lock_of(locks: Mapping[str, tuple[int, str]], key: str, place: int) -> tuple[int, str]:
    """Return number and digest of a shot's locked blocks. The first shot's lock may name none."""
    lock = locks.get(key, (0, ""))
    return lock if place or lock[0] else locks.get("", lock)


def _takes_of(takes: Mapping[int, int], start: int, blocks: int) -> dict[int, int]:
    """Return the takes of a shot's blocks, from 1. `takes`: of the film's, from 0."""
    return {at + 1 - start: take for at, take in takes.items() if start <= at < start + blocks}


def asked_next(
    prompt: Mapping[str, Any], node_id: str, made: Sequence[Asked], begin: Mapping[str, Any]
) -> tuple[Asked, ...] | None:
    """Return what a sampler of an API prompt asks for after the film `made`; None if the prompt does not tell.

    A value that comes over a wire counts as that of the run if the wire is the same. `begin`: as above.
    """
    sampler = signature(prompt, node_id)
    if sampler is None or sampler["wired"] != made[0].signature["wired"]:
        return None
    inputs = prompt[node_id]["inputs"]
    of_run = {"blocks": begin["of"], "directions": begin["directions"], "takes": begin["takes"]}
    of_run["kept_blocks"] = begin["kept"]
    values = {
        name: value if isinstance(inputs.get(name), list) else inputs.get(name, "")
        for name, value in of_run.items()
    }
    try:
        blocks = int(values["blocks"])
        if not 1 <= blocks <= MOST_FORECAST:
            return None
        directions = "".join(str(values["directions"]).split()).lower()
        check_directions(directions, blocks)
        takes = read_takes(str(values["takes"]), blocks)
        locks = read_locks(str(values["kept_blocks"]))
        given = begin["before"]
        shots = [shot for shot in read_shots(sampler["shots"]) if shot.start < given + blocks]
        starts = [0, *(shot.start - given for shot in shots[1:]), blocks]
        if min(stop - start for start, stop in pairwise(starts)) < 1:
            return None
        of_shots = []
        for place, (shot, (start, stop)) in enumerate(zip(shots, pairwise(starts), strict=True)):
            earlier = next((asked for asked in made[1:] if place and asked.key == shot.key), made[0])
            like = _as_later(earlier, given + start, shot) if place else earlier
            kept, lock = _lock_of(locks, shot.key, place)
            budgeted = _next_budgeted(like, stop - start, kept + 1)
            route, known = _next_route(prompt, inputs.get("router"), sampler, earlier, budgeted)
            asked = replace(
                like,
                signature=sampler,
                route=route,
                known=known,
                blocks=stop - start,
                directions=directions[start:stop],
                takes=_takes_of(takes, start, stop - start),
                lock=lock,
                first=kept + 1,
                budgeted=budgeted,
                key=shot.key,
                origin=shot.origin,
                start=start,
                place=place,
            )
            of_shots.append(asked)
    except UNREADABLE:
        return None
    return tuple(of_shots)


def _as_later(asked: Asked, before: int, shot: Shot) -> Asked:
    """Return what a shot after the first one is asked for, like another; no clip comes before it."""
    budgeted = asked.budgeted and replace(asked.budgeted, given_blocks=0, route_blocks=0)
    given = 1 if shot.origin else 0
    return replace(asked, first=1, before=before, route_start=before, given=given, budgeted=budgeted)


def _next_budgeted(made: Asked, blocks: int, first: int) -> BudgetedRun | None:
    """Return what a budget is spent on in a video of `blocks` blocks, of which those before `first` are locked."""
    if made.budgeted is None:
        return None
    locked = first - made.first
    return replace(
        made.budgeted,
        blocks=max(1, blocks + 1 - first),
        given_blocks=made.budgeted.given_blocks + locked,
        route_blocks=made.budgeted.route_blocks + locked,
    )


def _next_route(
    prompt: Mapping[str, Any], wire: Any, sampler: Mapping[str, Any], made: Asked, budgeted: BudgetedRun | None
) -> tuple[Route, bool]:
    """Return the route of the router at the end of a wire, and whether it is known.

    `budgeted`: what a budget is spent on: another length or another lock is another route.
    """
    inputs = router_inputs(prompt, wire)
    is_other = inputs.get("policy") == "budget" and budgeted != made.budgeted
    if (sampler["router"], sampler["tau"]) == made.router and not is_other:
        return made.route, made.known
    decides = [value for name, value in inputs.items() if name in OLDER_INPUTS or name.startswith("policy")]
    if is_other and any(isinstance(value, list) for value in decides):
        raise BadInput("the budget comes over a wire")
    if not inputs or any(isinstance(value, list) for value in decides):
        return made.route, False
    route = route_of_prompt(inputs)
    if not isinstance(route, Budget):
        return lower_handover(route, made.most_handover), True
    return (route_for_budget(route, budgeted)[0], True) if budgeted else (made.route, False)
