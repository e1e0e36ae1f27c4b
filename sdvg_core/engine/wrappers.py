"""Generators around a model: they hold colours against their drift, forget the begin of a clip, or make a span of
smaller blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..errors import BadInput
from .inputs import BlockCall, NoiseSource
from .protocols import BlockGenerator, WrappedGenerator
from .types import Block, Condition, Cost, Generated, History, Span, scene_of

# --- drift of a block from the start of its scene, by mean and deviation of each latent channel, both of which
# drift in long runs of causal models

LEAST_DEVIATION = 1e-6


def first_of_scene(history: History, condition: Condition) -> Tensor | None:
    """Return the latents of the first block in the scene of the next block, or None if there is none.

    Skip the clip's first block, whose first latent frame holds only one pixel frame and is unlike all others.
    """
    start = scene_of(history.blocks, condition).start
    return next((block.latents for block in history.blocks[start:] if block.span.start), None)


def colours(latents: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of `b c t h w`, each `1 c 1 1 1` float32."""
    wide = latents.float()
    mean = wide.mean(dim=(0, 2, 3, 4), keepdim=True)
    return mean, (wide - mean).square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt().clamp_min(LEAST_DEVIATION)


def drift_of(block: Block, history: History) -> Tensor | None:
    """Return the drift of a block after `history`, on its device; None for the first of its scene."""
    first = first_of_scene(history, block.condition)
    return None if first is None else drift(block.latents, first)


def drift(latents: Tensor, first: Tensor) -> Tensor:
    """Return the distance of a block from the `first` of its scene, both `b c t h w`.

    Root mean square over channels of the changes in mean and deviation, in deviations of the first block.
    """
    mean, deviation = colours(latents)
    mean_1, deviation_1 = colours(first.to(latents.device))
    distance = ((mean - mean_1) / deviation_1).square() + (deviation / deviation_1 - 1).square()
    return distance.mean().sqrt()


class ColourHold(WrappedGenerator):
    """Pulls mean and deviation of each channel to those of the scene's first block. `hold`: 0 none, 1 fully."""

    def __init__(self, inner: BlockGenerator, hold: float) -> None:
        super().__init__(inner)
        self.hold = hold

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block with `inner`, and pull its colours, but not its predictions."""
        made = self.inner.generate(call)
        first = first_of_scene(call.history, call.condition)
        if first is None or call.stop is not None:
            return made
        mean, deviation = colours(made.latents)
        mean_1, deviation_1 = colours(first.to(made.latents.device))
        scale = 1 + self.hold * (deviation_1 / deviation - 1)
        held = (made.latents.float() - mean) * scale + mean + self.hold * (mean_1 - mean)
        return replace(made, block=held.to(made.latents.dtype))


# --- a model that forgets the begin of a clip


class ShortMemory(WrappedGenerator):
    """Shows `inner` a history that begins with a later block, as if the video began there.

    Positions count from there, blocks and so their noise as before. A video's first latent frame shows a single
    pixel frame, so the first one that is remembered is encoded anew, as Krea's context does.
    """

    def __init__(self, inner: BlockGenerator, first: Block, begin: Callable[[], Tensor]) -> None:
        """`first`: the block with which memory begins. `begin`: returns its first frame as an image's latents."""
        super().__init__(inner)
        self._first = first
        self._begin = begin
        # As in `FramewiseAdapter`, a block that is moved once more must give the same object.
        self._known: tuple[tuple[Block, Block], ...] = ()

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block from what is remembered."""
        blocks = [block for block in call.history.blocks if block.span.start >= self._first.span.start]
        self._known = tuple((block, self._moved(number, block)) for number, block in enumerate(blocks))
        history = replace(call.history, blocks=tuple(moved for _, moved in self._known), decode_state=None)
        return self.inner.generate(replace(call, history=history, span=self._place(call.span)))

    def _moved(self, number: int, block: Block) -> Block:
        for known, moved in self._known[number : number + 1]:
            if known.same_as(block):
                return moved
        latents = block.latents
        if number == 0:
            rest = latents[:, :, 1:]
            latents = torch.cat((self._begin().to(rest), rest), dim=2)
        return Block(self._place(block.span), latents, block.condition)

    def _place(self, span: Span) -> Span:
        """Return where a span is, counted from where memory begins."""
        return replace(span, start=span.start - self._first.span.start)


# --- a model with smaller blocks


def undecoded() -> Tensor:
    """Placeholder for the anchor of an undecided block; `check_sub_blocks` rules out that a context reads it."""
    raise AssertionError("an undecided block has no pixels")


class FramewiseAdapter(WrappedGenerator):
    """Makes blocks of `block_frames` latent frames from several smaller blocks of `inner`.

    Every sub-block continues the one before it, as if `inner` ran alone. Committed blocks are split in the same
    way, and a sub-block's noise is its part of the span's noise. Raises `BadInput` if sub-blocks do not fit.
    """

    def __init__(self, inner: BlockGenerator, block_frames: int) -> None:
        super().__init__(inner)
        check_sub_blocks(inner.block_frames, inner.anchor_horizon, block_frames)
        self.block_frames = block_frames
        # Of the clip's first block; empty if its first sub-block has other timesteps than the rest.
        one_list = inner.block_frames == block_frames or inner.first_timesteps == inner.timesteps
        self.first_timesteps = inner.first_timesteps if one_list else ()
        # Blocks, each with its sub-blocks. `inner` knows a block again by its object, so a block that is split once
        # more must give the same objects, or its keys and values are made again.
        self._newest: tuple[Block, ...] = ()
        self._known: tuple[tuple[Block, ...], ...] = ()

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block as sub-blocks. With `stop`, only the last sub-block stops early."""
        self._known = tuple(self._split(number, block) for number, block in enumerate(call.history.blocks))
        split = tuple(sub for _, *subs in self._known for sub in subs)
        history = replace(call.history, blocks=split, decode_state=None)
        made: list[Generated] = []
        blocks: tuple[Block, ...] = ()
        for sub in split_span(call.span, self.inner.block_frames):
            made.append(self.inner.generate(_sub_call(call, sub, history)))
            blocks = (*blocks, Block(sub, made[-1].latents, call.condition))
            history = history.commit(blocks[-1], (undecoded,) * sub.frames)
        whole = _joined(made, call.stop)
        if call.stop is None:
            self._newest = (Block(call.span, whole.latents, call.condition), *blocks)
        return whole

    def _split(self, number: int, block: Block) -> tuple[Block, ...]:
        """Return a block and its sub-blocks, the same objects as at an earlier split."""
        for known in (*self._known[number : number + 1], self._newest):
            if known and known[0].same_as(block):
                return known
        spans = split_span(block.span, self.inner.block_frames)
        subs = (Block(sub, _frames_of(sub, block.span, block.latents), block.condition) for sub in spans)
        return (block, *subs)


def check_sub_blocks(own_frames: int, anchor_horizon: int, block_frames: int) -> None:
    """Raise `BadInput` unless a model with blocks of `own_frames` can make blocks of `block_frames` latent frames.

    `anchor_horizon`: latent frames whose pixels its context may need, from the window's first on. Sub-blocks of an
    undecided block have no pixels, so the window must begin before the block.
    """
    if block_frames % own_frames:
        sizes = f"{own_frames} and {block_frames} latent frames"
        raise BadInput(f"the drafter's blocks do not divide the target's ({sizes}); choose presets that fit")
    least = block_frames - own_frames + 1
    if own_frames < block_frames and 0 < anchor_horizon < least:
        problem = f"{anchor_horizon} context frames are too few for a drafter with blocks of {own_frames}"
        raise BadInput(f"{problem}; give at least {least}, or the policy incremental")


def split_span(span: Span, frames: int) -> tuple[Span, ...]:
    """Split a span into sub-blocks of `frames` latent frames; a shorter one comes first."""
    odd = span.frames % frames
    first = span.index * (span.frames // frames)
    lead = [Span(first, span.start, odd, span.take)] if odd else []
    starts = range(span.start + odd, span.stop, frames)
    return (*lead, *(Span(first + i, start, frames, span.take) for i, start in enumerate(starts)))


@dataclass(frozen=True, slots=True, eq=False)
class _SubBlockNoise:
    """`NoiseSource` for the sub-blocks of a span."""

    noise: NoiseSource
    span: Span

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return the frames of the span's noise at the sub-block `span`, `b c t h w`."""
        return _frames_of(span, self.span, self.noise.draw(self.span, slot))


def _sub_call(call: BlockCall, sub: Span, history: History) -> BlockCall:
    """Return the call for the sub-block `sub`, which follows `history`; only the last one stops early."""
    part_of = partial(_frames_of, sub, call.span)
    restyle = call.restyle
    return replace(
        call,
        history=history,
        span=sub,
        noise=_SubBlockNoise(call.noise, call.span),
        handed_over=[part_of(estimate) for estimate in call.handed_over],
        stop=call.stop if sub.stop == call.span.stop else None,
        restyle=restyle if restyle.latents is None else replace(restyle, latents=part_of(restyle.latents)),
        controls=tuple(replace(control, context=part_of(control.context)) for control in call.controls),
    )


def _frames_of(sub: Span, span: Span, latents: Tensor) -> Tensor:
    """Return the latent frames of `sub` from the latents of `span`, `b c t h w`."""
    return latents[:, :, sub.start - span.start : sub.stop - span.start].contiguous()


def _joined(made: Sequence[Generated], stop: int | None) -> Generated:
    """Join sub-blocks to one block, prediction by prediction; they may have different numbers of steps."""
    if stop is None:
        steps = min(len(sub.predictions) for sub in made)
        estimates = [(*sub.predictions[: steps - 1], sub.latents) for sub in made]
    else:
        estimates = [sub.predictions[:stop] for sub in made]
    predictions = tuple(torch.cat(of_step, dim=2) for of_step in zip(*estimates, strict=True))
    return Generated(predictions, sum((sub.cost for sub in made), Cost()))
