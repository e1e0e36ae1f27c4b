"""A control clip in pixels: encode it for the control modules, and paste kept regions back into the video.

In the mask, white is generated and black is kept. Latent frame 0 takes the mask of pixel frame 0, latent frame i
that of pixel frame 4i - 1, for clips of any length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.inputs import ControlClip
from ..engine.protocols import VideoCodec
from ..errors import BadInput, count
from ..files.footage import Footage

GREY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlFootage:
    """A control in the video's size. `mask`: None to generate everything.

    `edge`: pixels outside a kept region over which it fades out. `lead`: pixel frames that the models see before
    the video's first one. `new`: index of the video's first new pixel frame.
    """

    footage: Footage
    mask: Footage | None = None
    strength: float = 1.0
    edge: int = 0
    lead: int = 0
    new: int = 0

    def part(self, first: int, until: int | None) -> ControlFootage:
        """Return the control of the video's pixel frames `first` to `until`."""
        mask = self.mask.part(first, until) if self.mask else None
        return replace(self, footage=self.footage.part(first, until), mask=mask)

    def clip(self, codec: VideoCodec, latent_frames: int) -> ControlClip:
        """Encode the control for the models, for the first `latent_frames` of the history."""
        frames = 1 + codec.temporal_stride * (latent_frames - 1)
        pixels = self.footage.fill(frames, first=-self.lead) - GREY
        mask = self._made(frames, -self.lead)
        # Two encodes, as the encoder carries state along a clip.
        streams = [codec.encode(GREY + pixels * part).cpu().float() for part in (1 - mask, mask)]
        stride = codec.spatial_stride
        rows, columns = mask.shape[3:]
        chosen = mask[0, [0, *range(codec.temporal_stride - 1, frames, codec.temporal_stride)], 0]
        cells = chosen.view(-1, rows // stride, stride, columns // stride, stride).permute(2, 4, 0, 1, 3)
        return ControlClip(torch.cat((*streams, cells.flatten(0, 1)[None]), dim=1), self.strength)

    def paste(self, made: Tensor, first: int) -> Tensor:
        """Return frames `1 f 3 h w` of the video, from index `first` on, with the kept regions pasted in."""
        frames = made.shape[1]
        if self.mask is None or first + frames <= self.new:
            return made
        kept = 1 - self._made(frames, first)
        if self.edge:
            size = 2 * self.edge + 1
            grown = F.max_pool2d(kept[0], size, 1, self.edge)
            kept = F.avg_pool2d(grown, size, 1, self.edge, count_include_pad=False)[None]
        kept[:, : max(self.new - first, 0)] = 0
        kept = kept.to(made)
        return made * (1 - kept) + self.footage.fill(frames, first=first).to(made) * kept

    def _made(self, frames: int, first: int) -> Tensor:
        """Return the mask of frames of the video, `1 f 1 h w`: 1 where pixels are generated, 0 where kept."""
        if self.mask is None:
            return torch.ones(1, frames, 1, *self.footage.pixels.shape[2:])
        return (self.mask.fill(frames, first=first).mean(dim=2, keepdim=True) >= GREY).float()


def padding_note(frames: int, wanted: int, block: int, what: str) -> str:
    """Return a note on how a clip gets `wanted` pixel frames; `what` names it. The last is held for up to a block.

    Raises `BadInput` if more is missing.
    """
    missing = wanted - frames
    if missing > block:
        fault = f"the {what} has {count(frames, 'frame')}, and the video needs {wanted}"
        raise BadInput(f"{fault}; lower the number of blocks, or use a longer one")
    edge = f" Its last frame is held for {count(missing, 'frame')}." if missing > 0 else ""
    return f" Without its last {count(-missing, 'frame')}." if missing < 0 else edge
