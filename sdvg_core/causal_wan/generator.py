"""Causal Wan models as block generators (few denoising steps, history as context), and the engine of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..devices.compiling import float64_device
from ..devices.device import begin_upload, current_device, device_clock
from ..engine.inputs import BlockCall, Control
from ..engine.protocols import BlockGenerator, Engine, Scorer, VideoCodec
from ..engine.types import Condition, Cost, Generated
from ..engine.wrappers import FramewiseAdapter
from ..errors import BadInput
from ..settings.context import Context, Recompute
from ..settings.schedules import lowered
from .attention import Grid
from .context import AnchorEncoder, Model, ModelContext, RecomputedContext, RollingContext, Wan
from .forward import ControlBranch, TextKV, denoise_pass, project_text

REMEMBERED_PROMPTS = 2
"""Prompts whose cross-attention keys and values are memoised."""
REMEMBERED_TABLES = 4
"""Memoised rotary tables: `RecomputedContext` needs one for the window and one for the block."""


class CausalWanGenerator:
    """A block generator over a causal Wan 2.1 tree. Between calls it keeps only caches.

    `context`: the policy, not shared with another generator. `before_pass`: called with "context" or "denoise"
    before every forward pass; the generator stays usable if it raises. `clock`: None for `device_clock`.
    """

    def __init__(
        self,
        wan: Wan,
        *,
        name: str,
        context: ModelContext,
        before_pass: Callable[[str], None] = lambda kind: None,
        clock: Callable[[], Any] | None = None,
    ) -> None:
        tree = wan.tree
        ops = wan.ops
        device = wan.device
        more = wan.control.vace_blocks if wan.control is not None else ()
        self.name = name
        self.block_frames = wan.preset.block_frames
        self.latent_channels = int(tree.out_dim)
        self._schedule = wan.preset.steps
        self._first_schedule = wan.preset.first_steps
        self.timesteps = tuple(step.timestep for step in self._schedule)
        self.first_timesteps = tuple(step.timestep for step in self._first_schedule)
        self.draft_steps = wan.preset.draft_steps
        self.anchor_horizon = context.anchor_horizon
        self._context = context
        self._clock = clock or device_clock(device)

        # Not methods of this object: a reference cycle would keep gigabytes of keys and values until Python next
        # collects cycles.
        @lru_cache(REMEMBERED_PROMPTS)
        def text_of(condition: Condition) -> TextKV:
            embedding = condition.embedding.to(device)
            if embedding.shape[-1] != tree.text_dim:
                width = f"{embedding.shape[-1]} channels, not {tree.text_dim}"
                raise BadInput(f"the {name}'s text embeddings have {width}; use its text encoder (UMT5-XXL)")
            return project_text(tree, embedding, ops, more)

        @lru_cache(REMEMBERED_TABLES)
        def rope(first: int, grid: Grid) -> Any:
            return ops.rope(tree, first, grid, device)

        self._model = Model(wan=wan, text_of=text_of, rope=rope, before_pass=before_pass)

    @torch.inference_mode()
    def generate(self, call: BlockCall) -> Generated:
        """Generate the block by Self-Forcing's formulas. Raises `BadInput` for a prompt of another text encoder."""
        span = call.span
        condition = call.condition
        model = self._model
        device = model.wan.device
        with current_device(device):
            # By the index in the clip: a continued clip already has its first block.
            restyle = call.restyle
            schedule = lowered(self._schedule if span.index else self._first_schedule, restyle.share)
            # One prediction for each step done: those handed over, or the clip to restyle in place of the first.
            predictions = [prediction.to(device) for prediction in call.handed_over]
            clip = None if restyle.latents is None else restyle.latents.to(device)
            if clip is not None and not predictions:
                predictions = [clip] * restyle.skip
            ends = [end for end in (call.stop, self.draft_steps) if end is not None]
            steps = list(enumerate(schedule))[len(predictions) : min(ends, default=len(schedule))]
            first = 0 if predictions else 1
            del steps[first : first + call.left_out]
            # Upload all noise at once, or the device would wait at every step: b c t h w by number of the step, and
            # that of step 0 to begin with.
            numbers = dict.fromkeys((0, *(number for number, _ in steps)))
            drawn = begin_upload(torch.stack([call.noise.draw(span, number) for number in numbers]), device)
            noise = dict(zip(numbers, drawn, strict=True))
            x = noise[0]

            # 1. Update the keys and values for the history.
            began = self._clock()
            prepared = self._context.prepare(model, call.history, span, condition, (x.shape[-2], x.shape[-1]))
            context_seconds = self._clock() - began

            # 2. Denoise: the first step from pure noise, or from the clip to restyle; each later one from the last
            # prediction, re-noised.
            inputs = model.pass_at(prepared.slots, prepared.cache, condition, x)
            if call.controls:
                inputs = replace(inputs, control=self._branch(call.controls, inputs.text))
            for number, step in steps:
                clean = predictions[-1] if predictions else clip
                if clean is not None:
                    x = renoise(clean, noise[number], step.sigma)
                model.before_pass("denoise")
                velocity = denoise_pass(model.wan.tree, x, step.timestep, inputs)
                predictions.append(predict_clean(x, velocity, step.sigma))

            # 3. The last prediction is the block, or the one that another model continues.
            cost = Cost(
                denoising_passes=len(steps),
                context_passes=prepared.passes,
                encodes=prepared.encodes,
                context_seconds=context_seconds,
            )
            return Generated(tuple(predictions), cost)

    def _branch(self, controls: Sequence[Control], text: TextKV) -> ControlBranch:
        wan = self._model.wan
        if wan.control is None:
            raise BadInput(f"the {self.name} has no control module; load one, or leave the control out")
        layers = len(wan.tree.blocks)
        loaded = [replace(control, context=control.context.to(wan.device)) for control in controls]
        return ControlBranch(wan.control, layers, text[layers:], loaded, wan.ops)


def build_engine(
    drafter: Wan | BlockGenerator | None,
    target: Wan | BlockGenerator | None,
    codec: VideoCodec,
    scorer: Scorer | None,
    *,
    block_length: int | None = None,
    before_pass: Callable[[str], None] = lambda kind: None,
    clock: Callable[[], Any] | None = None,
) -> Engine:
    """Return the engine for one video. Loads nothing; the K/V caches live as long as the engine.

    `drafter`, `target`: None if no block needs it; a custom model is used as it is. `block_length`: latent frames
    of a block; None for the target's, or those of the only model. A drafter with smaller ones is wrapped in a
    `FramewiseAdapter`. `before_pass`: called with "context" or "denoise" before
    every forward pass; may raise to interrupt. `clock`: for both models; None for `device_clock`.
    """
    encoder = AnchorEncoder(codec.encode)

    def build(name: str, wan: Wan | BlockGenerator, *, undo: int) -> BlockGenerator:
        if not isinstance(wan, Wan):
            return wan
        context = model_context(wan.preset.context, encoder, undo=undo)
        return CausalWanGenerator(wan, name=name, context=context, before_pass=before_pass, clock=clock)

    sizes = [
        model.preset.block_frames if isinstance(model, Wan) else model.block_frames
        for model in (target, drafter)
        if model
    ]
    length = block_length or sizes[0]
    sub_blocks = max(length // sizes[-1], 1)
    # A new draft overwrites the slots of a rejected one; but sub-blocks of the rejected one may have pushed frames
    # out of the window, which `RollingContext` restores.
    drafts: BlockGenerator | None = build("drafter", drafter, undo=sub_blocks - 1) if drafter else None
    targets: BlockGenerator | None = build("target", target, undo=0) if target else None
    if drafts and drafts.block_frames != length:
        drafts = FramewiseAdapter(drafts, length)
    return Engine(
        drafter=drafts,
        target=targets,
        codec=codec,
        scorer=scorer,
    )


def model_context(settings: Context, encoder: AnchorEncoder, *, undo: int = 0) -> ModelContext:
    """Return the context of one generator. `undo`: see `RollingContext`."""
    if isinstance(settings, Recompute):
        first = settings.keep_first_frame
        return RecomputedContext(encode_anchor=encoder, frames=settings.context_frames, keep_first=first)
    return RollingContext(
        window=settings.window,
        sink=settings.kept_frames,
        relative=settings.rotates_later,
        trained=settings.trained,
        means=settings.context_memory == "memrope",
        recache=settings.recache,
        flush=settings.flush,
        undo=undo,
    )


def predict_clean(x: Tensor, velocity: Tensor, sigma: float) -> Tensor:
    """Return x0 = x - sigma v, computed in float64, in the dtype of `x`."""
    device = float64_device(x.device)
    clean = x.to(device).double() - sigma * velocity.to(device).double()
    return clean.to(x.dtype).to(x.device)


def renoise(clean: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return (1 - sigma) x0 + sigma noise, computed in float32, in the dtype of `clean`."""
    return ((1 - sigma) * clean.float() + sigma * noise.to(clean.device).float()).to(clean.dtype)
