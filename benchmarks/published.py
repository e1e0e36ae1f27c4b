"""The authors' execution, made of wrappers around the parts, so that the loop needs no special case for it.

It does more work than ours, none of which changes the video. It drafts and scores block 0, which is never kept. It
fills the target's context before every block, whether or not the target is needed. It runs five passes (the
schedule `reference5`). And it scores frame by frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sdvg_core.causal_wan.context import ContextPolicy, Model, Prepared
from sdvg_core.engine.history import History
from sdvg_core.engine.parts import BlockGenerator, NoiseSource, Scorer
from sdvg_core.engine.types import Condition, Generated, Span
from sdvg_core.engine.wrapping import WrappedGenerator


class FillsBoth(WrappedGenerator):
    """A drafter that also fills the target's context before each block; the draft's work counts both."""

    def __init__(self, inner: BlockGenerator, target: BlockGenerator) -> None:
        super().__init__(inner)
        self._target = target

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
        stop: int | None = None,
    ) -> Generated:
        """Fill the target's context, then draft."""
        # As every step's result is given, all that is left for the target is its context.
        nothing = (torch.zeros(1),) * len(self._target.timesteps)
        filled = self._target.generate(history, span, noise, condition, nothing)
        draft = self.inner.generate(history, span, noise, condition, given, stop)
        return replace(draft, work=draft.work + filled.work)


class OnceABlock:
    """A context policy that prepares a block's context only once, however often it is asked."""

    def __init__(self, inner: ContextPolicy) -> None:
        self._inner = inner
        self._newest: tuple[tuple[History, Span, Condition, tuple[int, int]], Prepared] | None = None

    @property
    def anchor_horizon(self) -> int:
        """The inner policy's horizon."""
        return self._inner.anchor_horizon

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Return the context of the block at `span`; denoising steps overwrite only their own slots."""
        asked = (history, span, condition, size)
        if self._newest and self._newest[0] == asked:
            return replace(self._newest[1], passes=0, encodes=0)
        self._newest = None  # frees the old cache before the new one is made
        prepared = self._inner.prepare(model, history, span, condition, size)
        self._newest = (asked, prepared)
        return prepared


class FrameByFrame:
    """A scorer that scores each frame in its own call."""

    def __init__(self, inner: Scorer) -> None:
        self._inner = inner

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return `(f,)` scores of `b f c h w`."""
        return torch.cat([self._inner.score(frame, prompt) for frame in frames.split(1, dim=1)])

    def describe(self) -> Mapping[str, Any]:
        """Return the inner scorer's settings."""
        return self._inner.describe()


class Unseeing:
    """Replaces the scorer where nothing is scored: zeros for every frame, at no cost."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return `(f,)` zeros."""
        return torch.zeros(frames.shape[1])

    def describe(self) -> Mapping[str, Any]:
        """Return settings without a name."""
        return {"name": "none", "notes": ()}
