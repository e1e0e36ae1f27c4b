"""The mistakes that are planted, each with the test that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    name: str
    file: str
    right: str
    wrong: str
    caught_by: str


REPLAY = "engine/test_exactness.py::test_every_block_is_what_its_author_makes_there_and_shows_what_was_emitted"
REUSE = "engine/test_reuse.py::"
DIRECTIONS = "engine/test_directions.py::"
HANDOVER = "engine/test_handover.py::"
MISTAKES = [
    Mistake(
        "the remake is decoded from the rejected draft's state",
        "engine/speculate.py",
        "winner = None  # frees",
        "committed = Timeline(committed.history, (winner or committed).decode_state)  # frees",
        REPLAY,
    ),
    Mistake(
        "the draft is committed and the target's block emitted",
        "engine/speculate.py",
        "committed = committed.commit(block, winner.frames",
        "committed = committed.commit(Block(span, (draft or winner.made).latents, condition), winner.frames",
        REPLAY,
    ),
    Mistake(
        "accepted blocks are not brought into the target's cache",
        "causal_wan/incremental.py",
        "for block in history.blocks[len(self._blocks) :]:",
        "for block in history.blocks[len(self._blocks) :][-1:]:",
        REPLAY,
    ),
    Mistake(
        "a cache is taken for that of another history",
        "causal_wan/incremental.py",
        "if not a.same_as(b)",
        "if False",
        "engine/test_exactness.py::test_a_generator_answers_for_any_history_in_any_order",
    ),
    Mistake(
        "what a wrong guess overwrote is not put back",
        "causal_wan/incremental.py",
        "cache.restore(later.contents)",
        "pass",
        "engine/test_incremental.py::test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes",
    ),
    Mistake(
        "the draft goes on from the drafter's own blocks in committed context",
        "engine/speculate.py",
        'if drafter_context == "own":',
        "if drafter_context:",
        REPLAY,
    ),
    Mistake(
        "noise is consumed in order",
        "engine/noise.py",
        "torch.randn(self.shape(span), generator=generator, dtype=torch.float32)",
        "torch.randn(self.shape(span), dtype=torch.float32)",
        "engine/test_exactness.py::test_rejecting_all_is_target_only",
    ),
    Mistake(
        "the oldest frames are evicted inside generate, one block too early",
        "causal_wan/incremental.py",
        "oldest = max(self.sink, span.stop - (self.window - self.sink))",
        "oldest = max(self.sink, span.stop - (self.window - self.sink - span.frames * (span.stop > self.window)))",
        "parity/test_forward_against_diffusers.py::test_a_sliding_window_is_the_whole_clip_under_a_mask",
    ),
    Mistake(
        "the sink leaves the window",
        "causal_wan/incremental.py",
        "return self.sink + (frame - self.sink) % (self.window - self.sink)",
        "return frame % self.window",
        "parity/test_forward_against_diffusers.py::test_a_sliding_window_is_the_whole_clip_under_a_mask",
    ),
    Mistake(
        "a key that is rotated when it is read was rotated before",
        "causal_wan/forward.py",
        "(k if unrotated else ops.rotate(k, rope))",
        "ops.rotate(k, rope)",
        "causal_wan/test_long_context.py::test_until_a_frame_leaves_the_window_relative_positions_change_no_bit",
    ),
    Mistake(
        "a flush forgets the sink",
        "causal_wan/incremental.py",
        "seen = (*range(min(self.sink, span.stop)),",
        "seen = (*range(0 if self.flush and scene.prompt else min(self.sink, span.stop)),",
        "causal_wan/test_long_context.py::test_a_flush_leaves_the_sink_and_two_frames_of_what_came_before",
    ),
    Mistake(
        "the window's first frame is not encoded anew",
        "causal_wan/context.py",
        "if first == 0:",
        "if True:",
        "parity/test_forward_against_diffusers.py::test_recomputed_context_is_a_short_clip_that_begins_with_an_image",
    ),
    Mistake(
        "the anchor is the first pixel frame of its latent frame",
        "engine/timeline.py",
        "newest - i * temporal_stride, None",
        "newest - i * temporal_stride - 3 * (newest > i * temporal_stride), None",
        "engine/test_values.py::test_an_anchor_is_the_last_pixel_frame_of_its_latent_frame",
    ),
    Mistake(
        "a seed has other noise from this version on",
        "engine/noise.py",
        '"big") >> 1',
        '"little") >> 1',
        "engine/test_values.py::test_a_seed_keeps_its_noise_from_version_to_version",
    ),
    Mistake(
        "a window is passed under the condition of the blocks in it",
        "causal_wan/context.py",
        "model.write_context(clean[:, :, first:last], condition, cache, slots)",
        "model.write_context(clean[:, :, first:last], history.blocks[-1].condition, cache, slots)",
        "engine/test_counts.py::test_a_recomputed_window_is_passed_under_the_condition_of_the_block_to_be_made",
    ),
    Mistake(
        "the history keeps what the drafter asks for alone",
        "engine/protocols.py",
        "max(self.drafter.anchor_horizon, self.target.anchor_horizon)",
        "self.drafter.anchor_horizon",
        "engine/test_loop.py::test_a_history_keeps_pictures_for_whichever_model_asks_for_more",
    ),
    Mistake(
        "the last of equal frames is the worst",
        "engine/router.py",
        "return ranked.index(min(ranked))",
        "return len(ranked) - 1 - ranked[::-1].index(min(ranked))",
        "engine/test_router.py::test_of_equal_frames_the_first_is_the_worst",
    ),
    Mistake(
        "the mean frame decides",
        "engine/router.py",
        "return float(scores.min())",
        "return float(scores.mean())",
        "engine/test_router.py::test_the_worst_frame_decides_not_the_mean",
    ),
    Mistake(
        "a score exactly at tau is rejected",
        "engine/router.py",
        "accepted = score >= _float32(config.tau)",
        "accepted = score > _float32(config.tau)",
        "engine/test_router.py::test_a_score_exactly_at_tau_is_kept",
    ),
    Mistake(
        "the forced block is ignored",
        "engine/router.py",
        "if index < config.forced_blocks:",
        "if False:",
        "engine/test_counts.py::test_block_0_is_never_scored_and_drafted_only_if_the_drafter_goes_on_from_its_own",
    ),
    Mistake(
        "a block that a router without scores gives to the target is drafted and scored first",
        "engine/router.py",
        "return None if config.part.needs_scorer else _by_part(config, place)",
        "return None",
        "engine/test_counts.py::test_certain_letters_draft_and_score_nothing_in_vain",
    ),
    Mistake(
        "the target's cache is filled for every accepted block",
        "engine/speculate.py",
        "        # 4. Commit the winner.\n",
        "        # 4. Commit the winner.\n        if remake is None:\n            generate(target, call)\n",
        "engine/test_counts.py::test_an_accepted_tail_costs_the_target_no_pass",
    ),
    Mistake(
        "the prompt before is kept in cross-attention",
        "causal_wan/generator.py",
        "text_of=text_of,",
        "text_of=lambda one, kept=[]: kept[0] if kept else kept.append(text_of(one)) or kept[0],",
        "engine/test_loop.py::test_after_a_change_of_prompt_blocks_are_what_fresh_models_make",
    ),
    Mistake(
        "a key forgets the take",
        "engine/keys.py",
        "noise = (*self._noise, span.index, span.take)",
        "noise = (*self._noise, span.index)",
        REUSE + "test_what_a_change_makes_anew[a take of block 6-recompute]",
    ),
    Mistake(
        "a key forgets the conditions of earlier blocks",
        "engine/keys.py",
        "self.tensor(b.latents), self._condition(b.condition))",
        "self.tensor(b.latents))",
        REUSE + "test_what_a_change_makes_anew[another prompt over the clip-incremental]",
    ),
    Mistake(
        "a key forgets the prompt of its block",
        "engine/keys.py",
        "span.start, span.frames, self._condition(condition), renewed",
        "span.start, span.frames, renewed",
        "engine/test_reuse_store.py::test_everything_a_block_follows_from_is_in_its_key",
    ),
    Mistake(
        "a key forgets the target's identity",
        "engine/reuse.py",
        "identity: str = getattr(self._identities, role)",
        'identity: str = "target" if role == "target" else self._identities.drafter',
        REUSE + "test_what_a_change_makes_anew[another target-recompute]",
    ),
    Mistake(
        "a clip to continue goes by its shape alone",
        "engine/keys.py",
        "self._tensors[tensor] = hash_tensor(tensor)\n",
        "self._tensors[tensor] = str(tuple(tensor.shape))\n",
        REUSE + "test_what_a_change_makes_anew[another clip-recompute]",
    ),
    Mistake(
        "scores are kept without the text they are of",
        "engine/keys.py",
        "list(committed), draft, text)",
        "list(committed), draft)",
        REUSE + "test_what_a_change_makes_anew[another gate text-recompute]",
    ),
    Mistake(
        "a direction keeps a draft whose score is no number",
        "engine/router.py",
        "if not all(map(math.isfinite, frame_scores)):",
        'if config.direction(index) != "a" and not all(map(math.isfinite, frame_scores)):',
        DIRECTIONS + "test_a_draft_that_a_direction_keeps_is_still_rejected_if_its_score_is_no_number",
    ),
    Mistake(
        "a direction in between ends a row of rejections",
        "engine/router.py",
        "if decision.reason in BY_DIRECTION:",
        "if False:",
        DIRECTIONS + "test_rejections_are_in_a_row_across_a_direction",
    ),
    Mistake(
        "the clip's first block is handed over",
        "engine/router.py",
        "return 0 if index < self.whole_blocks or begun >= self.handover else self.handover",
        "return self.handover",
        HANDOVER + "test_block_0_stays_whole_unless_told_otherwise",
    ),
    Mistake(
        "a block that is handed over is drafted whole",
        "engine/speculate.py",
        "stop = handover if decision and not decision.accepted else None",
        "stop = None if handover else 0 if decision and not decision.accepted else None",
        HANDOVER + "test_a_handover_of_k_saves_k_target_passes_a_block_and_costs_k_of_the_drafter",
    ),
    Mistake(
        "a window passed again under a new prompt is taken for the old prompt's",
        "causal_wan/incremental.py",
        "if not self._recached_for_another([*following, condition][0]):",
        "if True:",
        "engine/test_incremental.py::test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes",
    ),
    Mistake(
        "a window goes back further than it knows",
        "causal_wan/incremental.py",
        "if self._lost > stop:",
        "if False:",
        "engine/test_incremental.py::test_a_window_that_went_back_and_forth_makes_what_a_new_one_makes",
    ),
    Mistake(
        "a key forgets which state dict of a file was taken",
        "pipeline/identity.py",
        "identity = repr((header.found.weights.state_dict, header.preset.identity))",
        "identity = header.preset.identity",
        "pipeline/test_which_weights.py::test_the_two_state_dicts_of_one_file_never_share_a_key",
    ),
    Mistake(
        "a growing cache is passed under the condition of the block to be made",
        "causal_wan/incremental.py",
        "model.write_context(block.latents, block.condition, cache, slots)",
        "model.write_context(block.latents, condition, cache, slots)",
        "engine/test_counts.py::test_a_growing_cache_is_passed_block_by_block_under_the_condition_of_each",
    ),
]
