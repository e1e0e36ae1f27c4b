"""The pack's own socket types, and the values that travel over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from comfy_api.latest import io

from ..sdvg_core.engine.outside import OutsidePart
from ..sdvg_core.engine.router import RouterConfig
from ..sdvg_core.errors import BadInput
from ..sdvg_core.pipeline.learned import GainModel
from .host.scorer import HostScorer

Router = io.Custom("SDVG_ROUTER")
Report = io.Custom("SDVG_REPORT")
Prompts = io.Custom("SDVG_PROMPTS")
RewardModel = io.Custom("SDVG_SCORER")
Start = io.Custom("SDVG_START")

PICTURE, RESTYLE = "first frame", "restyle"

CATEGORY = "SDVG"


@dataclass(frozen=True, slots=True, eq=False)
class RouterValue:
    """The output of the Quality Router: its settings, and the scorer if they need one.

    `scorer`: a `HostScorer` or another pack's, or None for policies that use no scores. `budget`: a share of
    target-only's cost, for which the sampler chooses the numbers of the policy `first`; None if they are given.
    `chosen`: the policy's name on the node. `learned`: a route by which the sampler chooses them for the prompt.
    """

    config: RouterConfig
    scorer: Any
    budget: float | None = None
    chosen: str = ""
    learned: GainModel | None = None

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        """Have a refusal name the preset that is chosen, and its own widget, in place of what they stand for."""
        try:
            yield
        except BadInput as error:
            text = str(error)
            if self.config.policy == "first":
                text = text.replace("the policy first", f"the policy {self.chosen}")
                text = text.replace("set handover to 0", "set handover_steps to 0")
            raise BadInput(text) from None


def router_of(value: Any) -> RouterValue:
    """Return what came over a wire as a value. Another pack's router has its `scorer`, if it needs one, as an attribute."""
    if isinstance(value, RouterValue):
        return value
    config = RouterConfig(part=value)
    found = getattr(value, "scorer", None) if config.needs_scorer else None
    return RouterValue(config, scorer_of(found), chosen=type(value).__name__)


def scorer_of(value: Any) -> Any:
    """Return what came over a wire as a scorer; one of another pack's is checked as it is used."""
    return value if value is None or isinstance(value, HostScorer) else OutsidePart("scorer", value)


@dataclass(frozen=True, slots=True, eq=False)
class PromptEntry:
    """One entry of a prompt schedule: the block it starts at, its conditioning and its text.

    `index`: counts from 0, as the engine does; people count from 1. `cut`: whether it begins a new scene.
    """

    index: int
    conditioning: Any
    text: str
    cut: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class StartValue:
    """The output of SDVG Start: `images` `f h w c` in [0, 1], 16 a second, and `how` they are used.

    `strength`: of a clip that is restyled. `taken`: how many of them a second there were.
    """

    images: Any
    how: str
    strength: str
    taken: str
