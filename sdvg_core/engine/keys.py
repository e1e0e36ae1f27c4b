"""Keys for what a run computes: a hash of everything the result depends on.

Generating and scoring are pure functions. So equal keys mean equal bits, and a result may be used again wherever
its key turns up: nothing is compared, and nothing is guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .noise import KeyedNoise
from .protocols import BlockCall
from .types import Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """What the bits of each part's results depend on, besides its arguments: weights, patches, settings,
    arithmetic.

    Equal text must mean equal bits. Empty for a part that is not there.
    """

    drafter: str
    target: str
    codec: str
    scorer: str


class Keys:
    """The keys of one run. It knows which of the run's tensors came from which call; others are hashed."""

    def __init__(self, identities: Identities, noise: KeyedNoise) -> None:
        self.identities = identities
        self._noise = (noise.seed, noise.channels, noise.height, noise.width)
        self._tensors: MutableMapping[Tensor, str] = WeakIdKeyDictionary()
        self._conditions: dict[Condition, str] = {}

    def block(self, model: str, call: BlockCall) -> str:
        """Return the key of what `generate` returns for a call that makes the whole block.

        `model`: the model's identity.
        """
        span = call.span
        blocks = call.history.blocks
        committed = [
            (b.span.start, b.span.frames, self.tensor(b.latents), self._condition(b.condition)) for b in blocks
        ]
        # A model treats a prompt that is given again as a new one, even if its text is the same.
        shown = [*(b.condition for b in blocks), call.condition]
        renewed = [before is not after for before, after in pairwise(shown)]
        # A context may use pixels of the history, which the codec decodes.
        parts = (model, self.identities.codec, committed)
        noise = (*self._noise, span.index, span.take)
        place = (span.start, span.frames, self._condition(call.condition), renewed)
        handed_over = [self.tensor(estimate) for estimate in call.handed_over]
        source = call.restyle
        restyled = [] if source.latents is None else [(hash_tensor(source.latents), source.skip, source.share)]
        controls = [("control", hash_tensor(control.context), control.strength) for control in call.controls]
        return _hash("block", parts, noise, place, handed_over, *restyled, *controls)

    def begun(self, block: str, stop: int) -> str:
        """Return the key of the first `stop` estimates of the block with the key `block`, made without the rest."""
        return _hash("begun", block, stop)

    def scores(self, committed: Sequence[str], draft: str, text: str, frames: Sequence[int]) -> str:
        """Return the key of the scores that one call gave pixel frames of a draft.

        `committed`: the keys of the latents before it; `text`: the prompt; `frames`: their numbers in the block.
        """
        parts = (self.identities.scorer, self.identities.codec, list(committed), draft, text, tuple(frames))
        return _hash("scores", *parts)

    def pixels(self, latents: Sequence[Tensor]) -> str:
        """Return the key of the last block's pixel frames, and of the decoder's state after them.

        `latents`: of all blocks from the start of the clip.
        """
        return _hash("pixels", self.identities.codec, [self.tensor(block) for block in latents])

    def name(self, key: str, estimates: Sequence[Tensor], block: Tensor | None = None) -> None:
        """Note the tensors of the block with this key: its first `estimates`, and its latents if it is whole."""
        for step, clean in enumerate(estimates):
            self._tensors[clean] = f"{key} step {step}"
        if block is not None:
            self._tensors[block] = key

    def tensor(self, tensor: Tensor) -> str:
        """Return the key of the call a tensor came from; a hash of its content if it is not from this run."""
        if (key := self._tensors.get(tensor)) is None:
            key = self._tensors[tensor] = hash_tensor(tensor)
        return key

    def _condition(self, condition: Condition) -> str:
        if condition not in self._conditions:
            self._conditions[condition] = hash_tensor(condition.embedding) + " cut" * condition.cut
        return self._conditions[condition]


def hash_tensor(tensor: Tensor) -> str:
    """Return a hash of a tensor's values, shape and dtype, the same on every device."""
    here = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{here.dtype} {tuple(here.shape)} ".encode())
    digest.update(here.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_text(text: str) -> str:
    """Return a hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _hash(*parts: Any) -> str:
    return hash_text(repr(parts))
