"""Mistakes one makes in such a loop, each planted by patching, in a fork that runs a test without and with it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
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
from tests.support.forked import fork

commit = History.commit
score = Session.score
branch = CausalWanGenerator._branch
in_sub_blocks = FramewiseAdapter.generate
held = ColourHold.generate
finished = CausalWanGenerator.generate
handover_at = routing.handover_at
EVERY_BLOCK = "test_every_block_replays_from_emitted_history"


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


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "noise is drawn in order": (
        KeyedNoise,
        "draw",
        lambda source, span, slot: torch.randn(source.shape(span)),
        "test_exactness.py::test_rejecting_all_is_target_only[recompute-committed]",
    ),
    "the decoder goes on from the state before the block": (
        History,
        "commit",
        stale_state,
        f"test_exactness.py::{EVERY_BLOCK}[rrarrraar-recompute-committed]",
    ),
    "the anchor is the first pixel frame of its latent frame": (
        pixels,
        "last_frames",
        first_frames,
        f"test_exactness.py::{EVERY_BLOCK}[rrarrraar-recompute-committed]",
    ),
    "a cache is taken for that of another history": (
        context,
        "_shared",
        lambda ours, theirs: min(len(ours), len(theirs)),
        "test_exactness.py::test_generator_answers_for_any_history_in_any_order[incremental]",
    ),
    "what a wrong guess overwrote is not put back": (
        KVCache,
        "restore",
        lambda cache, copied: None,
        "test_counts.py::test_rewound_window_equals_a_new_one[relative-sizes2]",
    ),
    "a control does not reach a draft that stops early": (
        CausalWanGenerator,
        "_branch",
        lambda model, controls, text: None if model.draft_steps else branch(model, controls, text),
        "test_handover.py::test_control_reaches_every_step_of_short_drafts[recompute]",
    ),
    "colours are held to the newest block": (
        wrappers,
        "first_of_scene",
        newest_of_scene,
        "test_values.py::test_colours_are_held_to_the_first_block[fourth block]",
    ),
    "a colour hold changes what is handed over": (
        ColourHold,
        "generate",
        held_prediction,
        "test_values.py::test_full_hold_restores_the_colours_of_the_scene",
    ),
    "a draft rejected by a direction hands nothing over": (
        speculate,
        "handover_at",
        whole_where_rejected,
        "test_directions.py::test_draft_rejected_by_direction_is_handed_over[recompute-1]",
    ),
    "a start image counts as a block": (
        plan,
        "plan_spans",
        numbered_from_one,
        "test_route_after_pixels.py::test_route_after_start_image_is_a_new_clips[fast]",
    ),
    "a handover goes on from the first noise": (
        CausalWanGenerator,
        "generate",
        lambda model, call: finished(model, replace(call, noise=FirstNoise(call))),
        "test_handover.py::test_model_continues_its_own_steps[recompute-False-1-1]",
    ),
    "a block of smaller blocks is cut only in its last one": (
        FramewiseAdapter,
        "generate",
        lambda drafter, call: cut_last(drafter, call),
        "test_handover.py::test_frame_by_frame_every_sub_block_stops_early[recompute-committed]",
    ),
    "a clip to continue goes by its shape alone": (
        reuse,
        "hash_tensor",
        lambda tensor: str(tuple(tensor.shape)),
        "test_reuse.py::test_change_makes_only_these_blocks_again[another clip-incremental]",
    ),
    "a key forgets the blocks before": (
        session,
        "block_key",
        key_without_history,
        "test_reuse.py::test_change_makes_only_these_blocks_again[a take of block 6-recompute]",
    ),
    "scores are taken for those under another prompt": (
        session,
        "scores_key",
        lambda scorer, pixels, text, frames: reuse.scores_key(scorer, pixels, "", frames),
        "test_reuse.py::test_change_makes_only_these_blocks_again[another text-incremental]",
    ),
    "a block is decoded after the state of another one": (
        PixelStore,
        "state",
        newest_state,
        "test_reuse_store.py::test_changed_block_decodes_from_itself_on[4]",
    ),
    "a draft whose scores are known is decoded all the same": (
        Session,
        "score",
        score_after_decoding,
        "test_reuse_store.py::test_rejected_draft_with_known_scores_is_not_decoded",
    ),
}
"""Where, what and how is patched, and the test of this folder that is to fail."""


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_turns_its_test_red(name: str, tmp_path: Path) -> None:
    place, attribute, wrong, test = MISTAKES[name]
    words = ["-q", "-m", "", "-p", "no:cacheprovider", f"{Path(__file__).parent}/{test}"]

    def without_and_with() -> int:
        green = pytest.main(words)
        setattr(place, attribute, wrong)
        red = pytest.main(words)
        return int((green, red) != (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED))

    log = tmp_path / "log"
    process = fork(without_and_with, str(log), os.devnull)
    process.join()
    assert process.exitcode == 0, log.read_text(encoding="utf-8")
