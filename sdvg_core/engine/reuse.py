"""Memoise results across runs: cache keys, and stores in host memory.

Generating, decoding and scoring are pure functions, and a key is a hash of everything that a result depends on, so
equal keys mean equal bits. Latents are hashed by content and not by the call that made them, so it does not matter
where a block came from; hashing the calls would be cheaper, but a continued clip has none.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .inputs import BlockCall, KeyedNoise
from .types import Block, hash_tensor, hash_text

GIGABYTE = 1 << 30
Tensors = tuple[Tensor, ...]
UNKNOWN = object()
"""Marks a decoder state that is not stored; None is a valid state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartKeys:
    """Texts that identify the weights, patches, settings and arithmetic of each part.

    Equal text must mean equal bits for equal arguments. Empty for a part that is missing.
    """

    drafter: str
    target: str
    codec: str
    scorer: str


_TENSOR_KEYS: MutableMapping[Tensor, str] = WeakIdKeyDictionary()


def tensor_key(tensor: Tensor) -> str:
    """Return a hash of a tensor's content, memoised by object: the engine never writes into a tensor."""
    if tensor not in _TENSOR_KEYS:
        remember_key(tensor, tensor)
    return _TENSOR_KEYS[tensor]


def remember_key(tensor: Tensor, copy: Tensor) -> None:
    """Memoise the key of a tensor by a copy of it on the CPU, so that asking for it never waits for a device."""
    if tensor not in _TENSOR_KEYS:
        _TENSOR_KEYS[tensor] = hash_tensor(copy)


def block_key(model: str, codec: str, noise: KeyedNoise, call: BlockCall) -> str:
    """Return the cache key of a whole block.

    `model`, `codec`: their keys (a context may need pixels, which the codec decodes). `noise`: of the call.
    """
    span = call.span
    blocks = call.history.blocks
    committed = [(b.span.start, b.span.frames, tensor_key(b.latents), b.condition.key) for b in blocks]
    # A repeated prompt is a new condition to the models, even with the same text.
    shown = [*(b.condition for b in blocks), call.condition]
    renewed = [before is not after for before, after in pairwise(shown)]
    place = (span.index, span.take, span.start, span.frames, call.condition.key, renewed)
    handed_over = [tensor_key(estimate) for estimate in call.handed_over]
    source = call.restyle
    restyled = [] if source.latents is None else [(tensor_key(source.latents), source.skip, source.share)]
    controls = [("control", hash_tensor(control.context), control.strength) for control in call.controls]
    fewer = [("left out", call.left_out)] if call.left_out else []
    return _hash("block", model, codec, noise.key, committed, place, handed_over, *restyled, *controls, *fewer)


def begun_key(block: str, stop: int) -> str:
    """Return the cache key of the first `stop` predictions of a block, made without the rest. `block`: its key."""
    return _hash("begun", block, stop)


def pixels_key(codec: str, blocks: Sequence[Block]) -> str:
    """Return the cache key of the frames of a clip's last block (of `blocks`), and of the state after them."""
    return _hash("pixels", codec, [tensor_key(block.latents) for block in blocks])


def scores_key(scorer: str, pixels: str, text: str, frames: Sequence[int]) -> str:
    """Return the cache key of one call to the scorer.

    `pixels`: key of the block's frames. `text`: the prompt. `frames`: indices of the scored frames.
    """
    return _hash("scores", scorer, pixels, text, tuple(frames))


def _hash(*parts: Any) -> str:
    return hash_text(repr(parts))


# --- the stores


@dataclass(slots=True)
class _Entry:
    result: Tensors
    run: int


class Store:
    """Keeps results on the CPU, up to `limit` bytes. Evicts those of the oldest run first, never the newest run's.

    `forgotten`: results of earlier runs evicted by the newest one. `refused`: its own results that did not fit.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.bytes = 0
        self.forgotten = self.refused = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._used: dict[str, None] = {}
        self._run = 0
        self._lock = threading.Lock()  # ComfyUI's page reads it from another thread

    def begin_run(self, limit: float | None = None) -> None:
        """Begin a run, perhaps with a new limit. Results put or got from now on count as the newest run's."""
        with self._lock:
            self.limit = self.limit if limit is None else limit
            self._run += 1
            self.forgotten = self.refused = 0
            self._used = {}
            self._make_room(0)

    def get(self, key: str) -> Tensors | None:
        """Return a result, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.run = self._run
            self._entries.move_to_end(key)
            self._used[key] = None
            return entry.result

    def put(self, key: str, result: Tensors) -> None:
        """Keep CPU copies of a result's tensors if they fit; never mutate them."""
        here = tuple(tensor.detach().cpu() for tensor in result)
        size = sum(tensor.nbytes for tensor in here)
        with self._lock:
            self._used[key] = None
            if key in self._entries:
                self._drop(key)
            if not self._make_room(size):
                self.refused += 1
                return
            self._entries[key] = _Entry(here, self._run)
            self.bytes += size

    def has(self, keys: Iterable[str]) -> bool:
        """True if all these results are stored. Does not count as use."""
        with self._lock:
            return all(key in self._entries for key in keys)

    def take_used(self) -> dict[str, Tensors]:
        """Return the results put or got since the last call, or since the run began, by key."""
        with self._lock:
            used = {key: self._entries[key].result for key in self._used if key in self._entries}
            self._used = {}
            return used

    def drop(self, keys: Iterable[str]) -> None:
        """Drop these results."""
        with self._lock:
            for key in self._entries.keys() & set(keys):
                self._drop(key)

    @property
    def newest(self) -> Mapping[str, Tensors]:
        """Results that the newest run put or got."""
        with self._lock:
            return {key: entry.result for key, entry in self._entries.items() if entry.run == self._run}

    def _make_room(self, size: int) -> bool:
        if size > self.limit:
            return False
        while self.bytes + size > self.limit:
            oldest = next(iter(self._entries.values())).run
            if oldest == self._run:
                return False
            # Evict a run from its end: without its beginning, the rest is useless.
            self._drop(next(key for key in reversed(self._entries) if self._entries[key].run == oldest))
            self.forgotten += 1
        return True

    def _drop(self, key: str) -> None:
        self.bytes -= sum(tensor.nbytes for tensor in self._entries.pop(key).result)


class PixelStore:
    """Keeps decoded blocks on the CPU, and decoder states in the memory left. Evicts the least recently used.

    Frames that float16 holds exactly are stored as float16.
    """

    def __init__(self, limit: float = 0.0) -> None:
        self.limit = limit
        self._frames: OrderedDict[str, tuple[Tensor, torch.device, torch.dtype]] = OrderedDict()
        self._states: OrderedDict[str, tuple[Any, torch.device]] = OrderedDict()

    def put(self, key: str, frames: Tensor, state: Any) -> None:
        """Store a block's frames and the decoder's state after it, as far as they fit."""
        half = frames.half()
        exact = half if torch.equal(half.to(frames.dtype), frames) else frames
        self._frames.pop(key, None)  # so that it becomes the newest
        self._states.pop(key, None)
        if exact.nbytes <= self.limit:
            self._frames[key] = exact.cpu(), frames.device, frames.dtype
        self.shrink(self.limit, _bytes(state))
        if _bytes(state) <= self.limit - _bytes(self._frames.values()):
            self._states[key] = _moved(state, torch.device("cpu")), frames.device

    def shrink(self, limit: float, room: int = 0) -> None:
        """Set the limit and evict what exceeds it; evict states until `room` more bytes are free."""
        self.limit = limit
        while self._frames and _bytes(self._frames.values()) > limit:
            self._frames.popitem(last=False)
        left = limit - _bytes(self._frames.values()) - room
        while self._states and _bytes(self._states.values()) > max(left, 0):
            self._states.popitem(last=False)

    def count_to_decode(self, keys: Sequence[str], *, to_go_on: bool) -> int:
        """Return how many of the blocks `keys` must be decoded to show them all.

        `to_go_on`: whether the next block will be decoded, which needs the decoder's state after them.
        """
        decoded: set[str] = set()
        wanted = [place for place, key in enumerate(keys) if key not in self._frames]
        for place in (*wanted, *([len(keys)] if to_go_on else [])):
            decoded.update(keys[place : place + 1])
            for key in reversed(keys[:place]):  # decode back to a known state
                if key in decoded or key in self._states:
                    break
                decoded.add(key)
        return len(decoded)

    def frames(self, key: str) -> Tensor | None:
        """Return a block's frames on their device, or None."""
        if key not in self._frames:
            return None
        self._frames.move_to_end(key)
        frames, device, dtype = self._frames[key]
        return frames.to(device, dtype)

    def state(self, key: str) -> Any:
        """Return the decoder's state after a block, or `UNKNOWN`."""
        if key not in self._states:
            return UNKNOWN
        self._states.move_to_end(key)
        state, device = self._states[key]
        return _moved(state, device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reuse:
    """The stores of a run, and the keys of its parts. `pixels`: in memory that `store` leaves; or None."""

    store: Store
    part_keys: PartKeys
    pixels: PixelStore | None = None


def _moved(state: Any, device: torch.device) -> Any:
    if isinstance(state, Tensor):
        return state.to(device)
    return tuple(_moved(part, device) for part in state) if isinstance(state, tuple | list) else state


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, Iterable) and not isinstance(value, str) else 0
