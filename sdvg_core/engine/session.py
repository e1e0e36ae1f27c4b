"""Memoised and timed calls to the engine of one run; a stored result skips the call.

So a repeated run goes through the same loop as any other without calling a model; there is no separate replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .inputs import BlockCall, BlockInputs, KeyedNoise
from .pixels import Decoder, Pixels
from .protocols import BlockGenerator, Engine, steps_made
from .records import Stopwatch
from .reuse import Reuse, Tensors, begun_key, block_key, remember_key, scores_key
from .types import Block, Cost, FiniteChecks, Generated, History, Span

ModelRole = Literal["drafter", "target"]
TIMED_AS = {"drafter": "draft", "target": "target"}
"""Role -> part of the stopwatch."""


class Session:
    """The engine of one run. `watch`: times real calls. `checks`: finds NaN and infinity, read once a block.

    `handover`: number of a draft's first predictions that are stored with it, as the target may go on from them.
    """

    def __init__(
        self, engine: Engine, noise: KeyedNoise, handover: int, clock: Callable[[], Any], reuse: Reuse | None
    ) -> None:
        self.watch = Stopwatch(clock)
        self.checks = FiniteChecks()
        self.decoder = Decoder(engine.codec, reuse, self.watch)
        self._engine = engine
        self._noise = noise
        drafted = steps_made(engine.drafter) if engine.drafter else 0
        # How many first predictions are stored with a whole block; the target's are not handed on.
        self._predictions_kept = {"drafter": min(handover, drafted), "target": 0}
        self._reuse = reuse

    def generate(self, role: ModelRole, call: BlockCall) -> Generated:
        """Generate a block, or return the stored one. Its latents are added to `checks`."""
        model: BlockGenerator | None = getattr(self._engine, role)
        assert model is not None, "check_parts asks for it"
        key = ""
        if self._reuse:
            part_keys = self._reuse.part_keys
            key = block_key(getattr(part_keys, role), part_keys.codec, self._noise, call)
            if known := self._known_block(key, role, call):
                return known
        with self.watch.part(TIMED_AS[role]):
            made = model.generate(call)
        self.checks.add(made.latents, call.span, f"{model.name} latents", role)
        self._keep_block(key, role, call, made)
        return made

    def score(self, pixels: Pixels, text: str, numbers: Sequence[int]) -> tuple[float, ...]:
        """Score frames, by their indices `numbers`, under the prompt `text`; the scores are exact in float32."""
        scorer = self._engine.scorer
        assert scorer is not None, "check_parts asks for it"
        key = ""
        if self._reuse:
            key = scores_key(self._reuse.part_keys.scorer, pixels.key, text, numbers)
            known = self._reuse.store.get(key)
            if known and _fits(known, (len(numbers),)):
                return read_scores(known[0])
        frames = pixels.frames()
        if len(numbers) < pixels.count:
            # Indexing with a list would copy it to the device and wait.
            frames = torch.stack([frames[:, number] for number in numbers], dim=1)
        with self.watch.part("score"):
            scores = scorer.score(frames, text)
        if self._reuse:
            self._reuse.store.put(key, (scores.float(),))
        return read_scores(scores)

    def _known_block(self, key: str, role: ModelRole, call: BlockCall) -> Generated | None:
        """Return a stored block. A call that stops early takes the whole block's first predictions, or those alone.

        Stored are the first predictions and the block, under `key`, which does not depend on `call.stop`; of a call
        that stopped, its predictions, under `begun_key`. Of a call that stops early only the predictions count.
        """
        whole = self._stored(key, call.span, self._predictions_kept[role] + 1)
        if whole is not None:
            *predictions, block = whole
            return Generated(tuple(predictions[: call.stop]), block=block)
        if call.stop is None:
            return None
        begun = self._stored(begun_key(key, call.stop), call.span, call.stop)
        return Generated(begun) if begun else None

    def _stored(self, key: str, span: Span, least: int) -> Tensors | None:
        """Return a stored result of at least `least` finite tensors of the block's shape, or None."""
        assert self._reuse is not None
        kept = self._reuse.store.get(key)
        if kept is None or len(kept) < least or not _fits(kept, self._noise.shape(span)):
            return None
        return kept if all(map(_is_finite, kept)) else None

    def _keep_block(self, key: str, role: ModelRole, call: BlockCall, made: Generated) -> None:
        if not self._reuse:
            return
        if call.stop is None:
            tensors = (*made.predictions[: self._predictions_kept[role]], made.latents)
        else:
            tensors = made.predictions[: call.stop]
            key = begun_key(key, call.stop)
        on_cpu = tensors[0].device.type == "cpu"
        copies = tensors if on_cpu else torch.stack(tensors).cpu().unbind()  # one copy, as each waits
        for tensor, copy in zip(tensors, copies, strict=True):
            remember_key(tensor, copy)
        if all(map(_is_finite, copies)):
            self._reuse.store.put(key, copies)


def read_scores(scores: Tensor) -> tuple[float, ...]:
    """Return scores, `(f,)` on the CPU, as numbers that are exact in float32."""
    return tuple(scores.float().tolist())


def _fits(kept: Sequence[Tensor], shape: Sequence[int]) -> bool:
    """True if stored tensors are float32 of this shape; they may come from a file."""
    return all(tensor.dtype == torch.float32 and tuple(tensor.shape) == tuple(shape) for tensor in kept)


def _is_finite(tensor: Tensor) -> bool:
    """True if a tensor has no NaN or infinity. The sum is 50 times as fast as checking each value."""
    return bool(torch.isfinite(tensor.sum()))


@dataclass(eq=False)
class OwnDrafts:
    """The drafts of a run, each continuing the one before it and not the committed block (an option of the paper).

    They do not depend on decisions. `history`: the drafts so far. A draft that no block asked for, such as that of
    a block by the target, is made when a later one needs it. Drafts are decoded only if the drafter's context needs
    pixels; that counts as part of the draft.
    """

    session: Session
    spans: Sequence[Span]
    inputs: BlockInputs
    history: History
    _newest: Block | None = None

    def draft(self, span: Span, stop: int | None = None) -> Generated:
        """Generate the draft at `span` after those before it, at their joint cost. `stop`: see `BlockCall`."""
        caught_up = Cost()
        decoder = Decoder(self.session.decoder.codec)
        for earlier in self.spans:
            if self.history.frames <= earlier.start < span.start:
                if self._newest is None or self._newest.span != earlier:
                    caught_up += self._make(earlier).cost
                block = self._newest
                assert block is not None
                pixels = decoder.pixels(self.history, block)
                self.history = self.history.commit(block, pixels.anchors, pixels.state)
        made = self._make(span, stop)
        return replace(made, cost=caught_up + made.cost)

    def _make(self, span: Span, stop: int | None = None) -> Generated:
        call = self.inputs.call(self.history, span, stop)
        made = self.session.generate("drafter", call)
        if stop is None:
            self._newest = Block(span, made.latents, call.condition)
        return made
