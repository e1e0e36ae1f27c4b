"""Counting, not timing: what each route costs in calls and passes, and the incremental context in any order."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.context import Model
from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.types import Block, Cost, History, Span, plan_spans
from sdvg_core.settings.route import Gate, Route
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
    random_tree,
    run,
    scripted,
)


def works(emitted, who):
    return [getattr(e.record, who) for e in emitted]


def blocks_of(generator):
    return [index for index, _ in generator.calls]


@pytest.mark.parametrize(("context", "drafted"), [("committed", range(1, 9)), ("own", range(9))])
def test_block_0_is_never_scored_and_drafted_only_if_the_drafter_goes_on_from_its_own(context, drafted):
    engine = make_engine()
    emitted = run(engine, Route(Gate(-100.0)), drafter_context=context)
    assert blocks_of(engine.drafter) == list(drafted)
    assert engine.scorer.calls == 8
    assert not emitted[0].record.decision.scored
    assert context == "own" or engine.codec.decodes == 9


def test_certain_letters_draft_and_score_nothing_in_vain():
    """Only block 5 is scored; without it no scorer is needed at all."""
    engine = make_engine()
    emitted = run(engine, scripted("tddtdatdd"))
    assert blocks_of(engine.drafter) == [1, 2, 4, 5, 7, 8]
    assert blocks_of(engine.target) == [0, 3, 6]
    assert (engine.scorer.calls, engine.codec.decodes) == (1, 9)
    unscored = replace(make_engine(), scorer=None)
    made = run(unscored, scripted("tddtddtdd"))
    assert torch.equal(latents_of(made), latents_of(emitted)), "whether a kept draft is scored changes no bit"


def test_a_rejected_block_after_five_accepted_ones_recomputes_one_window():
    """Recompute: one pass over three latent frames, whatever was accepted in between."""
    emitted = run(make_engine("recompute"), scripted("raaaaarar"))
    assert works(emitted, "target")[6] == Cost(
        denoising_passes=2, context_passes=1, encodes=0, context_seconds=emitted[6].record.target.context_seconds
    )
    assert works(emitted, "draft")[6].encodes == 1, "the draft of that block already encoded the anchor"


def test_an_incremental_target_catches_up_once_and_in_order():
    """Six committed blocks are missing at block 6, two at block 8; the last block never gets a context pass."""
    engine = make_engine("incremental")
    emitted = run(engine, scripted("raaaaarar"))
    assert [w.context_passes for w in works(emitted, "target") if w] == [0, 6, 2]
    assert [w.context_passes for w in works(emitted, "draft") if w] == [1] * 8


def test_an_anchor_is_encoded_once_for_drafter_and_target_together():
    engine = make_engine()
    run(engine, scripted("r" * 9))
    assert engine.codec.encodes == 7, "blocks 2 to 8 look back past the clip's first frame"


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_cross_attention_is_projected_once_per_prompt_and_model(policy):
    engine = make_engine(policy)
    calls = []
    for model in (engine.drafter, engine.target):
        tree = model._model.wan.tree
        tree.text_embedding.register_forward_hook(lambda *_, name=model.name: calls.append(name))
    run(engine, scripted("rarararar"))
    assert sorted(calls) == ["drafter", "target"]


# --- under which block's condition a context is passed


FIRST, SECOND = condition(5, "a red ball"), condition(6, "a blue cube")


@pytest.fixture
def passed(monkeypatch):
    """The text and the number of latent frames of each context pass."""
    heard, honest = [], Model.write_context

    def write_context(model, clean, condition, cache, place):
        heard.append((condition.text, clean.shape[2]))
        honest(model, clean, condition, cache, place)

    monkeypatch.setattr(Model, "write_context", write_context)
    return heard


def texts(passed, policy):
    run(make_engine(policy), scripted("rrrr"), blocks=4, condition_of=lambda n: (FIRST, SECOND)[n >= 2])
    assert {frames for _, frames in passed} == {3}
    return [text for text, _ in passed]


def test_a_recomputed_window_is_passed_under_the_condition_of_the_block_to_be_made(passed):
    """Catches: a window passed under the condition of the blocks in it. Both models make every block here."""
    assert texts(passed, "recompute") == [FIRST.text] * 2 + [SECOND.text] * 4


def test_a_growing_cache_is_passed_block_by_block_under_the_condition_of_each(passed):
    assert texts(passed, "incremental") == [FIRST.text] * 4 + [SECOND.text] * 2


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
def test_generating_a_block_copies_nothing_larger_than_the_block(policy, options):
    """Catches: concatenating the cached keys with the block's own, which copies the whole window every step."""
    codec = EchoCodec()
    generator = make_generator(1, codec, policy, tree=random_tree(1, WIDE), **options)
    history, g = History(horizon=9), torch.Generator().manual_seed(0)
    for span in plan_spans(9, 3):
        latents = torch.randn(1, 4, 3, *SIZE, generator=g)
        history = history.commit(
            Block(span, latents, PROMPT), as_anchors(*[torch.rand(1, 1, 3, 8, 8, generator=g)] * 3)
        )
    span = plan_spans(1, 3, start=27)[0]
    generator.generate(BlockCall(history, span, make_noise(), PROMPT))
    with Operations() as operations:
        generator.generate(BlockCall(history, span, make_noise(), PROMPT))
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


def made(model, choices, frames, prompt):
    span = Span(len(choices), len(choices) * frames, frames)
    return model.generate(BlockCall(history_of(choices, frames), span, NOISE, PROMPTS[prompt])).latents


def options_of(frames: int, undo: int, recache: bool, **more: object) -> dict[str, object]:
    return {"window": 3 * frames + 3, "sink": 3, "undo": undo, "recache": recache, "block_frames": frames, **more}


MORE = {"keep": {}, "recache": {"recache": True}, "relative": {"relative": True}}
MORE |= {"relative, flush": {"relative": True, "flush": True}, "absolute, flush": {"flush": True}}
MORE |= {"means": {"relative": True, "means": True}}


@in_turn("more, sizes", tuple(MORE), [(1, 0), (1, 2), (1, 5), (3, 0), (3, 1)])
def test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes(more, sizes):
    """Latent frames of a block, and blocks of undo. Catches: slots taken for those of frames that are gone."""
    frames, undo = sizes
    choose = random.Random(10 * frames + undo)
    chosen = {"recache": False} | MORE[more]
    model = make_generator(1, EchoCodec(), "incremental", **options_of(frames, undo, **chosen))
    choices: list[tuple[int, int]] = []
    for _ in range(24):
        choices = choices[: len(choices) - choose.randrange(min(len(choices), 4) + 1)]
        choices += [(choose.randrange(2), choose.randrange(2)) for _ in range(choose.randrange(4))]
        prompt = choose.randrange(2)
        fresh = make_generator(1, EchoCodec(), "incremental", **options_of(frames, 0, **chosen))
        assert torch.equal(made(model, choices, frames, prompt), made(fresh, choices, frames, prompt))


@pytest.mark.parametrize("back", [1, 2, 3, 4])
@pytest.mark.parametrize("undo", [0, 1, 3])
def test_going_back_passes_only_the_blocks_that_differ_if_enough_was_kept(undo, back):
    """The window has been full for long, and the newest `back` blocks turn out to be others."""
    kinds: list[str] = []
    options = {**options_of(1, undo, False), "before_pass": kinds.append}
    model = make_generator(1, EchoCodec(), "incremental", **options)
    for blocks in range(11):
        made(model, [(0, 0)] * blocks, 1, 0)
    before = kinds.count("context")
    made(model, [(0, 0)] * (10 - back) + [(1, 0)] * back, 1, 0)
    # The first of them is written over. Each later one, the begun one included, must be known.
    assert kinds.count("context") - before == (back if undo >= back else 10)


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_window_that_was_passed_again_is_not_taken_back_to_before_that(back):
    """Catches: what a pass over the window lost, forgotten when more is forgotten."""
    model = make_generator(1, EchoCodec(), "incremental", **options_of(1, 3, True))
    for blocks in range(13):
        made(model, [(0, 0)] * blocks, 1, 0)
    for later in range(3):
        made(model, [(0, 0)] * 12 + [(0, 1)] * later, 1, 1)
    other = [(0, 0)] * (12 - back) + [(1, 0)] * back
    fresh = make_generator(1, EchoCodec(), "incremental", **options_of(1, 0, True))
    assert torch.equal(made(model, other, 1, 0), made(fresh, other, 1, 0))


@pytest.mark.parametrize("blocks", [2, 9])
def test_a_new_prompt_passes_the_window_once_more_and_only_if_asked_to(blocks):
    counts = {}
    for recache in (False, True):
        kinds: list[str] = []
        options = {**options_of(1, 0, recache), "before_pass": kinds.append}
        model = make_generator(1, EchoCodec(), "incremental", **options)
        made(model, [(0, 0)] * blocks, 1, 0)
        before = kinds.count("context")
        first = made(model, [(0, 0)] * blocks, 1, 1)
        again = made(model, [(0, 0)] * blocks, 1, 1)
        assert torch.equal(first, again)
        counts[recache] = kinds.count("context") - before, first
    assert counts[False][0] == 0
    assert counts[True][0] == 1
    assert not torch.equal(counts[False][1], counts[True][1])


class BreakingOps(TorchOps):
    """Operations that fail once, in the middle of a forward pass."""

    left = -1

    def attention(self, q, k, v):
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().attention(q, k, v)


def test_a_pass_over_the_window_that_broke_off_leaves_no_half_of_it():
    """Catches: a window that is half under the new prompt, taken for one under the old."""
    ops = BreakingOps(torch.float32)
    model = make_generator(1, EchoCodec(), "incremental", **options_of(1, 0, True), ops=ops)
    nine = [(0, 0)] * 9
    made(model, nine, 1, 0)
    ops.left = 2  # the first layer has written its keys and values, the second has not
    with pytest.raises(Stop):
        made(model, nine, 1, 1)
    fresh = make_generator(1, EchoCodec(), "incremental", **options_of(1, 0, True))
    assert torch.equal(made(model, nine, 1, 0), made(fresh, nine, 1, 0))
