"""Mistakes in the loop: noise, history, contexts, handover, colours, routes, re-use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sdvg_core.causal_wan.context import BlockContext, Model, RecomputedContext
from sdvg_core.engine.inputs import BlockCall, InputClip, KeyedNoise, Restyle
from sdvg_core.engine.pixels import Decoder, Pixels
from sdvg_core.engine.reuse import PixelStore
from sdvg_core.engine.routing import PlannedBlock
from sdvg_core.engine.session import Session
from sdvg_core.engine.types import Block, Condition, FiniteChecks, Generated, History, Span
from sdvg_core.engine.wrappers import ColourHold, FramewiseAdapter, drift
from sdvg_core.settings.decision import Decision
from sdvg_core.settings.fields import float32
from sdvg_core.settings.route import Gate, Route
from tests.support.planted import Mistake


def with_stale_state(commit: Callable[..., History]) -> Any:
    def wrong(before: History, block: Block, anchors: Any = (), decode_state: Any = None) -> History:
        return commit(before, block, anchors, before.decode_state)

    return wrong


def from_the_global_state(draw: Callable[..., Tensor]) -> Any:
    def wrong(noise: KeyedNoise, span: Span, slot: int) -> Tensor:
        torch.manual_seed(hash((noise.seed, span.index, slot)))
        return torch.randn(noise.shape(span))

    return wrong


def from_the_next_block(at: Callable[..., Restyle]) -> Any:
    def wrong(clip: InputClip, span: Span) -> Restyle:
        last = clip.start + clip.latents.shape[2] - span.frames
        return at(clip, replace(span, start=min(span.start + span.frames, last)))

    return wrong


def anew_after_a_clip(pixels: Callable[..., Pixels]) -> Any:
    def wrong(decoder: Decoder, history: History, block: Block) -> Pixels:
        state = history.decode_state
        is_of_this_run = state is None or state.decoder is decoder
        return pixels(decoder, history if is_of_this_run else replace(history, decode_state=None), block)

    return wrong


def first_frames(last_frames: Any) -> Any:
    def wrong(frames: Tensor, count: int, stride: int) -> tuple[Tensor, ...]:
        return tuple(frames[:, max(index * stride - stride, 0), None] for index in range(count))

    return wrong


def cut_last(generate: Callable[..., Generated]) -> Any:
    def wrong(drafter: FramewiseAdapter, call: BlockCall) -> Generated:
        inner: Any = drafter.inner
        steps = inner.draft_steps
        inner.draft_steps = None
        try:
            return generate(drafter, call if call.stop else replace(call, stop=steps))
        finally:
            inner.draft_steps = steps

    return wrong


def newest_of_scene(first_of_scene: Any) -> Any:
    def wrong(history: History, condition: Condition) -> Tensor | None:
        later = [block.latents for block in history.blocks if block.span.start]
        return later[-1] if later else None

    return wrong


def drift_of_newest(drift_of: Any) -> Any:
    def wrong(block: Block, history: History) -> Tensor | None:
        return drift(block.latents, history.blocks[-1].latents) if drift_of(block, history) is not None else None

    return wrong


def held_prediction(generate: Callable[..., Generated]) -> Any:
    def wrong(hold: ColourHold, call: BlockCall) -> Generated:
        block = generate(hold, call)
        return replace(block, predictions=(*block.predictions[:-1], block.latents))

    return wrong


def whole_where_rejected(handover_at: Callable[..., int]) -> Any:
    def wrong(route: Route, block: PlannedBlock) -> int:
        return 0 if block.direction == "r" else handover_at(route, block)

    return wrong


def whole_where_first(refining_at: Callable[..., Any]) -> Any:
    return lambda route, block: refining_at(route, block) if block.place else None


def numbered_from_one(plan_spans: Callable[..., tuple[Span, ...]]) -> Any:
    def wrong(blocks: int, frames: int, start: int, takes: Any, start_image: int) -> tuple[Span, ...]:
        return plan_spans(blocks, frames, start, takes)

    return wrong


def above_the_margin(is_clear: Callable[..., bool]) -> Any:
    def wrong(gate: Gate, decision: Decision) -> bool:
        by: Any = gate.by
        return is_clear(gate, decision) and decision.score != float32(gate.tau) + by.margin

    return wrong


def over_all_frames(prepare: Callable[..., BlockContext]) -> Any:
    def wrong(context: RecomputedContext, model: Model, history: History, *place: Any) -> BlockContext:
        grown = replace(context, frames=max(context.frames, history.frames), keep_first=True)
        return prepare(grown, model, history, *place)

    return wrong


class FirstNoise:
    """Draws slot 0 where the step after a handover should be re-noised."""

    def __init__(self, call: BlockCall) -> None:
        self.noise = call.noise
        self.after = len(call.handed_over)

    def draw(self, span: Span, slot: int) -> Tensor:
        return self.noise.draw(span, 0 if slot == self.after else slot)


def with_first_noise(generate: Callable[..., Generated]) -> Any:
    return lambda model, call: generate(model, replace(call, noise=FirstNoise(call)))


def without_branch_in_drafts(branch: Callable[..., Any]) -> Any:
    return lambda model, controls, text: None if model.draft_steps else branch(model, controls, text)


def without_history(block_key: Callable[..., str]) -> Any:
    def wrong(model: str, codec: str, noise: KeyedNoise, call: BlockCall) -> str:
        return block_key(model, codec, noise, replace(call, history=History()))

    return wrong


def after_decoding(score: Callable[..., Any]) -> Any:
    def wrong(session: Session, pixels: Pixels, *asked: Any) -> Any:
        pixels.frames()
        return score(session, pixels, *asked)

    return wrong


def newest_state(state: Any) -> Any:
    def wrong(store: PixelStore, key: str) -> Any:
        return next(reversed(store._states.values()))[0]

    return wrong


def in_the_first_block(add: Callable[..., None]) -> Any:
    def wrong(checks: FiniteChecks, values: Tensor, span: Span, *names: str) -> None:
        if span.index == 0:
            add(checks, values, span, *names)

    return wrong


REPLAY = "engine/test_exactness.py::test_every_block_replays_from_emitted_history[rrarrraar-recompute-committed]"
REUSE = "engine/test_reuse.py::test_change_makes_only_these_blocks_again"

MISTAKES = {
    # --- noise and history
    "noise is drawn in order": Mistake(
        "engine/test_pairs_of_options.py::test_rejecting_all_is_target_only_with_any_options[options0]",
        "sdvg_core.engine.inputs.KeyedNoise.draw",
        lambda draw: lambda noise, span, slot: torch.randn(noise.shape(span)),
    ),
    "drafts in their own context go on from the target's block": Mistake(
        "engine/test_exactness.py::test_keeping_all_in_own_context_is_draft_only[recompute]",
        "sdvg_core.engine.speculate.OwnDrafts",
        lambda own_drafts: lambda *arguments: None,
    ),
    "the decoder goes on from the state before the block": Mistake(
        REPLAY, "sdvg_core.engine.types.History.commit", with_stale_state
    ),
    "the anchor is the first pixel frame of its latent frame": Mistake(
        REPLAY, "sdvg_core.engine.pixels.last_frames", first_frames
    ),
    "a guide is taken from the next block": Mistake(
        "engine/test_guides.py::test_guide_changes_no_earlier_block[input-router3-recompute]",
        "sdvg_core.engine.inputs.InputClip.at",
        from_the_next_block,
    ),
    "noise comes from torch's global state": Mistake(
        "engine/test_exactness.py::test_global_randomness_is_neither_read_nor_written[recompute]",
        "sdvg_core.engine.inputs.KeyedNoise.draw",
        from_the_global_state,
    ),
    "the decoder begins anew after a clip": Mistake(
        "engine/test_exactness.py::test_clip_made_in_two_runs_equals_one_run[recompute]",
        "sdvg_core.engine.pixels.Decoder.pixels",
        anew_after_a_clip,
    ),
    "a start image counts as a block": Mistake(
        "engine/test_route_after_pixels.py::test_route_after_start_image_is_a_new_clips[fast]",
        "sdvg_core.engine.plan.plan_spans",
        numbered_from_one,
    ),
    "only the first block is checked": Mistake(
        "faults/test_bad_numbers.py::test_bad_latents_stop_the_run[4-target-inf-recompute]",
        "sdvg_core.engine.types.FiniteChecks.add",
        in_the_first_block,
    ),
    # --- contexts
    "a cache is taken for that of another history": Mistake(
        "engine/test_exactness.py::test_generator_answers_for_any_history_in_any_order[incremental]",
        "sdvg_core.causal_wan.context._shared",
        lambda shared: lambda ours, theirs: min(len(ours), len(theirs)),
    ),
    "what a wrong guess overwrote is not put back": Mistake(
        "engine/test_counts.py::test_rewound_window_equals_a_new_one[relative-sizes2]",
        "sdvg_core.causal_wan.cache.KVCache.restore",
        lambda restore: lambda cache, copied: None,
    ),
    "every block is passed again": Mistake(
        "engine/test_counts.py::test_incremental_target_passes_each_missed_block_once",
        "sdvg_core.causal_wan.context._shared",
        lambda shared: lambda ours, theirs: 0,
    ),
    "a window grows with the clip": Mistake(
        "engine/test_counts.py::test_rejection_after_kept_drafts_recomputes_one_window",
        "sdvg_core.causal_wan.context.RecomputedContext.prepare",
        over_all_frames,
    ),
    # --- handover, colours, routes
    "a draft rejected by a direction hands nothing over": Mistake(
        "engine/test_directions.py::test_draft_rejected_by_direction_is_handed_over[recompute-1]",
        "sdvg_core.engine.speculate.handover_at",
        whole_where_rejected,
    ),
    "a handover goes on from the first noise": Mistake(
        "engine/test_handover.py::test_model_continues_its_own_steps[recompute-False-1-1]",
        "sdvg_core.causal_wan.generator.CausalWanGenerator.generate",
        with_first_noise,
    ),
    "a control does not reach a draft that stops early": Mistake(
        "engine/test_handover.py::test_control_reaches_every_step_of_short_drafts[recompute]",
        "sdvg_core.causal_wan.generator.CausalWanGenerator._branch",
        without_branch_in_drafts,
    ),
    "a block of smaller blocks is cut only in its last one": Mistake(
        "engine/test_handover.py::test_frame_by_frame_every_sub_block_stops_early[recompute-committed]",
        "sdvg_core.engine.wrappers.FramewiseAdapter.generate",
        cut_last,
    ),
    "the first block of a refining route is made whole": Mistake(
        "engine/test_refine.py::test_refined_video_is_a_restyled_draft[recompute-strong]",
        "sdvg_core.engine.speculate.refining_at",
        whole_where_first,
    ),
    "a draft that is refined goes on from the target's block": Mistake(
        "videos/test_live_finished.py::test_refining_a_recording_makes_no_draft[recomputed]",
        "sdvg_core.engine.speculate.context_of_drafts",
        lambda context_of_drafts: lambda route, asked: asked,
    ),
    "colours are held to the newest block": Mistake(
        "engine/test_values.py::test_colours_are_held_to_the_first_block[fourth block]",
        "sdvg_core.engine.wrappers.first_of_scene",
        newest_of_scene,
    ),
    "drift is measured from the newest block": Mistake(
        "engine/test_values.py::test_drift_is_measured_from_the_scenes_first_block",
        "sdvg_core.engine.speculate.drift_of",
        drift_of_newest,
    ),
    "a colour hold changes what is handed over": Mistake(
        "engine/test_values.py::test_full_hold_restores_the_colours_of_the_scene",
        "sdvg_core.engine.wrappers.ColourHold.generate",
        held_prediction,
    ),
    "a cascade's margin excludes its edge": Mistake(
        "engine/test_router.py::test_margin_includes_its_edge[-0.25-True-1]",
        "sdvg_core.settings.route.Gate.is_clear",
        above_the_margin,
    ),
    # --- re-use
    "a clip to continue goes by its shape alone": Mistake(
        f"{REUSE}[another clip-incremental]",
        "sdvg_core.engine.reuse.hash_tensor",
        lambda hash_tensor: lambda tensor: str(tuple(tensor.shape)),
    ),
    "a key forgets the blocks before": Mistake(
        f"{REUSE}[a take of block 6-recompute]", "sdvg_core.engine.session.block_key", without_history
    ),
    "scores are taken for those under another prompt": Mistake(
        f"{REUSE}[another text-incremental]",
        "sdvg_core.engine.session.scores_key",
        lambda scores_key: lambda scorer, pixels, text, frames: scores_key(scorer, pixels, "", frames),
    ),
    "a block is decoded after the state of another one": Mistake(
        "engine/test_reuse_store.py::test_changed_block_decodes_from_itself_on[4]",
        "sdvg_core.engine.reuse.PixelStore.state",
        newest_state,
    ),
    "a draft whose scores are known is decoded all the same": Mistake(
        "engine/test_reuse_store.py::test_rejected_draft_with_known_scores_is_not_decoded",
        "sdvg_core.engine.session.Session.score",
        after_decoding,
    ),
    "a finished block is not kept": Mistake(
        "engine/test_reuse.py::test_stopped_run_makes_no_finished_block_again[('recompute', 'committed')-reward]",
        "sdvg_core.engine.session.Session._keep_block",
        lambda keep: lambda session, key, role, call, block: None,
    ),
}
