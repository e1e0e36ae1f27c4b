"""Counting, not timing: what each route costs in calls and passes, and the incremental context in any order."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.context import Model
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.records import Seconds, Stopwatch, record_block
from sdvg_core.engine.types import Block, Cost, Generated, History, Span, plan_spans
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.route import Gate, Route, WorstFrame
from tests.support.thinned import in_turn
from tests.support.tiny import (
    CONFIG,
    PROMPT,
    SIZE,
    EchoCodec,
    as_anchors,
    condition,
    generator_of,
    latents_of,
    make_engine,
    make_generator,
    make_noise,
    planned,
    random_tree,
    run,
    scripted,
    shared_tree,
)


def costs(emitted, who):
    """Return what each draft cost, or each block of the target, None where there is none."""
    return [getattr(shown.record, who) for shown in emitted]


def blocks_of(generator):
    """Return the blocks that a model was called for."""
    return [index for index, _ in generator.calls]


@pytest.mark.parametrize(("context", "drafted"), [("committed", range(1, 9)), ("own", range(9))])
def test_first_block_is_drafted_in_own_context_only(context, drafted):
    """Its draft is never scored. Catches: drafts of a forced block, which nobody reads."""
    engine = make_engine()
    emitted = run(engine, Route(Gate(-100.0)), drafter_context=context)
    assert blocks_of(engine.drafter) == list(drafted)
    assert engine.scorer.calls == 8
    assert not emitted[0].record.decision.scored
    assert context == "own" or engine.codec.decodes == 9


def test_certain_letters_draft_and_score_nothing_else():
    """Catches: a block drafted, scored or decoded although its letter decides it. Only block 5 is scored."""
    engine = make_engine()
    run(engine, scripted("tddtdatdd"))
    assert blocks_of(engine.drafter) == [1, 2, 4, 5, 7, 8]
    assert blocks_of(engine.target) == [0, 3, 6]
    assert engine.scorer.calls == 1
    assert engine.codec.decodes == 9


class WatchedCodec(EchoCodec):
    """A codec that knows whether its last frames and state are still in memory."""

    def decode(self, latents, state=None):
        frames, after = super().decode(latents, state)
        after = (after[0], after[1].clone())  # no view of the latents, which stay
        self.newest = [StorageWeakRef(tensor.untyped_storage()) for tensor in (frames, after[1])]
        return frames, after

    @property
    def is_freed(self):
        return all(held.expired() for held in self.newest)


@pytest.mark.parametrize("cascade", [None, 0.5])
def test_rejected_drafts_frames_are_freed_first(monkeypatch, cascade):
    """Before the target runs. Catches: frames that a scoring function, a record or the decoder still holds."""
    engine = replace(make_engine(), codec=WatchedCodec())
    freed = []
    generate = CausalWanGenerator.generate

    def look(generator, call):
        if generator is engine.target and call.span.index:
            freed.append(engine.codec.is_freed)
        return generate(generator, call)

    monkeypatch.setattr(CausalWanGenerator, "generate", look)
    planned_run = planned(engine, Route(Gate(100.0, WorstFrame(cascade))), blocks=4)
    for _ in planned_run.blocks():
        pass
    assert freed == [True] * 3


def test_scoring_a_kept_draft_changes_no_bit():
    """Without a score no scorer is needed at all."""
    scored = run(make_engine(), scripted("tddtdatdd"))
    unscored = run(replace(make_engine(), scorer=None), scripted("tddtddtdd"))
    assert torch.equal(latents_of(unscored), latents_of(scored))


def test_rejection_after_kept_drafts_recomputes_one_window():
    """Catches: a pass for each block that was accepted in between."""
    emitted = run(make_engine("recompute"), scripted("raaaaarar"))
    record = emitted[6].record
    assert replace(record.target, context_seconds=0) == Cost(denoising_passes=2, context_passes=1, encodes=0)
    assert record.draft.encodes == 1, "the draft of that block already encoded the anchor"


def test_each_second_of_a_block_is_counted_once():
    """By a clock that moves inside parts alone. Catches: the context of one model left out, or counted twice."""
    span = Span(1, 3, 3)
    latents = torch.zeros(1, CONFIG.in_dim, 3, *SIZE)
    costs_of = {"draft": Cost(context_seconds=0.25), "target": Cost(context_seconds=0.5)}
    draft, remake = (Generated((latents,), cost) for cost in costs_of.values())
    call = BlockCall(History(), span, make_noise(), PROMPT)
    watch = Stopwatch(iter([0.0, 2.0, 2.0, 3.0, 3.0, 3.5, 3.5, 8.5, 8.5, 9.5]).__next__)
    for part in ("draft", "decode", "score", "target", "decode"):
        with watch.part(part):
            pass
    decision = Decision(accepted=False, reason=Reason.FELL_SHORT)
    frames = torch.zeros(1, 12, 3, *SIZE)
    record = record_block(Block(span, latents, PROMPT), frames, decision, draft, remake, call, watch, drift=0.5)
    assert record.seconds == Seconds(draft=1.75, decode=2.0, score=0.5, target=4.5, context=0.75)
    assert record.seconds.total == 9.5
    assert (record.decodes, record.pixel_frames, record.drift, record.reused) == (2, 12, 0.5, False)
    assert (record.draft, record.target) == tuple(costs_of.values())


def test_incremental_target_passes_each_missed_block_once():
    """Six committed blocks are missing at block 6, two at block 8; the last block never gets a context pass."""
    engine = make_engine("incremental")
    emitted = run(engine, scripted("raaaaarar"))
    assert [cost.context_passes for cost in costs(emitted, "target") if cost] == [0, 6, 2]
    assert [cost.context_passes for cost in costs(emitted, "draft") if cost] == [1] * 8


def test_drafter_and_target_share_one_encoded_anchor():
    engine = make_engine()
    run(engine, scripted("r" * 9))
    assert engine.codec.encodes == 7, "blocks 2 to 8 look back past the clip's first frame"


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_each_model_projects_a_prompt_once(policy):
    engine = make_engine(policy, tree_of=random_tree)
    calls = []
    for model in (engine.drafter, engine.target):
        tree = model._model.wan.tree
        tree.text_embedding.register_forward_hook(lambda *_, name=model.name: calls.append(name))
    run(engine, scripted("rarararar"))
    assert sorted(calls) == ["drafter", "target"]


# --- under which block's condition a context is passed


BALL = condition(5, "a red ball")
CUBE = condition(6, "a blue cube")


@pytest.fixture
def context_passes(monkeypatch):
    """The text and the number of latent frames of each context pass."""
    calls = []
    write_context_itself = Model.write_context

    def write_context(model, clean, condition, cache, place):
        calls.append((condition.text, clean.shape[2]))
        write_context_itself(model, clean, condition, cache, place)

    monkeypatch.setattr(Model, "write_context", write_context)
    return calls


def rejecting_run(policy):
    """Make two blocks of a ball and two of a cube, each by both models."""
    run(make_engine(policy), scripted("rrrr"), blocks=4, condition_of=lambda index: CUBE if index >= 2 else BALL)


def test_recomputed_window_uses_condition_of_next_block(context_passes):
    """Catches: a window passed under the condition of the blocks in it."""
    rejecting_run("recompute")
    assert context_passes == [(BALL.text, 3)] * 2 + [(CUBE.text, 3)] * 4


def test_growing_cache_uses_condition_of_each_block(context_passes):
    """Catches: a block passed under the condition of the block to be made."""
    rejecting_run("incremental")
    assert context_passes == [(BALL.text, 3)] * 4 + [(CUBE.text, 3)] * 2


# --- no copy of a cache, no wait for the device


WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "item", "equal", "masked_select", "unique")
COPIES = ("copy_", "clone", "cat", "_to_copy", "contiguous", "stack", "repeat", "index_select")
# Wide enough that keys outweigh latents, as they do in a real model.
WIDE = replace(CONFIG, dim=96)
BLOCK_KV_BYTES = 3 * (SIZE[0] // 2) * (SIZE[1] // 2) * WIDE.dim * 4


class Operations(TorchDispatchMode):
    """Notes every operation, with the bytes of its largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [t.nbytes for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.seen.append((func.name().removeprefix("aten::"), max(sizes, default=0)))
        return result

    def largest_copy(self) -> int:
        return max((size for name, size in self.seen if name.startswith(COPIES)), default=0)

    def waits(self) -> list[str]:
        """Those whose result the host must wait for."""
        return [name for name, _ in self.seen if name in WAITS]


@pytest.mark.parametrize(
    "policy, options", [("recompute", {"frames": 9}), ("incremental", {"window": 30, "sink": 0})]
)
def test_generating_a_block_copies_no_cache(policy, options):
    """Catches: concatenating the cached keys with the block's own, which copies the whole window every step."""
    codec = EchoCodec()
    generator = make_generator(1, codec, policy, tree=shared_tree(1, WIDE), **options)
    history = History(horizon=9)
    source = generator_of(0)
    for span in plan_spans(9, 3):
        block = Block(span, torch.randn(1, 4, 3, *SIZE, generator=source), PROMPT)
        history = history.commit(block, as_anchors(*[torch.rand(1, 1, 3, 8, 8, generator=source)] * 3))
    call = BlockCall(history, plan_spans(1, 3, start=27)[0], make_noise(), PROMPT)
    generator.generate(call)
    with Operations() as operations:
        generator.generate(call)
    # The widest thing of a block that is ever copied: its two halves, as rotary pairs are put together in float32.
    assert 0 < operations.largest_copy() <= BLOCK_KV_BYTES


def test_the_watch_sees_a_copy_and_a_wait() -> None:
    with Operations() as operations:
        torch.cat((torch.zeros(1, 1000), torch.zeros(1, 1)), 1).sum().item()
    assert (operations.largest_copy(), operations.waits()) == (4004, ["_local_scalar_dense"])


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_generating_a_block_never_waits_for_the_device(policy):
    """Catches: cache positions kept in tensors and read with `.item()`, one wait per layer and step."""
    generator = make_generator(1, EchoCodec(), policy, schedule="four-step")
    block = Block(plan_spans(1, 3)[0], torch.zeros(1, 4, 3, *SIZE), PROMPT)
    history = History(horizon=3).commit(block, as_anchors(*[torch.zeros(1, 1, 3, 8, 8)] * 3))
    with Operations() as operations:
        generator.generate(BlockCall(history, plan_spans(1, 3, start=3)[0], make_noise(), PROMPT))
    assert operations.waits() == []


# --- other sizes


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (6, 10), (10, 4)])
@pytest.mark.parametrize("block_frames", [1, 2, 3, 4])
def test_any_size_and_any_block_length_runs(size, block_frames):
    """Catches: a token count or a block length written into the code."""
    noise = KeyedNoise(seed=0, channels=4, height=size[0], width=size[1])
    for policy in ("recompute", "incremental"):
        generator = make_generator(1, EchoCodec(), policy, window=9, sink=2)
        history = History(horizon=3)
        for span in plan_spans(4, block_frames):
            latents = generator.generate(BlockCall(history, span, noise, PROMPT)).latents
            assert latents.shape == (1, 4, block_frames, *size)
            anchors = as_anchors(*[torch.zeros(1, 1, 3, 2 * size[0], 2 * size[1])] * block_frames)
            history = history.commit(Block(span, latents, PROMPT), anchors)


# --- windows that go back


PROMPTS = [condition(5), replace(condition(6), cut=True)]
NOISE = make_noise()


class Stop(BaseException):
    """As a user's interrupt comes."""


@cache
def block(index: int, frames: int, choice: int, prompt: int) -> Block:
    """One of several blocks that could stand at a place; always the same object for the same arguments."""
    latents = torch.randn(1, CONFIG.in_dim, frames, *SIZE, generator=generator_of(100 * index + choice))
    return Block(Span(index, index * frames, frames), latents, PROMPTS[prompt])


def history_of(choices: list[tuple[int, int]], frames: int) -> History:
    return History(tuple(block(i, frames, *choice) for i, choice in enumerate(choices)))


def generated(model, choices, frames, prompt):
    span = Span(len(choices), len(choices) * frames, frames)
    return model.generate(BlockCall(history_of(choices, frames), span, NOISE, PROMPTS[prompt])).latents


def windowed(frames: int = 1, undo: int = 0, **options: object) -> CausalWanGenerator:
    """Return a model with room for a first and three further blocks, which can take back `undo` of them."""
    window = {"window": 3 * frames + 3, "sink": 3, "undo": undo, "block_frames": frames}
    return make_generator(1, EchoCodec(), "incremental", **window, **options)


WINDOWS = {
    "keep": {},
    "recache": {"recache": True},
    "relative": {"relative": True},
    "relative, flush": {"relative": True, "flush": True},
    "absolute, flush": {"flush": True},
    "means": {"relative": True, "means": True},
}


@in_turn("kind, sizes", tuple(WINDOWS), [(1, 0), (1, 2), (1, 5), (3, 0), (3, 1)])
def test_rewound_window_equals_a_new_one(kind, sizes):
    """`sizes`: latent frames of a block, and blocks of undo. Catches: slots taken for those of dropped frames."""
    frames, undo = sizes
    choose = random.Random(10 * frames + undo)
    model = windowed(frames, undo, **WINDOWS[kind])
    choices: list[tuple[int, int]] = []
    for _ in range(12):
        choices = choices[: len(choices) - choose.randrange(min(len(choices), 4) + 1)]
        choices += [(choose.randrange(2), choose.randrange(2)) for _ in range(choose.randrange(4))]
        prompt = choose.randrange(2)
        fresh = windowed(frames, **WINDOWS[kind])
        assert torch.equal(generated(model, choices, frames, prompt), generated(fresh, choices, frames, prompt))


@pytest.mark.parametrize("back", [1, 2, 3, 4])
@pytest.mark.parametrize("undo", [0, 1, 3])
def test_rewinding_passes_only_changed_blocks(undo, back):
    """The window has been full for long, and the newest `back` blocks turn out to be others."""
    passes: list[str] = []
    model = windowed(undo=undo, before_pass=passes.append)
    for blocks in range(11):
        generated(model, [(0, 0)] * blocks, 1, 0)
    before = passes.count("context")
    generated(model, [(0, 0)] * (10 - back) + [(1, 0)] * back, 1, 0)
    # The first of them is written over. Each later one, the begun one included, must be known.
    assert passes.count("context") - before == (back if undo >= back else 10)


@pytest.mark.parametrize("back", [1, 2, 3])
def test_window_passed_again_is_not_rewound_further(back):
    """Catches: what a pass over the window lost, forgotten when more is forgotten."""
    model = windowed(undo=3, recache=True)
    for blocks in range(13):
        generated(model, [(0, 0)] * blocks, 1, 0)
    for later in range(3):
        generated(model, [(0, 0)] * 12 + [(0, 1)] * later, 1, 1)
    other = [(0, 0)] * (12 - back) + [(1, 0)] * back
    fresh = windowed(recache=True)
    assert torch.equal(generated(model, other, 1, 0), generated(fresh, other, 1, 0))


@pytest.mark.parametrize("blocks", [2, 9])
def test_new_prompt_passes_window_again_on_request(blocks):
    """Catches: a window that is passed for every block of the new prompt, or never."""
    counts = {}
    latents = {}
    for recache in (False, True):
        passes: list[str] = []
        model = windowed(recache=recache, before_pass=passes.append)
        generated(model, [(0, 0)] * blocks, 1, 0)
        before = passes.count("context")
        latents[recache] = generated(model, [(0, 0)] * blocks, 1, 1)
        assert torch.equal(generated(model, [(0, 0)] * blocks, 1, 1), latents[recache])
        counts[recache] = passes.count("context") - before
    assert counts == {False: 0, True: 1}
    assert not torch.equal(latents[False], latents[True])


class BreakingOps(TorchOps):
    """Operations that fail once, in the middle of a forward pass."""

    left = -1

    def attention(self, q, k, v):
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().attention(q, k, v)


def test_broken_pass_leaves_no_half_written_window():
    """Catches: a window that is half under the new prompt, taken for one under the old."""
    ops = BreakingOps(torch.float32)
    model = windowed(recache=True, ops=ops)
    nine = [(0, 0)] * 9
    generated(model, nine, 1, 0)
    ops.left = 2  # the first layer has written its keys and values, the second has not
    with pytest.raises(Stop):
        generated(model, nine, 1, 1)
    fresh = windowed(recache=True)
    assert torch.equal(generated(model, nine, 1, 0), generated(fresh, nine, 1, 0))
