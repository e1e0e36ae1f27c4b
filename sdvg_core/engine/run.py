"""A run: everything that determines a video. Command line, nodes, study and benchmark all play it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ..settings.request import DrafterContext, Strength
from ..settings.route import Route
from .inputs import BlockInputs, ControlClip, InputClip, KeyedNoise, StartClip
from .outside import check_frames
from .pixels import Decoder
from .plan import Lead, RunPlan, check_restyle, plan_blocks
from .protocols import BlockGenerator, Engine
from .reuse import Reuse
from .speculate import EmittedBlock, ShownBlock, speculate
from .types import Anchor, Block, Condition, FiniteChecks, History, check_clip
from .wrappers import ColourHold, ShortMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Everything that determines a video; the noise in `inputs` has its size.

    `reuse`: results of earlier runs, re-used where cache keys agree; this run adds its own. `forgotten`: number of
    the clip's first latent frames that the models do not see, see `ShortMemory`. `colour_hold`: see `ColourHold`.
    `clock`: its readings subtract to seconds. Raises `BadInput` for a clip of another size, or with
    NaN or infinity.
    """

    engine: Engine
    plan: RunPlan
    inputs: BlockInputs
    drafter_context: DrafterContext = "committed"
    reuse: Reuse | None = None
    forgotten: int = 0
    colour_hold: float = 0.0
    clock: Callable[[], Any] = time.perf_counter

    def __post_init__(self) -> None:
        inputs = self.inputs
        size = (inputs.noise.channels, inputs.noise.height, inputs.noise.width)
        for clip in (inputs.start, inputs.restyle):
            if clip:
                check_clip(clip.latents, size, "the clip", "use the size it was made in")
        for control in inputs.controls:
            control.check(self.plan.stop, *size[1:])
        check_restyle(self.engine.models[0], self.engine.models[-1], self.plan)

    def play(self, stop: Callable[[], bool] = lambda: False) -> Generator[ShownBlock]:
        """Yield the whole video: the clip, then new blocks as soon as they are decided, with frames as shown.

        `stop`: called after every new block; True ends the video there.
        """
        history = History(horizon=self.engine.horizon)
        anchors: dict[int, Anchor] = {}
        for shown in self._show_clip(anchors):
            history = shown.history
            yield shown
        engine = self.engine
        reuse = self.reuse
        if self.forgotten:
            first = next(block for block in history.blocks if block.span.start == self.forgotten)
            begin = cache(lambda: self.engine.codec.encode(anchors[self.forgotten]()))
            memory = partial(ShortMemory, first=first, begin=begin)
            engine, reuse = _wrapped(engine, reuse, f"remembers from {self.forgotten} on", memory)
        if self.colour_hold:
            hold = partial(ColourHold, hold=self.colour_hold)
            engine, reuse = _wrapped(engine, reuse, f"colour held {self.colour_hold}", hold)
        loop = speculate(
            engine,
            self.plan.route,
            self.plan.blocks,
            self.inputs,
            drafter_context=self.drafter_context,
            start=history,
            reuse=reuse,
            clock=self.clock,
        )
        with closing(loop):
            for emitted in loop:
                yield emitted
                if stop():
                    break

    def blocks(self) -> Generator[EmittedBlock]:
        """Yield only the new blocks, each as soon as it is decided."""
        with closing(self.play()) as video:
            for shown in video:
                if isinstance(shown, EmittedBlock):
                    yield shown

    def _show_clip(self, anchors: dict[int, Anchor]) -> Iterator[ShownBlock]:
        """Yield the blocks of the clip. `anchors`: that of the first latent frame that is remembered is added."""
        start = self.inputs.start
        decoder = Decoder(self.engine.codec, self.reuse)
        stride = self.engine.codec.temporal_stride
        checks = FiniteChecks()
        history = History(horizon=self.engine.horizon)
        for span in self.plan.clip if start else ():
            assert start is not None
            condition = self.inputs.condition_of(span.index)
            block = Block(span, start.latents[:, :, span.start : span.stop], condition)
            pixels = decoder.pixels(history, block)
            frames = pixels.frames()
            check_frames(checks, self.engine.codec, frames, span)
            checks.read()
            pixels.store()
            if start.pixels is not None and span.start < start.replaced:
                # Show the given pixels. If the latents begin with repeats of the first one, to fill up a block,
                # there are fewer of them: the slices show what the latents hold a little later, the last one less.
                first, last = (max(1 + stride * (frame - 1), 0) for frame in (span.start, span.stop))
                frames = start.pixels[:, first:last]
            elif history.frames < (image_frames := self.plan.lead.start_image_frames):
                # The image is held for several latent frames. Show it once, then the odd frames of its span.
                frames = torch.cat((frames[:, :1], frames[:, 1 + stride * (image_frames - 1) :]), dim=1)
            if self.forgotten and span.start == self.forgotten:
                anchors[span.start] = pixels.anchors[0]
            history = history.commit(block, pixels.anchors, pixels.state)
            yield ShownBlock(history, frames, pixels.key)


def _wrapped(
    engine: Engine, reuse: Reuse | None, key: str, wrap: Callable[[BlockGenerator], BlockGenerator]
) -> tuple[Engine, Reuse | None]:
    """Return an engine with a wrapper around its models, and re-use with keys that name it by `key`."""
    drafter = engine.drafter and wrap(engine.drafter)
    target = engine.target and wrap(engine.target)
    if reuse:
        keys = reuse.part_keys
        keys = replace(keys, drafter=f"{keys.drafter} {key}", target=f"{keys.target} {key}")
        reuse = replace(reuse, part_keys=keys)
    return replace(engine, drafter=drafter, target=target), reuse


def plan_run(
    engine: Engine,
    route: Route,
    condition_of: Callable[[int], Condition],
    *,
    blocks: int,
    directions: str = "",
    takes: str = "",
    seed: int,
    width: int,
    height: int,
    given: Tensor | None = None,
    source: Tensor | None = None,
    strengths: Sequence[Strength] = (),
    controls: Sequence[ControlClip] = (),
    **options: Any,
) -> Run:
    """Return the run that makes `blocks` blocks with the parts of `engine`, without files or a request.

    `condition_of`: by block index. `directions`, `takes`: as users write them. `width`, `height`: pixels. `given`,
    `source`: the latents `b c t h w` of a clip to continue, or to restyle. The other options are fields of `Run`.
    Raises `BadInput` for directions or takes that do not fit, or for a model that is missing.
    """
    models = {"drafter": engine.drafter, "target": engine.target}
    sizes = {role: model.block_frames for role, model in models.items() if model}
    plan = plan_blocks(
        route,
        blocks=blocks,
        block_frames=sizes,
        scorer=engine.scorer is not None,
        lead=Lead(frames=0 if given is None else given.shape[2]),
        directions=directions,
        takes=takes,
        strengths=strengths,
    )
    stride = engine.codec.spatial_stride
    channels = engine.codec.latent_channels
    noise = KeyedNoise(seed=seed, channels=channels, height=height // stride, width=width // stride)
    restyle = None if source is None else InputClip(source, plan.spans[0].start, plan.strengths)
    start = None if given is None else StartClip(given)
    inputs = BlockInputs(noise, condition_of, start, restyle, tuple(controls))
    return Run(engine=engine, plan=plan, inputs=inputs, **options)
