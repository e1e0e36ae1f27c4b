"""What a run computed, by key, for later runs: the keys, and the stores in host memory.

Generating, decoding and scoring are pure functions, and a key is a hash of everything a result depends on. So equal
keys mean equal bits, and a result may be used again under its key: nothing is compared, and nothing is guessed.
Latents are hashed by content, not by the call that made them, so it does not matter where a block came from.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .inputs import BlockCall, KeyedNoise
from .types import Block, hash_tensor, hash_text

GIGABYTE = 1 << 30
Result = tuple[Tensor, ...]
UNKNOWN = object()
"""In place of a decoder's state that is not known; any other value, None too, may be one."""


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


# --- the stores


@dataclass(slots=True)
class _Entry:
    result: Result
    run: int


class Store:
    """Keeps results on the CPU. Beyond `limit` bytes the oldest run's are dropped first, the newest run's never.

    `forgotten`: how many results of earlier runs the newest one has pushed out; `refused`: how many of its own did
    not fit. Losing a result costs time and nothing else.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.bytes = 0
        self.forgotten = self.refused = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._used: dict[str, None] = {}
        self._run = 0
        self._lock = threading.Lock()  # a host's page asks from a second thread what is kept

    def begin_run(self, limit: float | None = None) -> None:
        """Begin a run, perhaps with another limit. What is put in or taken out from now on counts as its own."""
        with self._lock:
            self.limit = self.limit if limit is None else limit
            self._run += 1
            self.forgotten = self.refused = 0
            self._used = {}
            self._make_room(0)

    def get(self, key: str) -> Result | None:
        """Return a result; None if it is not here."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.run = self._run
            self._entries.move_to_end(key)
            self._used[key] = None
            return entry.result

    def put(self, key: str, result: Result) -> None:
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
        """True if all these results are here. Asking does not count as use."""
        with self._lock:
            return all(key in self._entries for key in keys)

    def take_used(self) -> dict[str, Result]:
        """Return what was put in or taken out since this was last asked, or since the run began, by key."""
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
    def newest(self) -> Mapping[str, Result]:
        """What the newest run put in or took out."""
        with self._lock:
            return {key: entry.result for key, entry in self._entries.items() if entry.run == self._run}

    def _make_room(self, size: int) -> bool:
        if size > self.limit:
            return False
        while self.bytes + size > self.limit:
            oldest = next(iter(self._entries.values())).run
            if oldest == self._run:
                return False
            # Its end first: without its beginning, the rest of a run is of no use.
            self._drop(next(key for key in reversed(self._entries) if self._entries[key].run == oldest))
            self.forgotten += 1
        return True

    def _drop(self, key: str) -> None:
        self.bytes -= sum(tensor.nbytes for tensor in self._entries.pop(key).result)


class PixelStore:
    """Keeps decoded blocks on the CPU, and decoder states in what memory they leave. Least recently used go first.

    Frames that 16 bits hold exactly take half the memory.
    """

    def __init__(self, limit: float = 0.0) -> None:
        self.limit = limit
        self._frames: OrderedDict[str, tuple[Tensor, torch.device, torch.dtype]] = OrderedDict()
        self._states: OrderedDict[str, tuple[Any, torch.device]] = OrderedDict()

    def put(self, key: str, frames: Tensor, state: Any) -> None:
        """Keep a block's frames and the decoder's state after it, where there is room."""
        half = frames.half()
        exact = half if torch.equal(half.to(frames.dtype), frames) else frames
        self._frames.pop(key, None)  # what is put in again is the newest
        self._states.pop(key, None)
        if exact.nbytes <= self.limit:
            self._frames[key] = exact.cpu(), frames.device, frames.dtype
        self.shrink(self.limit, _bytes(state))
        if _bytes(state) <= self.limit - _bytes(self._frames.values()):
            self._states[key] = _moved(state, torch.device("cpu")), frames.device

    def shrink(self, limit: float, room: int = 0) -> None:
        """Set the limit and drop what exceeds it; drop states until `room` bytes are free too."""
        self.limit = limit
        while self._frames and _bytes(self._frames.values()) > limit:
            self._frames.popitem(last=False)
        left = limit - _bytes(self._frames.values()) - room
        while self._states and _bytes(self._states.values()) > max(left, 0):
            self._states.popitem(last=False)

    def count_to_decode(self, keys: Sequence[str], *, to_go_on: bool) -> int:
        """Return how many of a clip's first blocks must be decoded to show them all.

        `to_go_on`: whether the block after them will be decoded, which needs the decoder's state at their end.
        """
        decoded: set[str] = set()
        wanted = [place for place, key in enumerate(keys) if key not in self._frames]
        for place in (*wanted, *([len(keys)] if to_go_on else [])):
            decoded.update(keys[place : place + 1])
            for key in reversed(keys[:place]):  # the state before that place
                if key in decoded or key in self._states:
                    break
                decoded.add(key)
        return len(decoded)

    def frames(self, key: str) -> Tensor | None:
        """Return a block's frames as they were decoded; None if they are not kept."""
        if key not in self._frames:
            return None
        self._frames.move_to_end(key)
        frames, device, dtype = self._frames[key]
        return frames.to(device, dtype)

    def state(self, key: str) -> Any:
        """Return the decoder's state after a block; `UNKNOWN` if it is not kept."""
        if key not in self._states:
            return UNKNOWN
        self._states.move_to_end(key)
        state, device = self._states[key]
        return _moved(state, device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reuse:
    """Where a run looks for results of earlier runs, and leaves its own; the identities of its parts.

    `pixels`: a store of decoded frames, for which `store` leaves the memory; None to keep none.
    """

    store: Store
    identities: Identities
    pixels: PixelStore | None = None


def _moved(state: Any, device: torch.device) -> Any:
    if isinstance(state, Tensor):
        return state.to(device)
    return tuple(_moved(part, device) for part in state) if isinstance(state, tuple | list) else state


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, Iterable) and not isinstance(value, str) else 0
