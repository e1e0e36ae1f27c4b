"""One video, ready to run. Command line, nodes, study and benchmark get their blocks from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .drift import ColourHold, check_hold
from .history import History
from .inputs import BlockInputs, StartClip
from .pixels import Decoder
from .plan import RunPlan, check_restyle
from .protocols import Engine
from .router import RouterConfig
from .speculate import EmittedBlock, ShownBlock, speculate
from .store import Reuse
from .types import Block, DrafterContext, Span, check_clip, check_finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Everything that determines a video.

    `router`: with the user's directions. `spans`: the blocks to make. `clip`: the blocks that they continue.
    `start_image_frames`: how many latent frames show a start image. `clip_pixels`: the clip's own for the video,
    `1 f c h w` in [0, 1]; None to show what it decodes to. `reuse`: what earlier runs made, which is not made
    again; what this one makes is kept there. `clock`: its readings subtract to
    seconds.
    """

    engine: Engine
    router: RouterConfig
    spans: tuple[Span, ...]
    inputs: BlockInputs
    drafter_context: DrafterContext = "committed"
    clip: tuple[Block, ...] = ()
    start_image_frames: int = 0
    clip_pixels: Tensor | None = None
    reuse: Reuse | None = None
    clock: Callable[[], Any] = time.perf_counter

    def play(self, stop: Callable[[], bool] = lambda: False) -> Generator[ShownBlock]:
        """Yield the whole video: the clip, then new blocks as soon as they are decided. `frames`: as shown.

        `stop`: asked after every new block whether to leave out the others.
        """
        history = History(horizon=self.engine.horizon)
        for shown in self._show_clip():
            history = shown.history
            yield shown
        with closing(self._make(history)) as loop:
            for emitted in loop:
                yield emitted
                if stop():
                    break

    def blocks(self) -> Generator[EmittedBlock]:
        """Make the new blocks, and yield each as soon as it is decided."""
        history = History(horizon=self.engine.horizon)
        for shown in self._show_clip():
            history = shown.history
        return self._make(history)

    def _show_clip(self) -> Iterator[ShownBlock]:
        decoder = Decoder(self.engine.codec, self.reuse)
        history = History(horizon=self.engine.horizon)
        for block in self.clip:
            pixels = decoder.pixels(history, block)
            frames = pixels.frames()
            check_finite(frames, block.span, "decoded frames")
            pixels.release()
            if self.clip_pixels is not None:
                frames = self._own_pixels(self.clip_pixels, block.span)
            elif history.frames < self.start_image_frames:
                frames = frames[:, :1]
            history = history.commit(block, pixels.anchors, pixels.state)
            yield ShownBlock(history, frames, pixels.key)

    def _own_pixels(self, pixels: Tensor, span: Span) -> Tensor:
        """Return the clip's own pixels of a block; the last has fewer if the first frame is held."""
        stride = self.engine.codec.temporal_stride
        first, last = (max(1 + stride * (frame - 1), 0) for frame in (span.start, span.stop))
        return pixels[:, first:last]

    def _make(self, start: History) -> Generator[EmittedBlock]:
        return speculate(
            self.engine,
            self.router,
            self.spans,
            self.inputs,
            drafter_context=self.drafter_context,
            start=start,
            reuse=self.reuse,
            clock=self.clock,
        )


def make_run(
    engine: Engine,
    plan: RunPlan,
    inputs: BlockInputs,
    *,
    drafter_context: DrafterContext = "committed",
    start: StartClip | None = None,
    reuse: Reuse | None = None,
    colour_hold: float = 0.0,
    clock: Callable[[], Any] = time.perf_counter,
) -> Run:
    """Return the run that makes the blocks of `plan` from `inputs`, as large as their noise.

    `reuse`: what earlier runs made, which is not made again where it is provably the same; what this run makes is
    put there. `colour_hold`: see `ColourHold`.
    Raises `BadInput` for a clip of another size, or one with NaN or infinity.
    """
    if colour_hold:
        engine, reuse = _holding(engine, reuse, colour_hold)
    noise = inputs.noise
    for clip in (start, inputs.restyle):
        if clip:
            size = (noise.channels, noise.height, noise.width)
            check_clip(clip.latents, size, "the clip", "use the size it was made in")
    for control in inputs.controls:
        control.check(plan.spans[-1].stop, noise.height, noise.width)
    check_restyle(engine.models[0], engine.models[-1], plan)
    clip_blocks = [
        Block(span, start.latents[:, :, span.start : span.stop], inputs.condition_of(span.index))
        for span in plan.clip
        if start
    ]
    return Run(
        engine=engine,
        router=plan.router,
        spans=plan.spans,
        inputs=inputs,
        drafter_context=drafter_context,
        clip=tuple(clip_blocks),
        start_image_frames=plan.lead.start_image_frames,
        clip_pixels=start.pixels if start else None,
        reuse=reuse,
        clock=clock,
    )


def _holding(engine: Engine, reuse: Reuse | None, hold: float) -> tuple[Engine, Reuse | None]:
    """Return the engine with models that hold their colours, and re-use under other identities."""
    check_hold(hold)
    drafter = engine.drafter and ColourHold(engine.drafter, hold)
    target = engine.target and ColourHold(engine.target, hold)
    if reuse:
        keys = reuse.identities
        held = f"colour held {hold}"
        keys = replace(keys, drafter=f"{keys.drafter} {held}", target=f"{keys.target} {held}")
        reuse = replace(reuse, identities=keys)
    return replace(engine, drafter=drafter, target=target), reuse
