"""Keys for what a run computes: a hash of everything the result depends on.

Generating, decoding and scoring are pure functions. So equal keys mean equal bits, and a result may be used again
under its key: nothing is compared, and nothing is guessed. Latents are hashed by content, not by the call that made
them, so it does not matter where a block came from.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .noise import KeyedNoise
from .protocols import BlockCall
from .types import Block, hash_tensor, hash_text


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


_TENSOR_KEYS: MutableMapping[Tensor, str] = WeakIdKeyDictionary()


def tensor_key(tensor: Tensor, copy: Tensor | None = None) -> str:
    """Return a hash of the content of a tensor of the engine, none of which is ever written into.

    It is made once in the tensor's life. `copy`: one on the CPU, which is hashed without waiting for a device.
    """
    if tensor not in _TENSOR_KEYS:
        _TENSOR_KEYS[tensor] = hash_tensor(tensor if copy is None else copy)
    return _TENSOR_KEYS[tensor]


def block_key(model: str, codec: str, noise: KeyedNoise, call: BlockCall) -> str:
    """Return the cache key of a whole block.

    `model`, `codec`: their identities; a context may use pixels of the history, which the codec decodes.
    `noise`: that of the call.
    """
    span = call.span
    blocks = call.history.blocks
    committed = [(b.span.start, b.span.frames, tensor_key(b.latents), b.condition.key) for b in blocks]
    # A model treats a prompt that is given again as a new one, even if its text is the same.
    shown = [*(b.condition for b in blocks), call.condition]
    renewed = [before is not after for before, after in pairwise(shown)]
    place = (span.index, span.take, span.start, span.frames, call.condition.key, renewed)
    handed_over = [tensor_key(estimate) for estimate in call.handed_over]
    source = call.restyle
    restyled = [] if source.latents is None else [(hash_tensor(source.latents), source.skip, source.share)]
    controls = [("control", hash_tensor(control.context), control.strength) for control in call.controls]
    return _hash("block", model, codec, astuple(noise), committed, place, handed_over, *restyled, *controls)


def begun_key(block: str, stop: int) -> str:
    """Return the key of the first `stop` estimates of the block with the key `block`, made without the rest."""
    return _hash("begun", block, stop)


def pixels_key(codec: str, blocks: Sequence[Block]) -> str:
    """Return the key of the last block's pixel frames, and of the decoder's state after them.

    `blocks`: all from the start of the clip.
    """
    return _hash("pixels", codec, [tensor_key(block.latents) for block in blocks])


def scores_key(scorer: str, pixels: str, text: str, frames: Sequence[int]) -> str:
    """Return the key of the scores that one call gave pixel frames of a block.

    `pixels`: the key of all its frames; `text`: the prompt; `frames`: the numbers of those that were scored.
    """
    return _hash("scores", scorer, pixels, text, tuple(frames))


def _hash(*parts: Any) -> str:
    return hash_text(repr(parts))
