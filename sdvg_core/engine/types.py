"""The values that travel through the engine.

Latents are `b c t h w` in the model's normalised space, pixel frames `b f c h w` in [0, 1]. Always b = 1.
Every value is immutable, and so are the tensors inside: never write into one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, count
from ..settings.request import check_blocks

HALF_A_LEVEL = 0.5 / 255
"""How far rounding may take frames out of [0, 1]; they still have the right level of 255."""


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
        return self.digest + " cut" * self.cut

    @cached_property
    def digest(self) -> str:
        """A hash of the embedding."""
        return hash_tensor(self.embedding)


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
    """The result of a model. `predictions`: clean prediction of each step, `b c t h w`, which may be handed over.

    `block`: the block's latents if they are not the last prediction, as a colour hold changes only the block.
    """

    predictions: tuple[Tensor, ...]
    cost: Cost = field(default_factory=Cost)
    block: Tensor | None = None

    @property
    def latents(self) -> Tensor:
        """The block, `b c t h w`."""
        return self.predictions[-1] if self.block is None else self.block

    def first(self, steps: int) -> tuple[Tensor, ...]:
        """Return the predictions of the first `steps` steps, to hand over. Raises `BadInput` if there are fewer."""
        predictions = self.predictions[:steps]
        if len(predictions) < steps:
            problem = f"the drafter returned {count(len(predictions), 'prediction')}, and {steps} are handed over"
            raise BadInput(f"{problem}; return one for each of its timesteps")
        return predictions


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


class NotFinite(BadInput):
    """NaN or infinity in a block. `fault`: the sentence without its remedy. `model`: which made it, if one did."""

    def __init__(self, fault: str, model: str) -> None:
        super().__init__(f"{fault}; check that model's file, or try bfloat16 or float32")
        self.fault = fault
        self.model = model


class FiniteChecks:
    """Looks for NaN and infinity in a block's tensors. Reads all results at once, as reading waits for a GPU."""

    def __init__(self) -> None:
        self._pending: list[tuple[BadInput, Tensor]] = []

    def add(self, values: Tensor, span: Span, what: str, model: str = "") -> None:
        """Start the check of a tensor of the block at `span`. `what`: its name in errors. `model`: its maker."""
        fault = f"block {span.index + 1} has NaN or infinity in its {what}"
        self._pending.append((NotFinite(fault, model), values.isfinite().all()))

    def add_range(self, frames: Tensor, span: Span, codec: str) -> None:
        """Start the check that frames are in [0, 1] but for rounding. `codec`: its name in errors."""
        problem = f"{codec} returned frames outside 0 to 1 for block {span.index + 1}"
        inside = (frames >= -HALF_A_LEVEL) & (frames <= 1 + HALF_A_LEVEL)
        self._pending.append((BadInput(f"{problem}; return them from 0 to 1, clamped"), inside.all()))

    def read(self, number: Tensor | None = None) -> float | None:
        """Raise `BadInput` for the first check that failed. Return `number`, read in the same transfer."""
        numbers = [passed for _, passed in self._pending] + ([] if number is None else [number])
        device = numbers[-1].device if numbers else None
        read = torch.stack([each.to(device, torch.float32) for each in numbers]).tolist() if numbers else []
        for (problem, _), passed in zip(self._pending, read, strict=False):
            if not passed:
                raise problem
        self._pending = []
        return None if number is None else read[-1]


def hash_tensor(tensor: Tensor) -> str:
    """Return a hash of a tensor's values, shape and dtype, the same on every device."""
    here = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{here.dtype} {tuple(here.shape)} ".encode())
    digest.update(here.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_text(text: str) -> str:
    """Return a hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


Anchor = Callable[[], Tensor]
"""Function that returns the last pixel frame of a latent frame, `b 1 c h w`; always the same object."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Everything that the next block depends on; `commit` returns a new one, so a rejection needs no undo.

    `anchors`: of the newest latent frames, oldest first; at most `horizon`, so that memory does not grow with the
    clip. `decode_state`: a `DecodeState` after the newest block; None before the first, or if nothing is decoded.
    """

    blocks: tuple[Block, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    horizon: int = 0
    decode_state: Any = None

    @property
    def frames(self) -> int:
        """Number of committed latent frames."""
        return self.blocks[-1].span.stop if self.blocks else 0

    def commit(self, block: Block, anchors: tuple[Anchor, ...] = (), decode_state: Any = None) -> History:
        """Return the history with `block` appended. `anchors`: one for each of its latent frames.

        Raises `ValueError` if it does not start where the history ends.
        """
        if block.span.start != self.frames or block.latents.shape[2] != block.span.frames:
            raise ValueError(f"{block.latents.shape[2]} frames at {block.span} do not follow {self.frames} frames")
        kept = (self.anchors + anchors)[-self.horizon :] if self.horizon else ()
        return History((*self.blocks, block), kept, self.horizon, decode_state)

    def latents(self, first: int, last: int) -> Tensor:
        """Return latent frames `first` to `last` (exclusive), `b c t h w`, on the device of the newest one."""
        parts = [
            b.latents[:, :, max(first - b.span.start, 0) : last - b.span.start]
            for b in self.blocks
            if b.span.start < last and b.span.stop > first
        ]
        # Blocks may be on different devices: the drafter's, the target's, or the host for a continued clip.
        return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[-1]) for part in parts], dim=2)

    def anchor(self, frame: int) -> Tensor:
        """Return the last pixel frame of a latent frame, `b 1 c h w`. Raises `ValueError` beyond the horizon."""
        back = self.frames - frame
        if not 0 < back <= len(self.anchors):
            raise ValueError(f"the horizon {self.horizon} keeps no pixels of latent frame {frame} of {self.frames}")
        return self.anchors[-back]()


@dataclass(frozen=True, slots=True)
class ScenePosition:
    """Position of a block among prompts and cuts.

    `prompt`: first latent frame under its prompt; 0 for the first prompt. `cuts`: number of cuts before it.
    `start`: index in the history of its scene's first block. `cut`: whether it begins the scene.
    """

    prompt: int = 0
    cuts: int = 0
    start: int = 0
    cut: bool = False


def scene_of(blocks: Sequence[Block], condition: Condition) -> ScenePosition:
    """Return the scene position of the block that follows `blocks`, under `condition`."""
    prompt = cuts = start = 0
    shown = [*(block.condition for block in blocks), condition]
    for place, (before, after) in enumerate(pairwise(shown), 1):
        if before is not after:
            prompt = blocks[place - 1].span.stop
            cuts, start = (cuts + 1, place) if after.cut else (cuts, start)
    return ScenePosition(prompt, cuts, start, bool(start) and start == len(blocks))
