"""Mistakes one makes in such a loop: each is planted by patching, and a test that is green without it must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import test_cascade
import test_counts
import test_draft_steps
import test_exactness
import test_handover
import test_incremental
import test_reuse
import test_reuse_store
import test_router
import test_values
import torch

from sdvg_core.causal_wan import context
from sdvg_core.causal_wan.cache import KVCache
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.engine import inputs, memo, pixels, router, session
from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.memo import PixelStore
from sdvg_core.engine.pixels import Pixels
from sdvg_core.engine.router import RouterConfig, decide
from sdvg_core.engine.session import Session
from sdvg_core.engine.types import Block, Condition, History
from sdvg_core.engine.wrappers import FramewiseAdapter

BLOCK_0 = test_counts.test_block_0_is_never_scored_and_drafted_only_if_the_drafter_goes_on_from_its_own
commit = History.commit
score = Session.score
branch = CausalWanGenerator._branch
in_sub_blocks = FramewiseAdapter.generate


def stale_state(before: History, block: Block, anchors: Any = (), decode_state: Any = None) -> History:
    return commit(before, block, anchors, before.decode_state)


def key_without_history(model: str, codec: str, noise: KeyedNoise, call: BlockCall) -> str:
    return memo.block_key(model, codec, noise, replace(call, history=History()))


def score_after_decoding(at_work: Session, pixels: Pixels, *asked: Any) -> torch.Tensor:
    pixels.frames()
    return score(at_work, pixels, *asked)


def newest_state(store: PixelStore, key: str) -> Any:
    return next(reversed(store._states.values()))[0]


def first_frames(frames: torch.Tensor, count: int, stride: int) -> tuple[torch.Tensor, ...]:
    return tuple(frames[:, max(index * stride - stride, 0), None] for index in range(count))


def cut_last(drafter: FramewiseAdapter, call: Any) -> Any:
    steps = drafter.inner.draft_steps
    drafter.inner.draft_steps = None
    try:
        return in_sub_blocks(drafter, call if call.stop else replace(call, stop=steps))
    finally:
        drafter.inner.draft_steps = steps


MISTAKES: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "noise is drawn in order": (
        KeyedNoise,
        "draw",
        lambda source, span, slot: torch.randn(source.shape(span)),
        lambda: test_exactness.test_rejecting_all_is_target_only("recompute", "committed"),
    ),
    "a seed has other noise from this version on": (
        inputs,
        "generator_seed",
        lambda *parts: hash(parts) >> 1,
        test_values.test_a_seed_keeps_its_noise_from_version_to_version,
    ),
    "the decoder goes on from the state before the block": (
        History,
        "commit",
        stale_state,
        lambda: test_exactness.check_pattern("rraar", test_exactness.make_engine, "committed"),
    ),
    "the anchor is the first pixel frame of its latent frame": (
        pixels,
        "last_frames",
        first_frames,
        lambda: test_exactness.check_pattern("rraar", test_exactness.make_engine, "committed"),
    ),
    "a cache is taken for that of another history": (
        context,
        "_shared",
        lambda ours, theirs: min(len(ours), len(theirs)),
        lambda: test_exactness.test_a_generator_answers_for_any_history_in_any_order("incremental"),
    ),
    "what a wrong guess overwrote is not put back": (
        KVCache,
        "restore",
        lambda cache, copied: None,
        lambda: test_incremental.test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes("keep", (1, 5)),
    ),
    "the mean frame decides": (
        router,
        "aggregate",
        lambda config, scores: float(scores.mean()),
        test_router.test_the_worst_frame_decides_not_the_mean,
    ),
    "the forced block is drafted": (
        RouterConfig,
        "place",
        lambda config, index: index + 1,
        lambda: BLOCK_0("committed", range(1, 9)),
    ),
    "the clip's first block is handed over": (
        RouterConfig,
        "handover_at",
        lambda config, index: config.handover,
        lambda: test_handover.test_block_0_stays_whole("recompute"),
    ),
    "the scores of the first frames are taken for those of others": (
        router,
        "evenly_spaced",
        lambda count: (0, 1, 2, 3),
        test_cascade.test_the_frames_scored_first_are_spread_over_the_block,
    ),
    "the margin of a cascade has the wrong sign": (
        router,
        "clearly_kept",
        lambda config, decision: decision.score >= config.tau - config.cascade,
        test_cascade.test_in_between_the_other_frames_are_scored_in_one_call,
    ),
    "a draft is kept on first frames below tau": (
        router,
        "decide",
        lambda config, index, scores: decide(replace(config, tau=config.tau - 0.5), index, scores),
        test_cascade.test_first_frames_below_tau_reject_and_the_others_are_not_scored,
    ),
    "a control does not reach a draft that stops early": (
        CausalWanGenerator,
        "_branch",
        lambda model, controls, text: None if model.draft_steps else branch(model, controls, text),
        lambda: test_draft_steps.test_a_control_reaches_a_short_draft_in_every_step_it_makes("recompute"),
    ),
    "a block of smaller blocks is cut only in its last one": (
        FramewiseAdapter,
        "generate",
        lambda drafter, call: cut_last(drafter, call),
        lambda: test_draft_steps.test_frame_by_frame_every_sub_block_stops_early("recompute", "committed"),
    ),
    "a key forgets the prompts": (
        Condition,
        "key",
        "",
        test_reuse_store.test_everything_a_block_follows_from_is_in_its_key,
    ),
    "a clip to continue goes by its shape alone": (
        memo,
        "hash_tensor",
        lambda tensor: str(tuple(tensor.shape)),
        lambda: test_reuse.test_what_a_change_makes_anew("recompute", "another clip"),
    ),
    "a key forgets the blocks before": (
        session,
        "block_key",
        key_without_history,
        lambda: test_reuse.test_what_a_change_makes_anew("recompute", "a take of block 6"),
    ),
    "scores are taken for those under another prompt": (
        session,
        "scores_key",
        lambda scorer, pixels, text, frames: memo.scores_key(scorer, pixels, "", frames),
        lambda: test_reuse.test_what_a_change_makes_anew("recompute", "another text"),
    ),
    "a block is decoded after the state of another one": (
        PixelStore,
        "state",
        newest_state,
        lambda: test_reuse_store.test_a_changed_block_decodes_itself_and_the_later_ones_and_none_that_is_there(4),
    ),
    "a draft whose scores are known is decoded all the same": (
        Session,
        "score",
        score_after_decoding,
        test_reuse_store.test_a_draft_whose_scores_are_known_is_not_decoded_to_be_rejected,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_turns_its_test_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, wrong, check = MISTAKES[name]
    check()
    monkeypatch.setattr(place, attribute, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
