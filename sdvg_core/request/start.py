"""How a video starts: from nothing, from latents, from a picture, after a clip, or from a clip that it restyles.

A video has one start, so there is one value for it. Each kind says what precedes the first new block and makes it
once a VAE is there. No model was trained to go on from fewer frames than it makes: a picture is held for a block,
and so is the first frame of a clip that is shorter than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..engine.inputs import USUAL_STRENGTH, InputClip, StartClip, Strength, read_strengths
from ..engine.plan import Lead, RunPlan
from ..engine.protocols import VideoCodec
from ..engine.types import check_clip
from ..files.footage import Footage
from .control import padding_note

LEAST_FRAMES = 9
"""Pixel frames of a clip to extend that fill a block."""
HELD = "is held: it is shorter than a block."


class Start:
    """A video that starts from nothing; the other kinds override what differs.

    `footage`: the clip of pixels it starts from, if there is one.
    """

    __slots__ = ()
    footage: Footage | None = None

    def size(self, stride: int) -> tuple[int, int] | None:
        """Return width and height in pixels, if the start has them already."""
        return None

    def check(self, channels: int, rows: int, columns: int) -> None:
        """Raise `BadInput` for latents of another size."""

    def lead(self, block_frames: int, stride: int) -> Lead:
        """Return the latent frames before the first new block. `block_frames`: the most that a model makes."""
        return Lead()

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        """Name what is encoded, for a sentence on a VAE that cannot; nothing if nothing is."""
        return ()

    def strengths(self, blocks: int) -> tuple[Strength, ...]:
        """Return how strongly each block restyles the clip; nothing if none does."""
        return ()

    def padding(self, plan: RunPlan, stride: int) -> int:
        """Return the pixel frames that the models see before the video's first one."""
        return 0

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        """Say what is done to the start. Raises `BadInput` for a clip too short to restyle."""
        return ()

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip | None, InputClip | None]:
        """Return the clip before the first new block, and the one that new blocks restyle; None without one."""
        return None, None


NOTHING = Start()
ReadStart = Callable[[int, int], Start]
"""Reads a start in a width and a height."""


@dataclass(frozen=True, slots=True, eq=False)
class Latents(Start):
    """Latents `b c t h w` to go on from; a single frame is a picture. `begun`: how many were given, and as what."""

    clip: Tensor
    begun: Lead

    def size(self, stride: int) -> tuple[int, int]:
        return self.clip.shape[4] * stride, self.clip.shape[3] * stride

    def check(self, channels: int, rows: int, columns: int) -> None:
        check_clip(self.clip, (channels, rows, columns), "the clip to continue", "use the size it was made in")

    def lead(self, block_frames: int, stride: int) -> Lead:
        frames = self.clip.shape[2]
        held = 1 < frames < block_frames and not self.begun.start_image_frames
        return replace(self.begun, frames=block_frames if held else frames, picture=frames == 1)

    def encoded(self, lead: Lead) -> tuple[str, ...]:
        return ("a clip shorter than a block",) if lead.picture or lead.frames > self.clip.shape[2] else ()

    def padding(self, plan: RunPlan, stride: int) -> int:
        return stride * max(plan.lead.start_image_frames - 1, self._held(plan), 0)

    def notes(self, plan: RunPlan, stride: int) -> tuple[str, ...]:
        return (f"The clip's first frame {HELD}",) if self._held(plan) else ()

    def clips(self, codec: VideoCodec, plan: RunPlan) -> tuple[StartClip, None]:
        if self.clip.shape[2] == plan.spans[0].start:
            return StartClip(self.clip), None
        return _encode(codec.decode(self.clip)[0], codec, plan), None

    def _held(self, plan: RunPlan) -> int:
        """Return how many latent frames the first one is held for."""
        return 0 if plan.lead.start_image_frames else plan.lead.frames - self.clip.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class Picture(Start):
    """A first frame, `1 1 c h w` in [0, 1]. `remarks`: what was done to it."""

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
class Extend(Start):
    """A clip of pixels to go on from."""

    footage: Footage

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
        return _encode(self.footage.fill(self.footage.frames), codec, plan), None


@dataclass(frozen=True, slots=True, eq=False)
class Restyle(Start):
    """A clip of pixels that the new blocks are made from, as strongly as `strength` says."""

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


def _encode(pixels: Tensor, codec: VideoCodec, plan: RunPlan) -> StartClip:
    """Return a clip's latents with its first frame held, and its pixels unless it is a start image."""
    held = pixel_count(plan.lead.frames, codec.temporal_stride) - pixels.shape[1]
    latents = codec.encode(torch.cat([pixels[:, :1].expand(-1, held, -1, -1, -1), pixels], dim=1))
    return StartClip(latents, None if plan.lead.start_image_frames else pixels)


def pixel_count(latent_frames: int, stride: int) -> int:
    """Return the pixel frames of a clip of `latent_frames`."""
    return 1 + stride * (latent_frames - 1) if latent_frames else 0
