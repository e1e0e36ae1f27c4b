"""What one video should be, as its user says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..engine.control import check_control_strength
from ..engine.drift import check_hold
from ..engine.noise import check_seed
from ..engine.plan import check_directions, read_takes
from ..engine.restyle import USUAL, read_strengths
from ..engine.router import RouterConfig
from ..engine.types import DrafterContext, check_blocks
from ..errors import BadInput
from ..files.video import check_rate
from ..memory.budget import check_budget
from ..settings import check_fields
from ..text.prompts import PromptSchedule

# The paper's size in pixels and its length.
WIDTH = 832
HEIGHT = 480
BLOCKS = 9
NO_MODEL = "there is no drafter and no target; give at least one"
TWO_STARTS = "the video has two starts; give a clip, an image or a clip to restyle"
MOST_EDGE = 256
NEEDS = {"control_mask": "control", "control_strength": "control", "control_edge": "control_mask"}
"""Fields that have no effect without another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """What one video should be.

    `width`, `height`: in pixels; None takes those of the clip to continue, or 832 x 480. `budget`: a share of
    target-only's cost for the router to spend, or None. `directions`, `takes`: what the user decides block by
    block, as in `engine.plan`. `continue_from`: a clip to continue, as latents, a video or a folder of pictures;
    `start_image`: a picture to use as the first frame; `restyle`: a video or a folder of pictures that the blocks
    are made from, as strongly as `strength` says: `medium`, or `medium,7:0.6` for another one from block 7 on.
    `colour_hold`: from 0 (none) to 1; see `ColourHold`.
    `control`: such a clip that the blocks obey, as strongly as `control_strength` says; `control_mask`: white where
    they are made, black where the control's own pixels are kept, which fade out over `control_edge` pixels.
    """

    blocks: int = BLOCKS
    seed: int = 42
    width: int | None = None
    height: int | None = None
    fps: float = 16.0
    drafter_context: DrafterContext = "committed"
    router: RouterConfig = field(default_factory=RouterConfig)
    budget: float | None = None
    directions: str = ""
    takes: str = ""
    continue_from: Path | None = None
    start_image: Path | None = None
    restyle: Path | None = None
    strength: str = USUAL
    colour_hold: float = 0.0
    control: Path | None = None
    control_mask: Path | None = None
    control_strength: float = 1.0
    control_edge: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_blocks(self.blocks)
        check_seed(self.seed)
        check_rate(self.fps)
        if self.budget is not None:
            check_budget(self.budget)
            if self.router.part is not None:
                raise BadInput("a budget chooses the route, and so does a router of your own; give one of them")
        check_directions(self.directions, self.blocks)
        read_takes(self.takes, self.blocks)
        read_strengths(self.strength, self.blocks)
        check_hold(self.colour_hold)
        check_control_strength(self.control_strength)
        if not 0 <= self.control_edge <= MOST_EDGE:
            raise BadInput(f"the edge of a kept region is {self.control_edge}; give 0 to {MOST_EDGE} pixels")
        for name, size in (("width", self.width), ("height", self.height)):
            if size is not None and size < 1:
                raise BadInput(f"{name} {size} is too small; use 16 or more")
        for name, needed in NEEDS.items():
            usual = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != usual and not getattr(self, needed):
                words = name.replace("_", " "), needed.replace("_", " ")
                raise BadInput(f"{words[0]} has no effect without {words[1]}; add it, or leave {words[0]} out")
        if sum(map(bool, (self.continue_from, self.start_image, self.restyle))) > 1:
            raise BadInput(TWO_STARTS)


def strength_of(usual: str, strengths: Sequence[tuple[int, str]], *, restyles: bool) -> str:
    """Return the `usual` strength and those that prompt lines state, as in `medium,7:0.6`."""
    if strengths and not restyles:
        start = strengths[0][0] + 1
        raise BadInput(f"the prompt has a strength from block {start} on, but no clip is restyled; add a clip")
    return ",".join((usual, *(f"{start + 1}:{strength}" for start, strength in strengths)))


def with_strengths(request: VideoRequest, prompt: PromptSchedule) -> VideoRequest:
    """Return the request with the strengths that the lines of its prompt state."""
    strength = strength_of(request.strength, prompt.strengths, restyles=bool(request.restyle))
    return replace(request, strength=strength)


def blocks_in(frames: int) -> int:
    """Return how many blocks of three latent frames come closest to a clip of `frames` pixel frames."""
    return max(1, round((frames + 3) / 12))
