"""The video's pixels: decoded from the committed latents, by the full VAE, when they are needed.

With a judge (a fast decoder for drafts), the loop itself never calls the full VAE. A committed block is decoded
when a model's context asks for a picture of it, or when its frames are read. Latent frames are decoded in
order and one by one, so the time of decoding changes no bit. A rejected draft never gets here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .protocols import VideoCodec
from .types import Block, Picture, Span, check_finite


@dataclass(frozen=True, slots=True, eq=False)
class DeliveredBlock:
    """A block's pixel frames in the video.

    `anchors`: the last pixel frame of each latent frame, or how to get it.
    """

    anchors: tuple[Picture, ...]
    _frames: tuple[Future[Tensor], ...]
    _take: Callable[[Future[Tensor]], Tensor]
    _most: int | None = None

    @classmethod
    def of(cls, frames: Tensor, latent_frames: int, temporal_stride: int) -> DeliveredBlock:
        """Return it for `frames` that are decoded already, `b f c h w`."""
        there: Future[Tensor] = Future()
        there.set_result(frames)
        return cls(last_frames(frames, latent_frames, temporal_stride), (there,), Future.result)

    @property
    def ready(self) -> bool:
        """Whether the frames are there already."""
        return all(one.done() for one in self._frames)

    def frames(self) -> Tensor:
        """Return the pixel frames `b f c h w` in [0, 1], decoding now what is not decoded yet.

        Raises `BadInput` if they are not finite.
        """
        shown = [self._take(one) for one in self._frames]
        # Joined as a codec joins them, so that readers of the frames get the same strides.
        whole = (
            shown[0] if len(shown) == 1 else torch.cat([s.transpose(1, 2) for s in shown], dim=2).transpose(1, 2)
        )
        return whole[:, : self._most]

    def first_frame(self) -> DeliveredBlock:
        """Return it with only its first pixel frame."""
        return replace(self, _most=1)


def last_frames(frames: Tensor, latent_frames: int, temporal_stride: int) -> tuple[Tensor, ...]:
    """Return copies of the last pixel frame of each latent frame of a block, so that the block can be freed."""
    newest = frames.shape[1] - 1
    backs = reversed(range(latent_frames))
    return tuple(frames[:, newest - i * temporal_stride, None].clone() for i in backs)


@dataclass(frozen=True, slots=True, eq=False)
class _LatentFrame:
    """A committed latent frame `b c 1 h w`, and futures of its pixel frames and of a copy of the last one."""

    span: Span
    latents: Tensor
    frames: Future[Tensor] = field(default_factory=Future)
    picture: Future[Tensor] = field(default_factory=Future)


class Delivery:
    """Decodes the committed blocks of one clip, in order and each latent frame once."""

    def __init__(self, codec: VideoCodec) -> None:
        self._codec = codec
        self._state: Any = None
        self._waiting: deque[_LatentFrame] = deque()
        self._error: BaseException | None = None

    def add(self, block: Block) -> DeliveredBlock:
        """Note a committed block; blocks are given in order."""
        queued = [_LatentFrame(block.span, latents) for latents in block.latents.split(1, dim=2)]
        self._waiting.extend(queued)
        anchors = tuple(partial(self._take, one.picture) for one in queued)
        return DeliveredBlock(anchors, tuple(one.frames for one in queued), self._take)

    def _take(self, result: Future[Tensor]) -> Tensor:
        while not result.done():
            self._decode_next()
        return result.result()

    def _decode_next(self) -> None:
        one = self._waiting.popleft()
        if self._error is None:
            try:
                frames, self._state = self._codec.decode(one.latents, self._state)
                check_finite(frames, one.span, "decoded frames")
                # Copied before either future is set: if this fails, both must get the error.
                picture = frames[:, -1:].clone()
                one.frames.set_result(frames)
                one.picture.set_result(picture)
                return
            except BaseException as error:
                # Later frames need the decoder's state after this one, so none of them can be decoded.
                self._error = error
        one.frames.set_exception(self._error)
        one.picture.set_exception(self._error)
