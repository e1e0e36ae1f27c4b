"""Mistakes one makes in such a loop: each is planted by patching, and a test that is green without it must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import test_counts
import test_directions
import test_exactness
import test_handover
import test_reuse
import test_reuse_store
import test_route_after_pixels
import test_values
import torch

from sdvg_core.causal_wan import context
from sdvg_core.causal_wan.cache import KVCache
from sdvg_core.causal_wan.generator import CausalWanGenerator
from sdvg_core.engine import pixels, plan, reuse, routing, session, speculate, wrappers
from sdvg_core.engine.inputs import BlockCall, KeyedNoise
from sdvg_core.engine.pixels import Pixels
from sdvg_core.engine.reuse import PixelStore
from sdvg_core.engine.routing import PlannedBlock
from sdvg_core.engine.session import Session
from sdvg_core.engine.types import Block, Condition, Generated, History, Span, plan_spans
from sdvg_core.engine.wrappers import ColourHold, FramewiseAdapter
from sdvg_core.settings.route import Route

commit = History.commit
score = Session.score
branch = CausalWanGenerator._branch
in_sub_blocks = FramewiseAdapter.generate
held = ColourHold.generate
finished = CausalWanGenerator.generate
handover_at = routing.handover_at


def stale_state(before: History, block: Block, anchors: Any = (), decode_state: Any = None) -> History:
    return commit(before, block, anchors, before.decode_state)


def key_without_history(model: str, codec: str, noise: KeyedNoise, call: BlockCall) -> str:
    return reuse.block_key(model, codec, noise, replace(call, history=History()))


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


def newest_of_scene(history: History, condition: Condition) -> torch.Tensor | None:
    later = [block.latents for block in history.blocks if block.span.start]
    return later[-1] if later else None


def held_prediction(hold: ColourHold, call: BlockCall) -> Generated:
    block = held(hold, call)
    return replace(block, predictions=(*block.predictions[:-1], block.latents))


def whole_where_rejected(route: Route, block: PlannedBlock) -> int:
    return 0 if block.direction == "r" else handover_at(route, block)


def numbered_from_one(blocks: int, frames: int, start: int, takes: Any, start_image: int) -> tuple[Span, ...]:
    return plan_spans(blocks, frames, start, takes)


class FirstNoise:
    """Draws slot 0 where the step after a handover should be re-noised."""

    def __init__(self, call: BlockCall) -> None:
        self.noise = call.noise
        self.after = len(call.handed_over)

    def draw(self, span: Span, slot: int) -> torch.Tensor:
        return self.noise.draw(span, 0 if slot == self.after else slot)


MISTAKES: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "noise is drawn in order": (
        KeyedNoise,
        "draw",
        lambda source, span, slot: torch.randn(source.shape(span)),
        lambda: test_exactness.test_rejecting_all_is_target_only("recompute", "committed"),
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
        lambda: test_counts.test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes("keep", (1, 5)),
    ),
    "a control does not reach a draft that stops early": (
        CausalWanGenerator,
        "_branch",
        lambda model, controls, text: None if model.draft_steps else branch(model, controls, text),
        lambda: test_handover.test_a_control_reaches_a_short_draft_in_every_step_it_makes("recompute"),
    ),
    "colours are held to the newest block": (
        wrappers,
        "first_of_scene",
        newest_of_scene,
        lambda: test_values.test_colours_are_held_to_the_scenes_first_block(3),
    ),
    "a colour hold changes what is handed over": (
        ColourHold,
        "generate",
        held_prediction,
        test_values.test_a_full_hold_gives_each_channel_the_colours_the_scene_began_with,
    ),
    "a draft rejected by a direction hands nothing over": (
        speculate,
        "handover_at",
        whole_where_rejected,
        lambda: test_directions.test_a_draft_rejected_by_a_direction_is_handed_over("recompute", 1),
    ),
    "a start image counts as a block": (
        plan,
        "plan_spans",
        numbered_from_one,
        lambda: test_route_after_pixels.test_after_a_start_image_a_route_is_that_of_a_new_clip("fast"),
    ),
    "a handover goes on from the first noise": (
        CausalWanGenerator,
        "generate",
        lambda model, call: finished(model, replace(call, noise=FirstNoise(call))),
        lambda: test_handover.test_a_model_goes_on_from_its_own_steps_as_it_did("recompute", False, 1, 1),
    ),
    "a block of smaller blocks is cut only in its last one": (
        FramewiseAdapter,
        "generate",
        lambda drafter, call: cut_last(drafter, call),
        lambda: test_handover.test_frame_by_frame_every_sub_block_stops_early("recompute", "committed"),
    ),
    "a clip to continue goes by its shape alone": (
        reuse,
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
        lambda scorer, pixels, text, frames: reuse.scores_key(scorer, pixels, "", frames),
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
