"""How a video starts: from nothing, latents, a picture, a clip to extend or to restyle, or locked blocks.

One value of a sum type, not a group of optional fields, so that two starts cannot be given. Each kind knows the
latent frames before the first new block, and encodes them when a VAE is loaded. No model was trained to continue
fewer frames than a block, so a picture, or the first frame of a shorter clip, is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..engine.inputs import InputClip, StartClip
from ..engine.plan import Lead, RunPlan
from ..engine.protocols import VideoCodec
from ..engine.types import check_clip, hash_tensor
from ..errors import BadInput
from ..files.footage import Footage
from ..settings.request import USUAL_STRENGTH, Strength, read_strengths
from .control import padding_note

LEAST_FRAMES = 9
"""Pixel frames of the shortest clip that fills a block."""
HELD = "is held: it is shorter than a block."


class Start:
    """A start from nothing; the other kinds override its methods. `footage`: the clip in pixels, if any."""

    __slots__ = ()
    footage: Footage | None = None

    @property
    def locked_blocks(self) -> int:
        """Return the number of blocks that an earlier run made, which are locked."""
        return 0

    @property
    def clip_hash(self) -> str:
        """Return a hash of the clip to continue, as it was given; empty if there is none."""
        return ""

    def size(self, stride: int) -> tuple[int, int] | None:
        """Return width and height in pixels, or None if any size will do."""
        return None

    def check(self, channels: int, width: int, height: int, stride: int) -> None:
        """Raise `BadInput` for latents of another size. `width`, `height`: pixels of the video."""

    def lead(self, block_frames: int, stride: int) -> Lead:
        """Return the latent frames before the first new block. `block_frames`: of the largest block."""
        return Lead()

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        """Return names of the inputs that need an encoder, for an error message."""
        return ()

    def strengths(self, blocks: int) -> tuple[Strength, ...]:
        """Return the strength of restyling of each block, or nothing."""
        return ()

    def padding(self, plan: RunPlan, stride: int) -> int:
        """Return the pixel frames that the models see before the video's first one."""
        return 0

    def clip_frames(self, plan: RunPlan) -> int:
        """Return the number of latent frames of the clip to continue, or of a start image."""
        return plan.lead.frames

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        """Return notes on how the start is used. Raises `BadInput` for a clip too short to restyle."""
        return ()

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip | None, InputClip | None]:
        """Return the clip before the first new block, and the clip to restyle; None where there is none."""
        return None, None

    def in_pixels(self, codec: VideoCodec) -> Tensor | None:
        """Return the clip to continue as pixels `1 f c h w`, or None if there is none."""
        return None


NOTHING = Start()
ReadStart = Callable[[int, int], Start]
"""Function that reads a start for a width and a height in pixels."""


@dataclass(frozen=True, slots=True, eq=False)
class LatentStart(Start):
    """Latents `b c t h w` to continue; a single frame is a picture. `begun`: the lead they were made with."""

    clip: Tensor
    begun: Lead

    @property
    def clip_hash(self) -> str:
        return hash_tensor(self.clip)

    def size(self, stride: int) -> tuple[int, int]:
        return self.clip.shape[4] * stride, self.clip.shape[3] * stride

    def check(self, channels: int, width: int, height: int, stride: int) -> None:
        what = "the clip to continue"
        if self.clip.dim() == 5 and self.size(stride) != (width, height):
            sizes = "{} x {} pixels and the video {} x {}".format(*self.size(stride), width, height)
            raise BadInput(f"{what} has {sizes}; give the video the size of the clip")
        check_clip(self.clip, (channels, height // stride, width // stride), what, "use one that this VAE made")

    def lead(self, block_frames: int, stride: int) -> Lead:
        frames = self.clip.shape[2]
        held = 1 < frames < block_frames and not self.begun.start_image_frames
        return replace(self.begun, frames=block_frames if held else frames, picture=frames == 1)

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ("a clip shorter than a block",) if lead.frames > self.clip.shape[2] else ()

    def padding(self, plan: RunPlan, stride: int) -> int:
        return stride * max(plan.lead.start_image_frames - 1, self._held(plan), 0)

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        return (f"The clip's first frame {HELD}",) if self._held(plan) else ()

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip, None]:
        if self.clip.shape[2] == plan.spans[0].start:
            return StartClip(self.clip), None
        return _encode(self.in_pixels(codec), codec, plan), None

    def in_pixels(self, codec: VideoCodec) -> Tensor:
        return codec.decode(self.clip)[0]

    def _held(self, plan: RunPlan) -> int:
        """Return the number of latent frames for which the first one is held."""
        return 0 if plan.lead.start_image_frames else plan.lead.frames - self.clip.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class PictureStart(Start):
    """A first frame, `1 1 c h w` in [0, 1]. `remarks`: notes from reading it."""

    pixels: Tensor
    remarks: tuple[str, ...] = ()

    def lead(self, block_frames: int, stride: int) -> Lead:
        return Lead(picture=True)

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ("the start image",)

    def padding(self, plan: RunPlan, stride: int) -> int:
        return stride * (plan.lead.start_image_frames - 1)

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        return self.remarks

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip, None]:
        return _encode(self.pixels, codec, plan), None


@dataclass(frozen=True, slots=True, eq=False)
class FrameStart(Start):
    """The last frame of another shot, which is not shown again. It is there once that shot is made."""

    def lead(self, block_frames: int, stride: int) -> Lead:
        return Lead(picture=True)

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ("the last frame of a shot",)

    def padding(self, plan: RunPlan, stride: int) -> int:
        return pixel_count(plan.lead.start_image_frames, stride)

    def clip_frames(self, plan: RunPlan) -> int:
        return 0

    def clip(self, frame: Tensor, codec: VideoCodec, plan: RunPlan) -> StartClip:
        """Return the clip before the first new block. `frame`: `1 1 c h w` in [0, 1]."""
        return _encode(frame, codec, plan)


@dataclass(frozen=True, slots=True, eq=False)
class ExtendedStart(Start):
    """A clip of pixels to continue."""

    footage: Footage

    @property
    def clip_hash(self) -> str:
        return hash_tensor(self.footage.pixels)

    def lead(self, block_frames: int, stride: int) -> Lead:
        frames = 1 + -(-(max(self.footage.frames, LEAST_FRAMES) - 1) // stride)
        return Lead(frames=frames, from_pixels=frames)

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ("the clip to continue",)

    def padding(self, plan: RunPlan, stride: int) -> int:
        return pixel_count(plan.lead.frames, stride) - self.footage.frames

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        short = self.footage.frames < LEAST_FRAMES
        return (f"{self.footage.note} Its first frame {HELD}" if short else self.footage.note,)

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip, None]:
        return _encode(self.in_pixels(codec), codec, plan), None

    def in_pixels(self, codec: VideoCodec) -> Tensor:
        return self.footage.fill(self.footage.frames)


@dataclass(frozen=True, slots=True, eq=False)
class RestyledStart(Start):
    """A clip of pixels to restyle. `strength`: see `VideoRequest`."""

    footage: Footage
    strength: str = USUAL_STRENGTH

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ("the clip to restyle",)

    def strengths(self, blocks: int) -> tuple[Strength, ...]:
        return read_strengths(self.strength, blocks)

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        frames = pixel_count(plan.spans[-1].stop, stride)
        block = stride * plan.spans[-1].frames
        return (self.footage.note + padding_note(self.footage.frames, frames, block, "clip to restyle"),)

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[None, InputClip]:
        latents = codec.encode(self.footage.fill(pixel_count(plan.spans[-1].stop, codec.temporal_stride)))
        return None, InputClip(latents, plan.spans[0].start, plan.strengths)


@dataclass(frozen=True, slots=True, eq=False)
class LockedStart(LatentStart):
    """Latents of locked blocks, and of what came before them. `given_frames`: number of latent frames before them.

    `blocks`: number of locked ones. `shown_hash`: of the clip whose pixels the video shows for the given frames;
    empty if it shows the decoded latents. `start`: what is wired in. Raises `BadInput` if it is another clip.
    """

    given_frames: int
    blocks: int
    shown_hash: str = ""
    start: Start = NOTHING

    def __post_init__(self) -> None:
        if self.shown_hash and self.start.clip_hash != self.shown_hash:
            raise BadInput("the locked blocks begin with another clip; wire that clip in again, or unlock them")

    @property
    def locked_blocks(self) -> int:
        return self.blocks

    @property
    def clip_hash(self) -> str:
        return self.shown_hash

    def lead(self, block_frames: int, stride: int) -> Lead:
        return replace(self.begun, frames=self.clip.shape[2])

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ()

    def padding(self, plan: RunPlan, stride: int) -> int:
        if self.shown_hash:
            return self.start.padding(self._first_plan(plan), stride)
        return stride * max(plan.lead.start_image_frames - 1, 0)

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        return self.start.notes(self._first_plan(plan), stride) if self.shown_hash else ()

    def clip_frames(self, plan: RunPlan) -> int:
        return self.given_frames

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip, None]:
        pixels = self.start.in_pixels(codec) if self.shown_hash else None
        return StartClip(self.clip, pixels, self.given_frames), None

    def _first_plan(self, plan: RunPlan) -> RunPlan:
        """Return the plan with the lead of the run that made the locked blocks."""
        return replace(plan, lead=replace(plan.lead, frames=self.given_frames))


@dataclass(frozen=True, slots=True, eq=False)
class LockedBlocks:
    """The first blocks of a shot, which an earlier run made. `latents`, `lead`: with what came before them.

    `given_frames`: number of latent frames before the blocks. `shown_hash`: see `LockedStart`.
    """

    blocks: int
    latents: Tensor
    lead: Lead
    given_frames: int
    shown_hash: str = ""

    def start(self, before: Start) -> LockedStart:
        """Return the start of the blocks after them. `before`: the start of the shot."""
        return LockedStart(self.latents, self.lead, self.given_frames, self.blocks, self.shown_hash, before)


def _encode(pixels: Tensor, codec: VideoCodec, plan: RunPlan) -> StartClip:
    """Encode pixels with the first frame held to the lead's length; keep the pixels unless it is a start image."""
    held = pixel_count(plan.lead.frames, codec.temporal_stride) - pixels.shape[1]
    latents = codec.encode(torch.cat([pixels[:, :1].expand(-1, held, -1, -1, -1), pixels], dim=1))
    return StartClip(latents, None if plan.lead.start_image_frames else pixels, plan.lead.frames)


def pixel_count(latent_frames: int, stride: int) -> int:
    """Return the number of pixel frames of `latent_frames`."""
    return 1 + stride * (latent_frames - 1) if latent_frames else 0
