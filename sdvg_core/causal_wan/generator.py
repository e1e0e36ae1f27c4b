"""A causal Wan model as a block generator: a few denoising steps over the context of the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.history import History
from ..engine.parts import NoiseSource
from ..engine.types import Condition, Generated, Span, Work
from ..errors import BadInput
from .attention import Ops
from .context import ContextPolicy, Model
from .forward import Stages, TextKV, denoise_pass, project_text, token_grid
from .rope_tables import RopeTables
from .schedule import Schedule, predict_clean, renoise

REMEMBERED_PROMPTS = 2


def _go_on(kind: str) -> None:
    """The default for `before_pass`: nothing to report and nothing to stop for."""


class CausalWanGenerator:
    """Makes blocks with a causal Wan 2.1 tree. What it keeps between calls is a memo of its arguments.

    `context`: the policy, which belongs to this generator alone. `kv_fp8`: keep keys and values in float8_e4m3fn.
    `stages`: of every layer, compiled; by default they run as they are written.
    `before_pass`: called with "context" or "denoise" before every forward pass; whatever it raises leaves the
    generator usable.
    """

    def __init__(
        self,
        tree: Any,
        *,
        name: str,
        ops: Ops,
        context: ContextPolicy,
        schedule: Schedule,
        block_frames: int = 3,
        device: str | torch.device = "cpu",
        kv_fp8: bool = False,
        stages: Stages | None = None,
        before_pass: Callable[[str], None] = _go_on,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.block_frames = block_frames
        self.latent_channels = int(tree.out_dim)
        self.timesteps = tuple(step.timestep for step in schedule)
        self._schedule, self._context, self._clock = schedule, context, clock
        device = torch.device(device)
        # No method of this object: the two would hold each other, and keep gigabytes of keys and values after a run
        # until Python next looks for such circles.
        texts = _Texts(tree, ops, device, name)
        self._model = Model(
            tree=tree,
            ops=ops,
            device=device,
            text_of=texts,
            rope=RopeTables(tree, ops, device),
            before_pass=before_pass,
            kv_fp8=kv_fp8,
            stages=stages,
        )

    @property
    def anchor_horizon(self) -> int:
        """How many of the newest latent frames' pixels the context policy may ask for."""
        return self._context.anchor_horizon

    @torch.inference_mode()
    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
    ) -> Generated:
        """Make the block at `span` after `history`, going on from the `given` clean estimates if there are any."""
        began = self._clock()
        device = self._model.device
        x = noise.draw(span, 0).to(device)
        prepared = self._context.prepare(self._model, history, span, condition, (x.shape[-2], x.shape[-1]))
        context_seconds = self._clock() - began
        tree, ops, place, stages = self._model.tree, self._model.ops, prepared.place, self._model.stages
        rope = self._model.rope(place.position, token_grid(tree, x.shape[2:]))
        here = (self._model.text_of(condition), prepared.cache, place, rope, ops, stages)

        predictions = [clean.to(device) for clean in given]
        for number in range(len(given), len(self._schedule)):
            step = self._schedule[number]
            if predictions:
                x = renoise(predictions[-1], noise.draw(span, number), step.sigma)
            self._model.before_pass("denoise")
            velocity = denoise_pass(tree, x, step.timestep, *here)
            predictions.append(predict_clean(x, velocity, step.sigma))
        work = Work(
            denoising_passes=len(self._schedule) - len(given),
            context_passes=prepared.passes,
            encodes=prepared.encodes,
            context_seconds=context_seconds,
        )
        return Generated(tuple(predictions), work)


class _Texts:
    """The cross-attention K/V of prompts, computed once as long as a prompt is in use."""

    def __init__(self, tree: Any, ops: Ops, device: torch.device, name: str) -> None:
        self._tree, self._ops, self._device, self._name = tree, ops, device, name
        self._known: tuple[tuple[Condition, TextKV], ...] = ()

    def __call__(self, condition: Condition) -> TextKV:
        for known, text in self._known:
            if known is condition:
                return text
        embedding = condition.embedding.to(self._device)
        if embedding.shape[-1] != self._tree.text_dim:
            raise BadInput(
                f"expected text embeddings of {self._tree.text_dim} channels for the {self._name}, but got "
                f"{embedding.shape[-1]}; use the text encoder that belongs to it (UMT5-XXL for Wan 2.1)"
            )
        text = project_text(self._tree, embedding, self._ops)
        self._known = ((condition, text), *self._known)[:REMEMBERED_PROMPTS]
        return text
