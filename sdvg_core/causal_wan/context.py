"""Context policies: the keys and values of the history that a block sees.

They are lazy: an accepted block costs a model nothing until that model generates again. Passing every committed
block through both models at once would waste most of the target's passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..engine.types import Block, Condition, History, ScenePosition, Span, scene_of
from ..errors import BadInput
from ..settings.context import Preset
from .attention import Grid, TorchOps
from .cache import CacheSlots, Fp8KVCache, KVCache, SlotCopy, contiguous_runs
from .forward import PLAIN_STAGES, Pass, Stages, TextKV, context_pass, token_grid

CUT = 45
"""Least position, in a window, of a block that begins a new scene, as in Infinity-RoPE."""
JUMP = 27
"""Positions by which a cut moves it: in a window by at least as many, in absolute positions by as many."""


def beyond_cut(position: int) -> int:
    """Return the position, in a window, of a block that begins a new scene and would else be at `position`."""
    return max(CUT, position + JUMP)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wan:
    """A loaded transformer and its settings, kept between videos (the generator over it is not).

    `tree`: ours or a host's, with the checkpoint's names. `kv_fp8`: keep keys and values in float8_e4m3fn.
    `stages`: of every layer, compiled or plain. `control`: a module with `vace_blocks` and `vace_patch_embedding`,
    or None. `copied`: bytes of layers in main memory, which every pass copies.
    """

    tree: Any
    ops: TorchOps
    preset: Preset
    device: torch.device
    kv_fp8: bool = False
    stages: Stages = PLAIN_STAGES
    control: Any = None
    copied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A model as used by a context policy.

    `text_of`: cross-attention K/V of a condition. `rope`: rotary table for a first position and a grid of tokens.
    `before_pass`: called before every forward pass with its kind; may raise to interrupt.
    """

    wan: Wan
    text_of: Callable[[Condition], TextKV]
    rope: Callable[[int, Grid], Any]
    before_pass: Callable[[str], None]

    def new_cache(self, frames: int, size: tuple[int, int]) -> KVCache:
        """Return an empty cache with a slot for each of `frames` latent frames of `size` = (h, w)."""
        wan = self.wan
        _, rows, columns = token_grid(wan.tree, (1, *size))
        kind = Fp8KVCache if wan.kv_fp8 else KVCache
        return kind(wan.tree, frames, rows * columns, wan.ops.dtype, wan.device)

    def write_context(self, clean: Tensor, condition: Condition, cache: KVCache, slots: CacheSlots) -> None:
        """Run one context pass over clean latents `b c t h w`."""
        self.before_pass("context")
        clean = clean.to(self.wan.device)
        context_pass(self.wan.tree, clean, self.pass_at(slots, cache, condition, clean))

    def pass_at(self, slots: CacheSlots, cache: KVCache, condition: Condition, x: Tensor) -> Pass:
        """Return the inputs of passes over latents `x` (`b c t h w`) in these slots."""
        grid = token_grid(self.wan.tree, x.shape[2:])
        rope = self.rope(slots.position, grid)
        keys = tuple(self._tables(slots.positions, grid))
        return Pass(self.text_of(condition), cache, slots, rope, self.wan.ops, self.wan.stages, keys)

    def _tables(self, positions: Sequence[int], grid: Grid) -> Iterator[tuple[slice, Any]]:
        """Yield visible tokens and the rotary table for their keys, which are stored unrotated.

        One table is for consecutive `positions`, and for no more frames than a block has, so that few sizes occur.
        """
        frames, rows, columns = grid
        frame_tokens = rows * columns
        for run_start, run_stop, run_place in contiguous_runs(positions):
            for first in range(run_start, run_stop, frames):
                count = min(frames, run_stop - first)
                place = run_place + first - run_start
                tokens = slice(place * frame_tokens, (place + count) * frame_tokens)
                yield tokens, self.rope(first, (count, rows, columns))


@dataclass(frozen=True, slots=True, eq=False)
class BlockContext:
    """A cache with the context of one block, the block's slots, and the number of passes and encodes it took."""

    cache: KVCache
    slots: CacheSlots
    passes: int
    encodes: int


class AnchorEncoder:
    """Encodes the first pixel frame of a window; memoises the newest one, which drafter and target share."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self._encode = encode
        self._newest: tuple[Tensor, Tensor] | None = None

    def __call__(self, frame: Tensor) -> tuple[Tensor, int]:
        """Return the latents `b c 1 h w` of a pixel frame `b 1 c h w`, and the number of encodes (0 or 1)."""
        newest = self._newest  # read once, as drafter and target may run in parallel
        if newest and newest[0] is frame:
            return newest[1], 0
        latents = self._encode(frame)
        self._newest = (frame, latents)
        return latents, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecomputedContext:
    """Krea's policy: before every block, pass the newest `frames` latent frames again, at positions from 0.

    The first latent frame of a window must hold a single pixel frame, as only a clip's first does. In a longer clip
    it is therefore encoded again, as an image, from its last pixel frame. Nothing is kept between blocks, so the
    length is unlimited.
    `keep_first`: the window begins with the clip's first latent frame, so that nothing is encoded. Source: Krea's
    `keep_first_frame`.
    """

    encode_anchor: AnchorEncoder
    frames: int = 3
    keep_first: bool = False

    @property
    def anchor_horizon(self) -> int:
        """The window's length, as the pixels of its first frame are needed; 0 with `keep_first`."""
        return 0 if self.keep_first else self.frames

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> BlockContext:
        """Pass the window in pieces of the block's size; each sees those before it. `size`: (h, w) of latents."""
        window = min(history.frames, self.frames)
        position = beyond_cut(window) if scene_of(history.blocks, condition).cut else window
        # Full size even while the clip is shorter, so that every block takes the same memory.
        cache = model.new_cache(self.frames + span.frames, size)
        passes = 0
        encodes = 0
        if window:
            clean, encodes = self._window_latents(history, window)
            for first in range(0, window, span.frames):
                last = min(first + span.frames, window)
                slots = CacheSlots(position=first, written=tuple(range(first, last)), visible=last)
                model.write_context(clean[:, :, first:last], condition, cache, slots)
                passes += 1
        stop = window + span.frames
        slots = CacheSlots(position=position, written=tuple(range(window, stop)), visible=stop)
        return BlockContext(cache, slots, passes, encodes)

    def _window_latents(self, history: History, window: int) -> tuple[Tensor, int]:
        first = history.frames - window
        if first == 0:
            return history.latents(0, window), 0
        encodes = 0
        if self.keep_first:
            anchor = history.latents(0, 1)
        else:
            anchor, encodes = self.encode_anchor(history.anchor(first))
        rest = history.latents(first + 1, history.frames) if window > 1 else anchor[:, :, :0]
        return torch.cat((anchor.to(rest), rest), dim=2), encodes


# --- keep a sliding window from block to block. A frame's slot follows from its number, so a block that is made
# again overwrites itself, and a rejection needs no rollback. (But a draft made in sub-blocks may push frames out
# of the window before it is rejected; those are backed up.) A cache that appends and truncates, as language models
# have it, cannot go back once its window has moved.

MEANS = (0.01, 0.1)
"""Shares by which MemRoPE's slow and fast mean move with every block."""
FLUSHED_TO = 2
"""Latent frames before a new prompt that a flush keeps, in addition to the sink."""


@dataclass(frozen=True, slots=True, eq=False)
class _SlotBackup:
    """The contents of slots before latent frames `start` to `stop` were written there."""

    start: int
    stop: int
    contents: SlotCopy


@dataclass(kw_only=True, eq=False)
class RollingContext:
    """Self-Forcing's policy: keep the keys and values of a sliding window.

    `window` includes the block being generated; the clip's first `sink` latent frames never leave it. A new frame
    takes the slot of the frame that leaves the window. When the model is next needed, each block committed since
    gets one context pass with its own condition, in order; none may be skipped, as keys and values depend on those
    before. If the history is another one from some block on, only the blocks from there are passed again, if what
    they overwrote can be restored; else all are. `undo`: number of newest blocks for which to back up what they
    overwrite; each backup takes one block's memory.

    The rest are options of single models:

    `relative`: as in Infinity-RoPE, store keys unrotated and count positions from the window's first frame, so that
    they stop growing. `trained`: as in Self Gradient Forcing, latent frames of the training clips, up to which
    relative positions grow; the newest frames keep their distance from the sink.
    `recache`: as in LongLive, one pass over the whole window before the first block of a new prompt writes its keys
    and values again under that prompt. A sink that has left the window is unchanged.
    `flush`: as in Infinity-RoPE, blocks of a new prompt see only the sink and the newest two frames before it.
    `means`: as in MemRoPE, the sink's last two slots hold a slow and a fast running mean of the keys and values
    that left the window, over all tokens as in its code.

    A block that begins a new scene is placed at a distance from the others; later absolute positions keep it,
    relative ones do not.
    """

    window: int
    sink: int = 0
    relative: bool = False
    trained: int | None = None
    recache: bool = False
    flush: bool = False
    means: bool = False
    undo: int = 0
    anchor_horizon: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._cache: KVCache | None = None
        self._size: tuple[int, int] | None = None
        # Blocks whose context is in the cache, the prompt under which it was last written, and the latent frame up
        # to which anything was, a block that is not committed included.
        self._blocks: tuple[Block, ...] = ()
        self._prompt_of_cache: Condition | None = None
        self._written_to = 0
        # Backups of the newest blocks, oldest first; they go back to latent frame `_restorable_from`.
        self._backups: tuple[_SlotBackup, ...] = ()
        self._restorable_from = 0

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> BlockContext:
        """Pass the blocks committed since the last call, or all if the history is another one.

        Raises `BadInput` for a window too small for sink and block.
        """
        if self.window < self.sink + span.frames:
            wanted = f"the sink and one block ({self.sink} + {span.frames})"
            raise BadInput(f"a window of {self.window} latent frames has no room for {wanted}; widen the window")
        cache = self._cache_for(model, history, condition, size)
        passes = 0
        for block in history.blocks[len(self._blocks) :]:
            passes += 1 + self._recache_if_needed(block.condition, model, cache)
            self._begin(cache, block.span)
            slots = self._pass_slots(block.span, scene_of(self._blocks, block.condition))
            model.write_context(block.latents, block.condition, cache, slots)
            self._blocks = (*self._blocks, block)
        passes += self._recache_if_needed(condition, model, cache)
        self._begin(cache, span)
        return BlockContext(cache, self._pass_slots(span, scene_of(self._blocks, condition)), passes, 0)

    def _recache_if_needed(self, condition: Condition, model: Model, cache: KVCache) -> int:
        """Pass the window again under the next block's `condition`, if it is new; return the number of passes."""
        if not self.recache or not self._blocks or self._prompt_of_cache is condition:
            self._prompt_of_cache = condition
            return 0
        # Nothing attends to frames that left the window, so do not pass them.
        stop = self._blocks[-1].span.stop
        first = 0 if stop <= self.window else stop - (self.window - self.sink)
        # Every slot is overwritten, so blocks passed so far cannot be dropped later.
        self._restorable_from = stop + 1
        self._backups = ()
        scene = scene_of(self._blocks[:-1], self._blocks[-1].condition)
        slots = self._pass_slots(Span(0, first, stop - first), replace(scene, cut=False))
        self._cache = None  # invalid if the pass is interrupted
        model.write_context(History(self._blocks).latents(first, stop), condition, cache, slots)
        self._cache = cache
        self._prompt_of_cache = condition
        return 1

    def _cache_for(self, model: Model, history: History, condition: Condition, size: tuple[int, int]) -> KVCache:
        """Return a cache with the first blocks of the history: the current one if possible, or a new one."""
        if self._cache is not None and self._size == size and self._go_back(self._cache, history):
            following = [block.condition for block in history.blocks[len(self._blocks) :]]
            if not self._recached_for_another(upcoming=[*following, condition][0]):
                return self._cache
        self._forget()
        self._cache = model.new_cache(self.window, size)
        self._size = size
        return self._cache

    def _recached_for_another(self, upcoming: Condition) -> bool:
        """True if the window was passed again under a prompt that is not the one after its newest block."""
        if not self.recache or not self._blocks:
            return False
        return self._prompt_of_cache not in (self._blocks[-1].condition, upcoming)

    def _go_back(self, cache: KVCache, history: History) -> bool:
        """Drop blocks that are not in the history; return False if the cache cannot be restored without them."""
        shared = _shared(self._blocks, history.blocks)
        if shared == len(self._blocks):
            return True
        # The first block that differs will be overwritten; restore what those after it overwrote.
        differs = self._blocks[shared]
        stop = differs.span.stop
        if self._restorable_from > stop:
            return False
        for later in reversed([backup for backup in self._backups if backup.start >= stop]):
            cache.restore(later.contents)
        self._backups = tuple(backup for backup in self._backups if backup.start < stop)
        self._prompt_of_cache = differs.condition
        self._blocks = self._blocks[:shared]
        self._written_to = stop
        return True

    def _begin(self, cache: KVCache, span: Span) -> None:
        """Back up the slots that `span` overwrites."""
        if span.start < self._written_to:
            return  # the same frames again
        if span.stop > self.window:
            slots = self._slots(span)
            if self.means:
                slots = (*slots, self.sink - 2, self.sink - 1)
            contents = cache.copy(slots) if self.undo else ()
            backups = (*self._backups, _SlotBackup(span.start, span.stop, contents))
            forgotten = max(len(backups) - self.undo, 0)
            if forgotten:
                self._restorable_from = backups[forgotten - 1].stop
            self._backups = backups[forgotten:]
            if self.means:
                self._take_means(cache, span)
        self._written_to = span.stop

    def _take_means(self, cache: KVCache, span: Span) -> None:
        """Update the means by the frames about to leave the window; the first ones set them."""
        moving = self.window - self.sink
        leaving = range(max(self.sink, span.start - moving), span.stop - moving)
        slots = tuple(map(self._slot, leaving))
        for slot, share in zip((self.sink - 2, self.sink - 1), MEANS, strict=True):
            cache.blend(slots, slot, share if self._written_to > self.window else 1.0)

    def _pass_slots(self, span: Span, scene: ScenePosition) -> CacheSlots:
        """Return the slots of a pass over `span`, which come after all that it sees."""
        seen = self._frames_seen(span, scene)
        by_slot = sorted(seen, key=self._slot)
        slots = tuple(map(self._slot, by_slot))
        visible = len(seen) if slots == tuple(range(len(seen))) else slots
        written = self._slots(span)
        if not self.relative:
            return CacheSlots(position=span.start + JUMP * scene.cuts, written=written, visible=visible)
        position_of = self._relative_positions(seen, span, scene)
        positions = tuple(position_of[frame] for frame in by_slot)
        return CacheSlots(position=position_of[span.start], written=written, visible=visible, positions=positions)

    def _frames_seen(self, span: Span, scene: ScenePosition) -> tuple[int, ...]:
        """Return the latent frames that a block sees, its own last: the sink, and what the window holds."""
        oldest = max(self.sink, span.stop - (self.window - self.sink))
        if self.flush and scene.prompt:
            oldest = max(oldest, scene.prompt - FLUSHED_TO)
        return (*range(min(self.sink, span.stop)), *range(oldest, span.stop))

    def _relative_positions(self, seen: Sequence[int], span: Span, scene: ScenePosition) -> dict[int, int]:
        """Return the positions of the frames seen: 0, 1, 2 ..., with a gap after the sink and at a cut.

        A window of 6 with a sink of 1 sees frames 0, 7, 8 and its own, 9 to 11, at positions 0 to 5. `trained` at 9
        makes that 0, 4, 5 and 6 to 8.
        """
        context = len(seen) - span.frames
        gap = max(0, min(span.stop, self.trained or 0) - len(seen))
        own = gap + (beyond_cut(context) if scene.cut else context)
        positions = {frame: rank if rank < self.sink else rank + gap for rank, frame in enumerate(seen[:context])}
        return positions | {frame: own + rank for rank, frame in enumerate(seen[context:])}

    def _slots(self, span: Span) -> tuple[int, ...]:
        return tuple(self._slot(frame) for frame in range(span.start, span.stop))

    def _slot(self, frame: int) -> int:
        if frame < self.sink:
            return frame
        return self.sink + (frame - self.sink) % (self.window - self.sink)


def _shared(ours: tuple[Block, ...], theirs: tuple[Block, ...]) -> int:
    """Return the number of first blocks that are the same."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if not a.same_as(b)), min(len(ours), len(theirs)))


ModelContext = RecomputedContext | RollingContext
