"""Mistakes one makes in such a loop, each planted in a copy of the code, and the test that must see it.

The list is that of the style guide, with those of our own design: a suite that misses one of them is decoration.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pytest_in import pytest_in

ROOT = Path(__file__).resolve().parents[2]
# Importing torch and its friends takes longer than most tests: where a process can be forked, it is done once.
FORKED = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES = multiprocessing.get_context("forkserver" if FORKED else "spawn")
if FORKED:
    SLOW = (
        "torch",
        "diffusers.models.transformers.transformer_wan",
        "transformers",
        "hypothesis.strategies",
        "einops",
    )
    PROCESSES.set_forkserver_preload(["pytest", "safetensors.torch", "PIL.Image", "tqdm.auto", *SLOW])


@dataclass(frozen=True)
class Mistake:
    name: str
    file: str
    right: str
    wrong: str
    caught_by: str


REPLAY = "engine/test_exactness.py::test_every_block_is_what_its_author_makes_there_and_shows_what_was_emitted"
REUSE = "engine/test_reuse_counts.py::"
DIRECTIONS = "engine/test_directions.py::"
HANDOVER = "engine/test_handover.py::"
JUDGE = "engine/test_judge.py::"
TAEHV = "decoders/test_taehv.py::"
QUEUE = "servers/test_queue.py::"
DICTIONARIES = "checkpoints/test_dictionaries.py::"
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
        "committed, delivered = committed.commit(block, winner.frames",
        "committed, delivered = committed.commit(\n"
        "            Block(span, (draft or winner.made).latents, condition), winner.frames",
        REPLAY,
    ),
    Mistake(
        "the judge's pixels are delivered",
        "engine/timeline.py",
        "        if self.delivery:\n            delivered = self.delivery.add(block)\n        else:\n",
        "        if True:\n",
        JUDGE + "test_the_verdict_and_the_preview_are_the_judges_and_the_video_is_not",
    ),
    Mistake(
        "a context encodes the judge's pixels",
        "engine/timeline.py",
        "history = self.history.commit(block, delivered.anchors)",
        "seen = Delivered.of(frames, block.span.frames, temporal_stride)\n"
        "        history = self.history.commit(block, seen.anchors)",
        JUDGE + "test_a_clip_that_is_continued_is_the_same",
    ),
    Mistake(
        "a committed block meets the full decoder twice",
        "engine/delivery.py",
        "            if self._lane:\n",
        "            self._codec.decode(piece.latents, None)\n            if self._lane:\n",
        JUDGE + "test_a_rejected_draft_never_meets_the_full_decoder",
    ),
    Mistake(
        "scores of one decoder are taken for those of another",
        "engine/keys.py",
        '_hash("scores", self.identities.scorer, self.identities.judging',
        '_hash("scores", self.identities.scorer, self.identities.codec',
        JUDGE + "test_scores_of_one_decoder_are_not_taken_for_those_of_another",
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
        "engine/test_undo.py",
    ),
    Mistake(
        "a block that was begun is taken for whatever is asked for",
        "engine/overlap.py",
        "if self._begun and not (self._begun.maker is maker and self._begun.call.same_as(call)):",
        "if False:",
        "engine/test_same_video.py",
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
        "drafter and target are re-noised with different noise",
        "causal_wan/generator.py",
        "noise.draw(span, number)",
        "noise.draw(span, number + len(self.name))",
        "engine/test_loop.py::test_repair_goes_on_from_the_drafts_own_trajectory",
    ),
    Mistake(
        "the oldest frames are evicted inside generate, one block too early",
        "causal_wan/incremental.py",
        "min(span.stop, self.window))",
        "min(span.stop, self.window - span.frames * (span.stop > self.window)))",
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
        "the window's first frame is not encoded anew",
        "causal_wan/context.py",
        "if first == 0:",
        "if True:",
        "parity/test_forward_against_diffusers.py::test_recomputed_context_is_a_short_clip_that_begins_with_an_image",
    ),
    Mistake(
        "the anchor is the first pixel frame of its latent frame",
        "engine/delivery.py",
        "newest - i * temporal_stride, None",
        "newest - i * temporal_stride - 3 * (newest > i * temporal_stride), None",
        "engine/test_values.py::test_an_anchor_is_the_last_pixel_frame_of_its_latent_frame",
    ),
    Mistake(
        "infinity passes for white",
        "decoders/wan_vae.py",
        "video.clamp(-1, 1).masked_fill(~video.isfinite(), torch.nan)",
        "video.clamp(-1, 1)",
        "decoders/test_wan_vae.py::test_a_pixel_that_is_not_finite_is_nan_and_neither_white_nor_black",
    ),
    Mistake(
        "latents are normalised in half precision",
        "decoders/wan_vae.py",
        "(mean.float() - self._mean) / self._std",
        "((mean.float() - self._mean) / self._std).to(self.dtype)",
        "decoders/test_wan_vae.py::test_half_precision_latents_are_normalised_in_float32",
    ),
    Mistake(
        "angles are rounded to half precision",
        "causal_wan/attention.py",
        "cos, sin = rope\n",
        "cos, sin = (table.to(x.dtype) for table in rope)\n",
        "causal_wan/test_rope_tables.py::test_half_precision_is_rotated_in_float32_and_rounded_once",
    ),
    Mistake(
        "a key joins its numbers with nothing between them",
        "engine/noise.py",
        '":".join(map(str, parts))',
        '"".join(map(str, parts))',
        "engine/test_values.py::test_keys_of_other_numbers_with_the_same_digits_are_others",
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
        "model.write_context(clean[:, :, first:last], condition, cache, place)",
        "model.write_context(clean[:, :, first:last], history.blocks[-1].condition, cache, place)",
        "engine/test_context_conditions.py::test_a_recomputed_window_is_passed_under_the_condition_of_the_block_to_be_made",
    ),
    Mistake(
        "the history keeps what the drafter asks for alone",
        "engine/parts.py",
        "max(self.drafter.anchor_horizon, self.target.anchor_horizon)",
        "self.drafter.anchor_horizon",
        "engine/test_loop.py::test_a_history_keeps_pictures_for_whichever_model_asks_for_more",
    ),
    Mistake(
        "a block that was begun ahead is not handed over",
        "engine/overlap.py",
        "self._lane.hand_over(made.predictions)",
        "pass",
        "engine/test_what_is_begun.py::test_every_tensor_of_a_block_begun_ahead_is_handed_over",
    ),
    Mistake(
        "what was handed over may be overwritten at once",
        "engine/lane.py",
        "tensor.record_stream(here)",
        "pass",
        "engine/test_lane.py::test_what_a_lane_made_stays_the_callers_until_the_callers_stream_has_read_it",
    ),
    Mistake(
        "a block that will be handed over is begun whole",
        "engine/overlap.py",
        "ahead.expect(span, drafter, handover)",
        "ahead.expect(span, drafter)",
        "engine/test_what_is_begun.py::test_of_a_block_that_is_handed_over_only_its_first_steps_are_begun",
    ),
    Mistake(
        "the oldest unfinished run is taken for the newest",
        "pipeline/journal.py",
        "newest = max(stopped",
        "newest = min(stopped",
        "faults/test_resume_command.py::test_of_several_unfinished_videos_the_newest_is_the_one_compared_with",
    ),
    Mistake(
        "percentile counts the blocks of the clip and not those of the run",
        "engine/router.py",
        "forced = max(config.forced_blocks - first, 0)",
        "blocks, forced = blocks + first, config.forced_blocks",
        "engine/test_router.py::test_percentile_makes_up_for_the_forced_blocks_of_this_run_alone",
    ),
    Mistake(
        "percentile leaves its warm-up one score too late",
        "engine/router.py",
        "len(seen) < PERCENTILE_WARM_UP",
        "len(seen) <= PERCENTILE_WARM_UP",
        "engine/test_router.py::test_percentile_leaves_the_prior_with_the_fifth_score",
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
        "accepted = score >= _float32(threshold)",
        "accepted = score > _float32(threshold)",
        "engine/test_router.py::test_a_score_exactly_at_tau_is_kept",
    ),
    Mistake(
        "the forced block is ignored",
        "engine/router.py",
        "if index < config.forced_blocks:",
        "if False:",
        "engine/test_counts.py::test_block_0_is_neither_drafted_nor_scored_in_committed_context",
    ),
    Mistake(
        "a block that a script gives to the target is drafted and scored first",
        "engine/router.py",
        ".get(config.script[index : index + 1])",
        '.get("" if config.script[index : index + 1] == "t" else config.script[index : index + 1])',
        "engine/test_counts.py::test_certain_letters_draft_and_score_nothing_in_vain",
    ),
    Mistake(
        "the target's cache is filled for every accepted block",
        "engine/speculate.py",
        "        # 4. Commit the winner.\n",
        "        # 4. Commit the winner.\n        if remake is None:\n"
        "            generate(target, committed, span, noise, condition)\n",
        "engine/test_counts.py::test_an_accepted_tail_costs_the_target_no_pass",
    ),
    Mistake(
        "the prompt before is kept in cross-attention",
        "causal_wan/generator.py",
        "if known is condition:",
        "if known:",
        "engine/test_loop.py::test_after_a_change_of_prompt_blocks_are_what_fresh_models_make",
    ),
    Mistake(
        "a key forgets the take",
        "engine/keys.py",
        "noise = (*self._noise, span.index, span.take)",
        "noise = (*self._noise, span.index)",
        REUSE + "test_a_take_of_block_6_re_uses_the_first_five",
    ),
    Mistake(
        "a key forgets the conditions of earlier blocks",
        "engine/keys.py",
        "self.tensor(b.latents), self._condition(b.condition))",
        "self.tensor(b.latents))",
        REUSE + "test_another_prompt_over_the_clip_to_continue_is_another_context",
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
        REUSE + "test_another_target_re_uses_nothing_where_it_makes_block_1",
    ),
    Mistake(
        "a clip to continue goes by its shape alone",
        "engine/keys.py",
        "key = hash_tensor(tensor)\n",
        "key = str(tuple(tensor.shape))\n",
        REUSE + "test_another_clip_to_continue_re_uses_nothing",
    ),
    Mistake(
        "scores are kept without the text they are of",
        "engine/keys.py",
        "list(committed), draft, text)",
        "list(committed), draft)",
        REUSE + "test_another_gate_text_scores_the_same_drafts_anew",
    ),
    Mistake(
        "a draft kept without its first estimates is taken for a handover",
        "engine/reuse.py",
        "kept is None or len(kept) < least or",
        "kept is None or",
        REUSE + "test_a_draft_that_was_kept_without_its_first_estimates_is_made_again_for_a_repair",
    ),
    Mistake(
        "records of re-used blocks keep the seconds of looking them up",
        "engine/reuse.py",
        "            clock=lambda: 0.0,\n",
        "",
        REUSE + "test_blocks_that_are_re_used_cost_no_seconds_and_no_passes",
    ),
    Mistake(
        "a direction keeps a draft whose score is no number",
        "engine/router.py",
        "if not all(map(math.isfinite, (*frame_scores, reference or 0.0))):",
        'if config.direction(index) != "a" and not all(map(math.isfinite, (*frame_scores, reference or 0.0))):',
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
        "take 1 has noise of its own",
        "engine/noise.py",
        "take = (span.take,) if span.take > 1 else ()",
        "take = (span.take,)",
        DIRECTIONS + "test_take_1_is_the_noise_there_always_was",
    ),
    Mistake(
        "the clip's first block is handed over",
        "engine/router.py",
        "return 0 if index < self.whole_blocks else self.handover",
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
        "steps that are handed over have a name of their own",
        "engine/reuse.py",
        "self._keys.name(key, whole[:-1], whole[-1])",
        'self._keys.name(key + " again", whole[:-1], whole[-1])',
        REUSE + "test_a_block_given_to_the_target_takes_over_the_steps_of_its_rejected_draft",
    ),
    Mistake(
        "the parser takes a word from a room that imports torch",
        "cli/arguments/shared.py",
        "from ...checkpoints.model_files import KNOWN_FILES",
        "from ...checkpoints.model_files import KNOWN_FILES\nfrom ...engine.router import Policy as Policy",
        "cli/test_quick_help.py::test_help_version_and_bad_usage_import_nothing_heavy[--version]",
    ),
    Mistake(
        "the embedded models get as many threads as there are cores",
        "devices/picking.py",
        "1 if embedded else min(before, cpu_quota())",
        "min(before, cpu_quota())",
        "devices/test_picking.py::test_the_embedded_models_get_one_thread_and_others_what_the_container_allows",
    ),
    Mistake(
        "two prompts are given an interval",
        "study/statistics.py",
        "figures.as_dict() if prompts >= ENOUGH else",
        "figures.as_dict() if prompts else",
        "study/test_study_results.py::test_few_prompts_give_figures_without_intervals_and_no_verdict[2]",
    ),
    Mistake(
        "a pointer of Git LFS among the shards is read as a header",
        "checkpoints/weights.py",
        "    check_download(path)\n    return _open_safetensors(path)",
        "    return _open_safetensors(path)",
        "checkpoints/test_downloads.py::test_a_shard_is_looked_at_too",
    ),
    Mistake(
        "the two sides of a comparison are swapped",
        "report/comparison.py",
        "for at in range(2)]",
        "for at in (1, 0)]",
        "report/test_comparison.py::test_every_pixel_of_both_videos_is_shown_as_a_sharp_square",
    ),
    Mistake(
        "the relative gate scores a kept draft's last frame again",
        "engine/evidence.py",
        "if past and past[-1].accepted and past[-1].scored and",
        "if False and",
        HANDOVER + "test_the_relative_gate_scores_one_frame_more_for_each_block_the_target_made",
    ),
    Mistake(
        "the relative gate compares with the last frame under the prompt before",
        "engine/evidence.py",
        " and newest.gate_text == condition.gate_text:",
        ":",
        HANDOVER + "test_after_a_change_of_prompt_the_last_frame_is_scored_under_the_new_one",
    ),
    Mistake(
        "the blocks of a run that was killed are not found",
        "pipeline/results.py",
        "if isinstance(keys, list) and KEY in file and",
        "if False and",
        "pipeline/test_reuse_folder.py::test_a_run_that_was_killed_can_be_re_used",
    ),
    Mistake(
        "the tiny decoder drops the leading frames of every block",
        "decoders/taehv.py",
        "pieces[LEADING if state is None else 0 :]",
        "pieces[LEADING:]",
        TAEHV + "test_the_first_latent_frame_of_a_clip_is_one_pixel_frame_and_each_later_one_is_four",
    ),
    Mistake(
        "the tiny decoder takes every other channel for a frame",
        "decoders/taehv_net.py",
        "frame.chunk(self.growth, dim=1)",
        "frame.unflatten(1, (-1, self.growth)).unbind(2)",
        TAEHV + "test_channels_that_grow_become_frames_one_after_the_other",
    ),
    Mistake(
        "the tiny decoder remembers what its blocks made in place of what they were given",
        "decoders/taehv_net.py",
        "kept.append(x[-batch:])\n            x = layer(x, before)",
        "x = layer(x, before)\n            kept.append(x[-batch:])",
        TAEHV + "test_what_a_block_remembers_is_its_input_one_time_step_earlier",
    ),
    Mistake(
        "the dtype tells which latents a tiny decoder wants",
        "decoders/taehv.py",
        'scaled = kind == "lighttaew2_1"',
        "scaled = self.dtype == torch.float32",
        TAEHV + "test_the_kind_decides_which_latents_the_network_sees",
    ),
    Mistake(
        "every piece of a block is drawn from the first one's noise",
        "engine/several.py",
        "_frames_of(span, self.span, self.noise.draw(self.span, slot))",
        "self.noise.draw(self.span, slot)[:, :, : span.frames]",
        "engine/test_several.py::test_in_spans_of_three_it_makes_what_it_makes_alone_block_by_block",
    ),
    Mistake(
        "the first block's steps are taken for a continued clip's first new block",
        "causal_wan/generator.py",
        "self._schedule if span.index else",
        'self._schedule if self.__dict__.setdefault("made", []) or self.made.append(1) else',
        "engine/test_several.py::test_the_first_blocks_steps_are_for_block_0_of_the_clip_alone",
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
        "a window is taken back to before it was passed again",
        "causal_wan/incremental.py",
        "self._lost, self._overwritten = stop + 1, ()",
        "self._lost = stop + 1",
        "engine/test_incremental.py::test_a_window_that_was_passed_again_is_not_taken_back_to_before_that",
    ),
    Mistake(
        "a window that is half under a new prompt is kept",
        "causal_wan/incremental.py",
        "window, self._cache = Span(0, first, stop - first), None",
        "window = Span(0, first, stop - first)",
        "engine/test_incremental.py::test_a_pass_over_the_window_that_broke_off_leaves_no_half_of_it",
    ),
    Mistake(
        "the raw dictionary under the name of the EMA",
        "checkpoints/pickles.py",
        "return Pickled(name, there, dicts[name])",
        'return Pickled(name, there, dicts.get("generator", dicts[name]))',
        DICTIONARIES + "test_the_dictionary_that_is_named_is_the_one_whose_tensors_are_read",
    ),
    Mistake(
        "a known file is run as any file of its size",
        "causal_wan/by_name.py",
        "return get_preset(known.preset) if known else None",
        "return None",
        "causal_wan/test_by_name.py::test_a_known_file_leads_to_its_preset",
    ),
    Mistake(
        "a key forgets which dictionary of a file was taken",
        "pipeline/checking.py",
        "return repr((self.found.weights.dictionary, self.preset.identity))",
        "return self.preset.identity",
        "pipeline/test_which_weights.py::test_the_two_dictionaries_of_one_file_never_share_a_key",
    ),
    Mistake(
        "the two dictionaries of one file are taken for one model",
        "pipeline/checking.py",
        "(file.path.resolve(), file.dictionary) for file in files",
        "file.path.resolve() for file in files",
        "pipeline/test_which_weights.py::test_the_two_dictionaries_of_one_file_are_two_models",
    ),
    Mistake(
        "a growing cache is passed under the condition of the block to be made",
        "causal_wan/incremental.py",
        "model.write_context(block.latents, block.condition, cache, self._place(block.span))",
        "model.write_context(block.latents, condition, cache, self._place(block.span))",
        "engine/test_context_conditions.py::test_a_growing_cache_is_passed_block_by_block_under_the_condition_of_each",
    ),
    Mistake(
        "a server that was away goes on with what another one got",
        "servers/lane.py",
        "for prompt_id in (running | waiting) & self._unwanted:",
        "for prompt_id in frozenset():",
        QUEUE + "test_what_a_server_that_was_away_still_has_is_taken_off_it_if_another_got_it",
    ),
    Mistake(
        "what a lone server still has is queued once more",
        "servers/lane.py",
        "            taken = self._pool.claim(order)\n            if taken:",
        "            taken = None\n            if taken:",
        QUEUE + "test_a_server_alone_goes_on_with_what_it_has_when_the_way_to_it_is_back",
    ),
    Mistake(
        "an interrupt leaves prompts in the queues",
        "servers/lane.py",
        "        if self._pool.stopping:",
        "        if False:",
        QUEUE + "test_an_interrupt_fetches_what_runs_and_cancels_what_waits",
    ),
    Mistake(
        "a server that refuses everything is asked for every prompt",
        "servers/lane.py",
        "ALIKE = 3",
        "ALIKE = 3000",
        QUEUE + "test_a_server_that_refuses_everything_alike_ends_the_run_early",
    ),
    Mistake(
        "a video that broke off counts as whole",
        "servers/client.py",
        "if stated is not None and seen != stated:",
        "if False:",
        QUEUE + "test_a_video_that_breaks_off_is_fetched_again_and_never_half_there",
    ),
    Mistake(
        "the report of another seed is believed",
        "servers/answers.py",
        'if report.settings.get("seed") != seed:',
        "if False:",
        "servers/test_hostile_servers.py::test_a_history_that_says_something_else_is_one_sentence",
    ),
    Mistake(
        "a resumed queue takes any video for the one that is asked for",
        "servers/orders.py",
        "if not (folder / VIDEO).is_file() or _request_in(folder) != request:",
        "if not (folder / VIDEO).is_file():",
        QUEUE + "test_resume_leaves_finished_videos_alone_and_refuses_others",
    ),
]


def run_tests(folder: Path, nodes: Iterable[str], *, first_cases: bool = False) -> tuple[int, str]:
    """Run tests of a copy in a process of its own; return pytest's exit code and what it printed."""
    log, tests = folder / "log", [f"tests/{node}" for node in nodes]
    process = PROCESSES.Process(target=pytest_in, args=(folder, tests, log, first_cases))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for name in ("sdvg_core", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def planted(mistake: Mistake, copy: Path) -> Iterator[None]:
    """Plant a mistake in the copy, and take it out again."""
    file = copy / "sdvg_core" / mistake.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mistake.right) >= 1, "the code has changed: plant the mistake anew"
    file.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


@pytest.mark.heavy
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name.replace(" ", "_"))
def test_a_planted_mistake_turns_its_test_red(mistake: Mistake, copy: Path) -> None:
    with planted(mistake, copy):
        code, printed = run_tests(copy, [mistake.caught_by])
    # 1 is pytest's code for failed tests; others would mean that the copy does not even run.
    assert code == 1, printed[-3000:]
    assert "1 failed" in printed
    assert "SyntaxError" not in printed
    assert "NameError" not in printed


@pytest.mark.heavy
def test_an_unharmed_copy_stays_green(copy: Path) -> None:
    """One case of each test will do: all of them run on every submission anyway, in the repository itself."""
    code, printed = run_tests(copy, sorted({mistake.caught_by for mistake in MISTAKES}), first_cases=True)
    assert code == 0, printed[-3000:]
