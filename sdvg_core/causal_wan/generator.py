"""A causal Wan model as a block generator: a few denoising steps with the history as context."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..devices.device import current_device
from ..engine.control import Control
from ..engine.protocols import BlockCall
from ..engine.types import Condition, Generated, Work
from ..errors import BadInput
from .attention import Grid, TorchOps
from .context import ContextPolicy, Model
from .forward import PLAIN, ControlBranch, Stages, TextKV, denoise_pass, project_text
from .schedule import Schedule, lowered, predict_clean, renoise

REMEMBERED_PROMPTS = 2
"""Of which the cross-attention keys and values are kept; those of a control module come last."""
REMEMBERED_TABLES = 4
"""Rotary tables. A context that is recomputed needs one for the window and one for the block; a context pass over a
block that the model made takes the table of its denoising passes."""


def go_on(kind: str) -> None:
    """The default for `before_pass`: report nothing and never stop."""


class CausalWanGenerator:
    """Generates blocks with a causal Wan 2.1 tree. It keeps nothing between calls but a cache of its arguments.

    `context`: the policy, which belongs to this generator alone. `first_schedule`: of the clip's first block, None
    for the same. `kv_fp8`: keep keys and values in float8_e4m3fn. `stages`: of every layer, perhaps compiled.
    `control`: the module for controls, with `vace_blocks` and `vace_patch_embedding`.
    `before_pass`: called with "context" or "denoise" before every forward pass; the generator stays
    usable if it raises.
    """

    def __init__(
        self,
        tree: Any,
        *,
        name: str,
        ops: TorchOps,
        context: ContextPolicy,
        schedule: Schedule,
        first_schedule: Schedule | None = None,
        block_frames: int = 3,
        device: str | torch.device = "cpu",
        kv_fp8: bool = False,
        control: Any = None,
        stages: Stages = PLAIN,
        before_pass: Callable[[str], None] = go_on,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.block_frames = block_frames
        self.latent_channels = int(tree.out_dim)
        self._schedule, self._first_schedule = schedule, first_schedule or schedule
        self.timesteps = tuple(step.timestep for step in self._schedule)
        self.first_timesteps = tuple(step.timestep for step in self._first_schedule)
        self._context, self._clock = context, clock
        device = torch.device(device)
        self._control, more = control, control.vace_blocks if control is not None else ()

        # Not methods of this object: that would be a reference cycle, which keeps gigabytes of keys and values
        # after a run until Python next collects cycles.
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

        self._model = Model(
            tree=tree,
            ops=ops,
            device=device,
            text_of=text_of,
            rope=rope,
            before_pass=before_pass,
            kv_fp8=kv_fp8,
            stages=stages,
        )

    @property
    def anchor_horizon(self) -> int:
        """For how many of the newest latent frames the context policy may ask for pixels."""
        return self._context.anchor_horizon

    @torch.inference_mode()
    def generate(self, call: BlockCall) -> Generated:
        """Generate the block, by the formulas of Self-Forcing."""
        span, condition, noise = call.span, call.condition, call.noise
        with current_device(self._model.device):
            # By its number in the clip: a clip that is continued has its first block behind it.
            model, restyle = self._model, noise.restyle(span)
            schedule = lowered(self._schedule if span.index else self._first_schedule, restyle.share)
            x = noise.draw(span, 0).to(model.device)  # b c t h w

            # 1. Bring the keys and values up to date with the history.
            began = self._clock()
            prepared = self._context.prepare(model, call.history, span, condition, (x.shape[-2], x.shape[-1]))
            context_seconds = self._clock() - began

            # 2. Denoise: the first step from pure noise, each later one from the last estimate, re-noised. The clip
            # that is restyled stands for the estimate before the first step that is made.
            here = model.pass_at(prepared.place, prepared.cache, condition, x)
            if controls := noise.control(span):
                here = replace(here, control=self._branch(controls, here.text))
            clean = None if restyle.latents is None else restyle.latents.to(model.device)
            predictions = [given.to(model.device) for given in call.given]
            predictions = predictions or [clean for _ in range(restyle.skip) if clean is not None]
            steps = list(enumerate(schedule))[len(predictions) : call.stop]
            for number, step in steps:
                clean = predictions[-1] if predictions else clean
                if clean is not None:
                    x = renoise(clean, noise.draw(span, number), step.sigma)
                model.before_pass("denoise")
                velocity = denoise_pass(model.tree, x, step.timestep, here)
                predictions.append(predict_clean(x, velocity, step.sigma))

            # 3. The last estimate is the block, or what another model continues from.
            work = Work(
                denoising_passes=len(steps),
                context_passes=prepared.passes,
                encodes=prepared.encodes,
                context_seconds=context_seconds,
            )
            return Generated(tuple(predictions), work)

    def _branch(self, controls: Sequence[Control], text: TextKV) -> ControlBranch:
        if self._control is None:
            raise BadInput(f"the {self.name} has no control module; load one, or leave the control out")
        tree, device = self._model.tree, self._model.device
        there = [replace(one, context=one.context.to(device)) for one in controls]
        own = text[len(tree.blocks) :]
        return ControlBranch(self._control, len(tree.blocks), own, there, self._model.ops)
