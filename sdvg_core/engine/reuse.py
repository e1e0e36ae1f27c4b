"""Re-use of what earlier runs made, wherever that is provably what this run would make.

Before the first pass, a dry run: the same loop over the store alone, with models that only look results up and a
codec without pixels. It decides as always, and ends at the first block with a cache miss. The blocks before that
are not made again. From there on the real models make what is missing, and every result goes into the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .cascade import stages
from .keys import Identities, Keys
from .noise import KeyedNoise
from .protocols import BlockCall, BlockGenerator, Engine, VideoCodec, WrappedGenerator, steps_made
from .records import BlockRecord
from .router import RouterConfig
from .speculate import EmittedBlock
from .store import PixelStore, Result, Store
from .timeline import DecodedBlock, Timeline, replay
from .types import Block, Generated, Span


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reuse:
    """A store, and the identities of the parts of this run. `pixels`: a store of decoded frames, or None."""

    store: Store
    identities: Identities
    pixels: PixelStore | None = None


class ReuseSession:
    """What one run takes from the store, and what it puts there."""

    def __init__(self, reuse: Reuse, noise: KeyedNoise, router: RouterConfig) -> None:
        self.store = reuse.store
        self.pixels = reuse.pixels
        self.keys = Keys(reuse.identities, noise)
        self.noise = noise
        self._router = router
        self.pixel_keys: list[str] = []
        self.used: list[tuple[str, ...]] = []  # by block of the run, the keys of the results it was made from

    def replay(
        self, blocks: tuple[Block, ...], codec: VideoCodec, start: Timeline, *, to_go_on: bool
    ) -> Iterator[DecodedBlock]:
        """Replay `blocks`, decoding those whose pixels are not kept. `to_go_on`: whether more follow."""
        if self.pixels is None:
            yield from replay(blocks, codec, start)
            return
        latents = [block.latents for block in blocks]
        keys = [self.keys.pixels(latents[: place + 1]) for place in range(len(blocks))]
        first = self.pixels.first_to_decode(keys, to_go_on=to_go_on)
        timeline = start
        for place, (block, key) in enumerate(zip(blocks, keys, strict=True)):
            if place < first:
                frames = self.pixels.frames(key)
                state = self.pixels.state(key) if place == first - 1 else None
                decoded = DecodedBlock(
                    timeline.commit(block, frames, state, codec.temporal_stride), frames, stored=True
                )
            else:
                decoded = timeline.decode(block, codec)
                self._keep(key, decoded.frames, decoded.timeline.decode_state)
            timeline = decoded.timeline
            yield decoded
        self.pixel_keys += keys

    def remember(self, emitted: EmittedBlock) -> None:
        """Keep the pixels and scores of a new block, and which results it was made from."""
        self._remember_scores(emitted)
        self.used.append(self.store.take_used())
        key = self.keys.pixels([block.latents for block in emitted.timeline.history.blocks])
        self.pixel_keys.append(key)
        self._keep(key, emitted.frames, emitted.timeline.decode_state)

    def _keep(self, key: str, frames: Tensor, state: Any) -> None:
        if self.pixels:
            self.pixels.limit = self.store.limit - self.store.bytes
            self.pixels.put(key, frames, state)

    def engine(self, engine: Engine) -> Engine:
        """Return the engine with models that look into the store before they make a block."""
        return replace(engine, drafter=self._model(engine, "drafter"), target=self._model(engine, "target"))

    def dry_run(
        self, engine: Engine, clip: tuple[Block, ...], loop: Callable[[Engine, Timeline], Iterable[EmittedBlock]]
    ) -> list[tuple[Block, BlockRecord]]:
        """Return the first blocks of a run that need not be made again, with their records. No model is called.

        `clip`: the blocks of the clip to continue; `loop`: makes the run's blocks after them.
        """
        recall = _Recall(engine.codec, self.store, self.keys)
        known = Engine(
            drafter=self._model(engine, "drafter", recall_only=True),
            target=self._model(engine, "target", recall_only=True),
            codec=recall,
            scorer=recall if engine.scorer else None,
        )
        start = Timeline()
        for decoded in replay(clip, recall, start):
            start = decoded.timeline
        reused = []
        with suppress(CacheMiss):
            for emitted in loop(known, start):
                # It will be decoded once, to be shown; dropped drafts are not decoded.
                reused.append((emitted.block, replace(emitted.record, reused=True, decodes=1)))
                self.used.append(self.store.take_used())
        return reused

    def _remember_scores(self, emitted: EmittedBlock) -> None:
        """Keep the scores of a block's draft."""
        decision = emitted.record.decision
        if not decision.scored or emitted.draft is None:
            return
        committed = [self.keys.tensor(block.latents) for block in emitted.timeline.history.blocks[:-1]]
        text = emitted.block.condition.gate_text
        draft = self.keys.tensor(emitted.draft.latents)
        scores = decision.frame_scores
        for frames in stages(self._router, emitted.block.span.index, len(scores)):
            called = [score for frame in frames if (score := scores[frame]) is not None]
            if called:
                key = self.keys.scores(committed, draft, text, frames)
                self.store.put(key, (torch.tensor(called, dtype=torch.float32),))

    def _model(self, engine: Engine, role: str, *, recall_only: bool = False) -> BlockGenerator | None:
        model: BlockGenerator | None = getattr(engine, role)
        if model is None:
            return None
        # A handover starts from the drafter's first estimates, so they are kept too.
        # The last one of a draft is the draft.
        steps = min(self._router.handover, steps_made(model) - 1) if role == "drafter" else 0
        identity: str = getattr(self.keys.identities, role)
        return _StoredBlocks(model, identity, steps, self, recall_only=recall_only)


class CacheMiss(Exception):
    """The store does not have what the loop asked for."""


class _StoredBlocks(WrappedGenerator):
    """A model that looks into the store before it makes a block, and puts there what it made.

    `recall_only`: it never makes one, and needs no pixels. `steps`: how many steps' estimates are kept too.
    """

    def __init__(
        self, inner: BlockGenerator, identity: str, steps: int, session: ReuseSession, *, recall_only: bool
    ) -> None:
        super().__init__(inner)
        self._identity = identity
        self._steps = steps
        self._recall_only = recall_only
        self._session = session
        if recall_only:
            self.anchor_horizon = 0

    def generate(self, call: BlockCall) -> Generated:
        """Return the block from the store, or make it; with `recall_only`, raise `CacheMiss` instead."""
        span = call.span
        stop = call.stop
        keys = self._session.keys
        key = keys.block(self._identity, call)
        whole = self._stored(key, span, self._steps + 1)
        if whole is not None:
            keys.name(key, whole[:-1], whole[-1])
            return Generated(whole[:stop])
        begun = None if stop is None else self._stored(keys.begun(key, stop), span, stop)
        if begun is not None:
            keys.name(key, begun)
            return Generated(begun)
        if self._recall_only:
            raise CacheMiss
        made = self.inner.generate(call)
        first = made.predictions[: self._steps]
        kept = _on_cpu(first if stop is not None else (*first, made.latents))
        if all(map(_is_finite, kept)):
            self._session.store.put(key if stop is None else keys.begun(key, stop), kept)
        keys.name(key, first, made.latents if stop is None else None)
        return made

    def _stored(self, key: str, span: Span, least: int) -> Result | None:
        """Return a stored result of at least `least` tensors; None if no sound one is stored."""
        kept = self._session.store.get(key)
        if kept is None or len(kept) < least or not _fits(kept, self._session.noise.shape(span)):
            return None
        return kept if all(map(_is_finite, kept)) else None


class _Recall:
    """A codec that only counts pixel frames, and a scorer that only returns what is in the store.

    The state is the keys of what was decoded. A frame holds only the number of the `decode` call it came from, and
    its own in the block, by which `score` recognises it.
    """

    def __init__(self, real: VideoCodec, store: Store, keys: Keys) -> None:
        self.latent_channels = real.latent_channels
        self.temporal_stride = real.temporal_stride
        self.spatial_stride = real.spatial_stride
        self._store = store
        self._keys = keys
        self._shown: list[tuple[tuple[str, ...], str]] = []

    def decode(self, latents: Tensor, state: tuple[str, ...] | None = None) -> tuple[Tensor, tuple[str, ...]]:
        """Return as many frames as the real codec, each of two values."""
        before = state or ()
        key = self._keys.tensor(latents)
        count = latents.shape[2] * self.temporal_stride - (0 if before else self.temporal_stride - 1)
        self._shown.append((before, key))
        numbers = torch.stack((torch.full((count,), len(self._shown) - 1.0), torch.arange(count)), dim=1)
        return numbers[None, :, :, None, None], (*before, key)

    def encode(self, frames: Tensor) -> Tensor:
        """Raise `AssertionError`: a dry run encodes nothing."""
        raise AssertionError("a dry run encodes nothing")

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return the scores that an earlier run gave these frames of a draft."""
        (decoded, *_), numbers = frames[0, :, :, 0, 0].int().T.tolist()
        before, draft = self._shown[decoded]
        kept = self._store.get(self._keys.scores(before, draft, prompt, numbers))
        if kept is None or not _fits(kept, frames.shape[1:2]):
            raise CacheMiss
        return kept[0]

    def describe(self) -> Mapping[str, Any]:
        """Return nothing: the report describes the real scorer."""
        return {}


def _fits(kept: Sequence[Tensor], shape: Sequence[int]) -> bool:
    """True if a result has the right dtype and shape; it may come from a file."""
    return all(tensor.dtype == torch.float32 and tuple(tensor.shape) == tuple(shape) for tensor in kept)


def _on_cpu(estimates: Result) -> Result:
    """Return the estimates of a block on the CPU. From a device they are copied together, as each copy waits."""
    return estimates if estimates[0].device.type == "cpu" else torch.stack(estimates).cpu().unbind()


def _is_finite(tensor: Tensor) -> bool:
    """True if a tensor has no NaN and no infinity. A sum is 50 times faster than a check of each value."""
    return bool(torch.isfinite(tensor.sum()))
