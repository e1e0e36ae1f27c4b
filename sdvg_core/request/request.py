"""The request for one video: a dataclass that command line, nodes, reports and Python share.

Importing it does not import torch, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..engine.inputs import MOST_CONTROL_STRENGTH, MOST_SEED, STRENGTHS, USUAL_STRENGTH, read_strengths
from ..engine.router import RouterConfig
from ..engine.types import MOST_BLOCKS, DrafterContext
from ..errors import BadInput
from ..settings import check_fields, setting, settings_of

if TYPE_CHECKING:
    from ..text.prompts import PromptSchedule

# The paper's size in pixels and its length.
WIDTH = 832
HEIGHT = 480
BLOCKS = 9
STEP = 16
"""Pixels; sides are multiples of it: the VAE's stride times the models' patch."""
NO_MODEL = "there is no drafter and no target; give at least one"
TWO_STARTS = "the video has two starts; give a clip, an image or a clip to restyle"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """The request for one video; the help of each field describes it.

    `width`, `height`: pixels; None for those of the clip to continue, or 832 x 480. `directions`, `takes`: see
    `engine.plan`. `strength`: `medium`, or `medium,7:0.6` to change it from block 7 on. `colour_hold`: see
    `ColourHold`. Raises `BadInput` for invalid values, and for values that exclude each other.
    """

    blocks: int = setting(
        BLOCKS,
        least=1,
        most=MOST_BLOCKS,
        help="blocks of latent frames to make",
        widget={"max": 4096},
    )
    seed: int = setting(42, least=0, most=MOST_SEED, help="of all noise", widget={})
    width: int | None = setting(None, least=STEP, widget={"default": WIDTH, "max": 4096, "step": STEP})
    height: int | None = setting(None, least=STEP, widget={"default": HEIGHT, "max": 4096, "step": STEP})
    fps: float = setting(16.0, least=0.001, most=1000, help="pixel frames a second of the mp4", reported=False)
    drafter_context: DrafterContext = setting(
        "committed",
        help="the blocks the drafter continues: those of the video or its own drafts",
        part="drafter",
        widget={"advanced": True},
    )
    router: RouterConfig = setting(factory=RouterConfig, reported=False)
    budget: float | None = setting(
        None,
        least=0.01,
        most=1,
        help="instead: spend this share of what the target alone would cost, such as 0.5, on the first blocks",
        metavar="SHARE",
        reported=False,
    )
    directions: str = setting(
        "",
        help="one letter per block: . the route decides, t the target makes it, d the draft is kept; a and r "
        "score the draft first, then keep or reject it",
        metavar="LETTERS",
        widget={"optional": True},
        reported=False,
    )
    takes: str = setting(
        "",
        help="other noise for single blocks, such as 6:2,8:3 (block 6 take 2, block 8 take 3); later ones follow "
        "from it",
        widget={"optional": True},
    )
    continue_from: Path | None = setting(
        None,
        help="go on from a clip: latents.safetensors, a video, or a folder of pictures (16 a second)",
        metavar="CLIP",
    )
    start_image: Path | None = setting(None, help="the video's first frame", metavar="PICTURE")
    restyle: Path | None = setting(
        None, help="remake a video or a folder of pictures by the prompt, with its blocks", metavar="CLIP"
    )
    strength: str = setting(
        USUAL_STRENGTH, help=f"of --restyle: {', '.join(STRENGTHS)}, or a number up to 1", needs="restyle"
    )
    colour_hold: float = setting(
        0.0,
        least=0,
        most=1,
        help="pull each block's colours back to those its scene began with, for long clips: 0 to 1",
        widget={"step": 0.05, "advanced": True, "optional": True},
    )
    control: Path | None = setting(
        None,
        help="what every block obeys, for models with VACE modules: depth, scribbles, flow, grey or, with a mask, "
        "what it keeps: a video or a folder of pictures, from the video's first frame on, with its blocks",
        metavar="CLIP",
    )
    control_mask: Literal["alpha"] | Path | None = setting(
        None,
        help="white is made, black is kept from --control; a clip or one picture; alpha: of the control, whose "
        "opaque parts are kept, or of the clip to restyle, whose opaque parts are made",
        metavar="CLIP",
        needs="control",
    )
    control_strength: float = setting(
        1.0, least=0, most=MOST_CONTROL_STRENGTH, help="0 to 1, or a little above", needs="control"
    )
    control_edge: int = setting(
        0, least=0, most=256, help="over which kept regions fade out", metavar="PIXELS", needs="control_mask"
    )

    def __post_init__(self) -> None:
        from ..engine.plan import check_directions, read_takes

        check_fields(self)
        if self.budget is not None and self.router.part is not None:
            raise BadInput("a budget chooses the route, and so does a router of your own; give one of them")
        check_directions(self.directions, self.blocks)
        read_takes(self.takes, self.blocks)
        read_strengths(self.strength, self.blocks)
        if sum(map(bool, (self.continue_from, self.start_image, self.restyle))) > 1:
            raise BadInput(TWO_STARTS)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for the report, files by name; without those whose `needs` is not given."""
        known = {name: known for name, known in settings_of(VideoRequest).items() if known.reported}
        values = {
            name: getattr(self, name)
            for name, known in known.items()
            if known.needs is None or getattr(self, known.needs)
        }
        return {name: value.name if isinstance(value, Path) else value for name, value in values.items()}


def strength_of(usual: str, strengths: Sequence[tuple[int, str]], *, restyles: bool) -> str:
    """Return the `usual` strength and those of prompt lines as text, such as `medium,7:0.6`.

    `strengths`: pairs of block, from 0, and strength. Raises `BadInput` for these if no clip is restyled.
    """
    if strengths and not restyles:
        start = strengths[0][0] + 1
        raise BadInput(f"the prompt has a strength from block {start} on, but no clip is restyled; add a clip")
    return ",".join((usual, *(f"{start + 1}:{strength}" for start, strength in strengths)))


def with_strengths(request: VideoRequest, prompt: PromptSchedule) -> VideoRequest:
    """Return the request with the strengths from the lines of its prompt."""
    if not prompt.strengths:
        return request
    strength = strength_of(request.strength, prompt.strengths, restyles=bool(request.restyle))
    return replace(request, strength=strength)


def blocks_in(frames: int) -> int:
    """Return the number of blocks, of three latent frames, closest to a clip of `frames` pixel frames."""
    return max(1, round((frames + 3) / 12))
