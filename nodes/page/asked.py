"""What a run of the sampler is asked for: by its plan, or, before it is queued, by its API prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...sdvg_core.engine.plan import RunPlan
from ...sdvg_core.engine.routing import PlannedBlock
from ...sdvg_core.engine.types import Span
from ...sdvg_core.errors import BadInput
from ...sdvg_core.memory.budget import BudgetedRun, route_for_budget
from ...sdvg_core.settings.decision import Decision
from ...sdvg_core.settings.request import ROUTE_DECIDES, Strength, check_directions, read_takes
from ...sdvg_core.settings.route import Budget, Custom, Route, lower_handover
from .route_inputs import OLDER_INPUTS, route_of_prompt
from .signature import UNREADABLE, router_inputs, signature

MOST_FORECAST = 4096
NOWHERE = Span(0, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is asked for. Blocks count from 1.

    `signature`: of its sampler. `known`: whether `route` is what decides; a router of another pack decides as it
    did. `lock`: digest of the blocks before `first`, or empty. `before`: number of a clip's blocks before block 1,
    as prompts count them; a start image is none. `route_start`: number of those before the route begins. `given`:
    number of blocks that are decoded before block 1, a start image's too. `strengths`: of restyling, from block
    `first` on. `own_drafts`: whether drafts continue each other. `budgeted`: what a budget would be spent on; None
    without two models.
    """

    signature: Mapping[str, Any]
    route: Route
    known: bool
    blocks: int
    directions: str
    takes: Mapping[int, int]
    strengths: tuple[Strength, ...] = ()
    route_start: int = 0
    lock: str = ""
    first: int = 1
    before: int = 0
    given: int = 0
    target_steps: int = 0
    most_handover: int = 0
    own_drafts: bool = False
    budgeted: BudgetedRun | None = None

    @property
    def restyles(self) -> bool:
        """True if the run restyles a clip."""
        return any(strength != Strength() for strength in self.strengths)

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
        """Return what the prompts up to a block are."""
        entries = (tuple(entry) for entry in self.signature["prompts"])
        return self.signature["positive"], *(entry for entry in entries if entry[0] <= self.before + number)


@dataclass(slots=True, eq=False)
class Trace:
    """What a run of the sampler left: its decisions, by block, and whether the store has its results.

    `keys`: of the store; None if some did not fit. `models`: weak references. `digests`: of its beginnings, from the
    first block on.
    """

    run: str
    asked: Asked
    decisions: dict[int, Decision] = field(default_factory=dict)
    keys: tuple[str, ...] | None = ()
    models: tuple[Any, ...] = ()
    digests: list[str] = field(default_factory=list)


def asked_of_run(
    signature: Mapping[str, Any],
    plan: RunPlan,
    begin: Mapping[str, Any],
    *,
    target_steps: int,
    most_handover: int,
    own_drafts: bool,
    budgeted: BudgetedRun | None,
) -> Asked:
    """Return what a planned run was asked for. `begin`: the fields of its first event."""
    kept, _, lock = str(begin["kept"]).strip().partition(":")
    return Asked(
        signature=signature,
        route=plan.route,
        known=not isinstance(plan.route.policy, Custom),
        blocks=begin["of"],
        directions=begin["directions"],
        strengths=plan.strengths,
        route_start=plan.spans[0].index - plan.blocks[0].place,
        takes={index + 1: take for index, take in read_takes(begin["takes"], begin["of"]).items()},
        lock=lock,
        first=int(kept or 0) + 1,
        before=begin["before"],
        given=len(plan.clip) - int(kept or 0),
        target_steps=target_steps,
        most_handover=most_handover,
        own_drafts=own_drafts,
        budgeted=budgeted,
    )


def asked_next(prompt: Mapping[str, Any], node_id: str, made: Asked, begin: Mapping[str, Any]) -> Asked | None:
    """Return what a sampler of an API prompt asks for after the run `made`; None if the prompt does not tell.

    A value that comes over a wire counts as that of the run if the wire is the same. `begin`: as above.
    """
    sampler = signature(prompt, node_id)
    if sampler is None or sampler["wired"] != made.signature["wired"]:
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
        kept, _, lock = str(values["kept_blocks"]).strip().partition(":")
        first = int(kept or 0) + 1
        budgeted = _next_budgeted(made, blocks, first)
        route, known = _next_route(prompt, inputs.get("router"), sampler, made, budgeted)
    except UNREADABLE:
        return None
    return Asked(
        signature=sampler,
        route=route,
        known=known,
        blocks=blocks,
        directions=directions,
        strengths=made.strengths,
        route_start=made.route_start,
        takes={index + 1: take for index, take in takes.items()},
        lock=lock,
        first=first,
        before=made.before,
        given=made.given,
        target_steps=made.target_steps,
        most_handover=made.most_handover,
        own_drafts=made.own_drafts,
        budgeted=budgeted,
    )


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
