"""Which parts a run may ask for. A part that no block can ask for need not be there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from ..errors import BadInput
from .protocols import BlockCall, BlockGenerator, WrappedGenerator
from .router import RouterConfig, foresee
from .types import Span

MISSING = {
    "drafter": "a drafter, but there is none; load one, or choose the policy always-target, which needs none",
    "target": "a target, but there is none; load one, or choose the policy always-draft, which needs none",
    "scorer": "scores, but there is no scorer; load a reward model, or choose a policy that needs none, such as "
    "anchor-only",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The parts a run may ask for, or those that are there."""

    drafter: bool
    target: bool
    scorer: bool


def roles_asked(router: RouterConfig, spans: Iterable[Span]) -> Roles:
    """Return the parts that the blocks at `spans` may ask for. Only what is certain beforehand rules a part out."""
    certain = [(span.index, foresee(router, span.index, ())) for span in spans]
    open_ = any(decision is None for _, decision in certain)
    kept = any(decision and decision.accepted for _, decision in certain)
    remade = [index for index, decision in certain if decision and not decision.accepted]
    return Roles(
        drafter=open_ or kept or any(router.handover_at(index) for index in remade),
        target=open_ or bool(remade),
        scorer=open_,
    )


def check_roles(router: RouterConfig, spans: Sequence[Span], there: Roles) -> Roles:
    """Return the parts that a run may ask for. Raises `BadInput` if one of them is not there."""
    asked = roles_asked(router, spans)
    if asked.drafter and not there.drafter and not roles_asked(replace(router, handover=0), spans).drafter:
        raise BadInput("a handover needs a drafter, but there is none; load one, or set handover to 0")
    by_policy = roles_asked(replace(router, directions=""), spans)
    for role, sentence in MISSING.items():
        if getattr(asked, role) and not getattr(there, role):
            who = f"the policy {router.policy} needs" if getattr(by_policy, role) else "the directions need"
            raise BadInput(f"{who} {sentence}")
    return asked


class Absent(WrappedGenerator):
    """Stands for a model that no block asks for, in the shape of the one that is there."""

    def __init__(self, name: str, other: BlockGenerator) -> None:
        super().__init__(other)
        self.name, self.anchor_horizon = name, 0

    def generate(self, call: BlockCall) -> NoReturn:
        """Raise `AssertionError`: `check_roles` lets no run ask for it."""
        raise AssertionError(f"block {call.span.index} asked for the {self.name}, which is not there")
