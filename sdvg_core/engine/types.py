"""The values that travel through the engine.

Latents are `b c t h w` in the model's normalised space, pixel frames `b f c h w` in [0, 1]. Always b = 1.
Every value is immutable, and so are the tensors inside: never write into one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from ..errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

MOST_BLOCKS = 100_000
DrafterContext = Literal["committed", "own"]
"""The blocks that the drafter continues: those of the video, or its own drafts."""


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a block in the clip: index, first latent frame, number of latent frames, take.

    Another take is the same block with other noise; take 1 is the default.
    """

    index: int
    start: int
    frames: int
    take: int = 1

    @property
    def stop(self) -> int:
        """The latent frame after the last one."""
        return self.start + self.frames


@dataclass(frozen=True, eq=False)
class Condition:
    """The prompt of a block. Two conditions are the same only if they are the same object.

    `embedding`: `(1, text_tokens, text_channels)`, zero after the prompt's end; all tokens are attended.
    `text`: the prompt as the user wrote it, which the scorer reads.
    `cut`: whether its first block begins a new scene, unless that is the clip's first.
    """

    embedding: Tensor
    text: str
    cut: bool = False

    @cached_property
    def key(self) -> str:
        """Cache key: a hash of the embedding, and whether a scene begins. The text changes no block."""
        return hash_tensor(self.embedding) + " cut" * self.cut


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block: its span, latents `b c t h w`, and condition."""

    span: Span
    latents: Tensor
    condition: Condition

    def same_as(self, other: Block) -> bool:
        """True if both hold the same objects; tensors are never compared by value."""
        return self.latents is other.latents and self.condition is other.condition


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of generating one block: forward passes, single-frame encodes, seconds spent on context.

    The seconds may be `Elapsed` until the block is recorded.
    """

    denoising_passes: int = 0
    context_passes: int = 0
    encodes: int = 0
    context_seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """The result of a model. `predictions`: clean prediction of each step, `b c t h w`; the last is the block."""

    predictions: tuple[Tensor, ...]
    cost: Cost = field(default_factory=Cost)

    @property
    def latents(self) -> Tensor:
        """The block, `b c t h w`."""
        return self.predictions[-1]


def plan_spans(
    blocks: int,
    block_frames: int,
    start: int = 0,
    takes: Mapping[int, int] | None = None,
    start_image_frames: int = 0,
) -> tuple[Span, ...]:
    """Return the spans of `blocks` new blocks after `start` existing latent frames.

    `takes`: takes other than 1, by index among the new blocks. `start_image_frames`: number of existing frames that
    show a start image; they come before block 0.
    Blocks are numbered from the start of the clip, so a clip made in two runs has the noise of a single run.
    """
    check_blocks(blocks)
    first = (start - start_image_frames) // block_frames
    takes = takes or {}
    return tuple(Span(first + i, start + i * block_frames, block_frames, takes.get(i, 1)) for i in range(blocks))


def check_blocks(blocks: int) -> None:
    """Raise `BadInput` unless a video can have this many blocks."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or not 1 <= blocks <= MOST_BLOCKS:
        raise BadInput(f"a video cannot have {blocks!r:.60} blocks; give 1 to {MOST_BLOCKS} (the paper uses 9)")


def spans_of_clip(frames: int, block_frames: int, start_image_frames: int = 0) -> tuple[Span, ...]:
    """Return the spans of an existing clip; a shorter one comes first.

    `start_image_frames`: number of first frames that show a start image; they belong to the first span.
    """
    odd = start_image_frames + (frames - start_image_frames) % block_frames
    lead = (Span(0, 0, odd),) if odd else ()
    starts = range(odd, frames, block_frames)
    return lead + tuple(Span((start - start_image_frames) // block_frames, start, block_frames) for start in starts)


def check_clip(latents: Tensor, size: tuple[int, int, int], what: str, remedy: str) -> None:
    """Raise `BadInput` unless `latents` are one finite clip of `size` (channels, rows, columns)."""
    shape = tuple(latents.shape)
    if len(shape) != 5 or shape[2] < 1 or shape != (1, size[0], shape[2], *size[1:]):
        wanted = f"1 x {size[0]} x frames x {size[1]} x {size[2]}"
        raise BadInput(f"{what} is {' x '.join(map(str, shape))}, not {wanted}; {remedy}")
    if not bool(latents.isfinite().all()):
        raise BadInput(f"{what} holds NaN or infinity; make it again")


class FiniteChecks:
    """Looks for NaN and infinity in a block's tensors. Reads all results at once, as reading waits for a GPU."""

    def __init__(self) -> None:
        self._pending: list[tuple[Span, str, Tensor]] = []

    def add(self, values: Tensor, span: Span, what: str) -> None:
        """Start the check of a tensor of the block at `span`. `what`: its name in errors."""
        self._pending.append((span, what, values.isfinite().all()))

    def read(self, number: Tensor | None = None) -> float | None:
        """Raise `BadInput` for the first tensor that is not finite. Return `number`, read in the same transfer."""
        import torch

        numbers = [finite for *_, finite in self._pending] + ([] if number is None else [number])
        device = numbers[-1].device if numbers else None
        read = torch.stack([each.to(device, torch.float32) for each in numbers]).tolist() if numbers else []
        for (span, what, _), finite in zip(self._pending, read, strict=False):
            if not finite:
                problem = f"block {span.index + 1} has NaN or infinity in its {what}"
                raise BadInput(f"{problem}; check that model's file, or try bfloat16 or float32")
        self._pending = []
        return None if number is None else read[-1]


def hash_tensor(tensor: Tensor) -> str:
    """Return a hash of a tensor's values, shape and dtype, the same on every device."""
    import torch

    here = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{here.dtype} {tuple(here.shape)} ".encode())
    digest.update(here.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_text(text: str) -> str:
    """Return a hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
