"""Mistakes in the parts around the loop: networks, files, settings, memory, many videos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from sdvg_core.causal_wan.cache import LARGEST_FP8, STORED
from sdvg_core.errors import BadInput
from sdvg_core.files.video import BT709
from sdvg_core.settings.request import Shot
from tests.support.planted import Mistake


def by_the_scale_before_rounding(to_fp8: Callable[..., tuple[Tensor, Tensor]]) -> Any:
    def wrong(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(dim=-1, keepdim=True).float() / LARGEST_FP8
        return (x.float() / scale).to(STORED), to_fp8(x)[1]

    return wrong


def from_zero(rope_angles: Callable[..., Tensor]) -> Any:
    return lambda head_dim, first, grid, device: rope_angles(head_dim, 0, grid, device)


def with_switches_as_numbers(fit_value: Callable[..., Any]) -> Any:
    def wrong(kind: Any, value: Any) -> Any:
        return value if kind in (int, float) and isinstance(value, bool) else fit_value(kind, value)

    return wrong


def unrestricted(load: Callable[..., Any]) -> Any:
    return lambda path, **options: load(path, **{**options, "weights_only": False})


def in_half_precision(save: Callable[..., bytes]) -> Any:
    return lambda words: save({text: embedding.bfloat16() for text, embedding in words.items()})


def by_place_in_film(prepare_run: Callable[..., Any]) -> Any:
    return lambda run, *arguments: prepare_run(
        replace(run, shot=Shot(run.shot.start, f"#{run.shot.start}")), *arguments
    )


def from_the_second_frame(pieces: Callable[..., Any]) -> Any:
    def wrong(clip: Any) -> Any:
        for part in pieces(clip):
            yield replace(part, frames=part.frames[:, 1:])

    return wrong


def from_the_block_in_the_making(with_prompt: Callable[..., Any]) -> Any:
    return lambda script, block, text, **words: with_prompt(script, max(block - 1, 0), text, **words)


MISTAKES = {
    # --- films
    "a word is written down for the block in the making": Mistake(
        "videos/test_live.py::test_recording_has_the_bits_of_the_run[recomputed-2]",
        "sdvg_core.videos.live.Script.with_prompt",
        from_the_block_in_the_making,
    ),
    "a shot draws its noise by its place in the film": Mistake(
        "videos/test_film.py::test_fresh_shot_equals_itself_alone[gate]",
        "sdvg_core.videos.resolve.ResolvedRequest.prepare_run",
        by_place_in_film,
    ),
    "a clip is shown from its second frame on": Mistake(
        "videos/test_film_clips.py::test_clip_is_shown_between_shots",
        "sdvg_core.videos.clips.FilmClip.pieces",
        from_the_second_frame,
    ),
    # --- what other libraries compute
    "positions begin anew in every block": Mistake(
        "parity/test_forward_against_diffusers.py::test_window_is_the_clip_under_a_mask[2-9-0-2x12]",
        "sdvg_core.causal_wan.attention.rope_angles",
        from_zero,
    ),
    "a block is decoded without the state before it": Mistake(
        "decoders/test_wan_vae.py::test_pieces_decode_as_diffusers_decodes_whole_clips",
        "sdvg_core.decoders.wan_vae.WanCodec.decode",
        lambda decode: lambda codec, latents, state=None: decode(codec, latents),
    ),
    "a planar convolution sees zeros before a block": Mistake(
        "decoders/test_wan_vae.py::test_planar_layers_compute_the_same_to_rounding[small]",
        "sdvg_core.decoders.planes.PlanarConv.fill",
        lambda fill: lambda conv, x, before: fill(conv, x, None),
    ),
    "a prompt loses its end token": Mistake(
        "text/test_umt5.py::test_embedding_is_transformers_with_zeros_after_end[short]",
        "sdvg_core.text.umt5.Tokenizer.ids",
        lambda ids: lambda tokenizer, text, limit: ids(tokenizer, text, limit)[:-1],
    ),
    "pixels are rounded to 8 bits, not cut": Mistake(
        "scorers/test_image_reward.py::test_scores_equal_the_original_packages[tiny-.pt]",
        "sdvg_core.scorers.preprocess.to_bytes",
        lambda to_bytes: lambda frames: to_bytes(frames + 0.5 / 255),
        heavy=True,
    ),
    "keys in fp8 are divided by the scale before it is rounded": Mistake(
        "causal_wan/test_long_context.py::test_fp8_takes_the_nearest_number",
        "sdvg_core.causal_wan.cache.to_fp8",
        by_the_scale_before_rounding,
    ),
    "a small unmarked clip is read by BT.709": Mistake(
        "files/test_clip.py::test_unmarked_clip_is_read_by_its_rows[96-601-10]",
        "sdvg_core.files.clip.BT601",
        lambda bt601: BT709,
    ),
    # --- memory, many videos
    "keys are planned, and no values": Mistake(
        "causal_wan/test_long_context.py::test_cache_takes_the_bytes_that_are_planned[rolling-auto-float32]",
        "sdvg_core.memory.sizes.kv_bytes",
        lambda kv_bytes: lambda *sizes, **options: kv_bytes(*sizes, **options) // 2,
    ),
    "words reach a worker in half precision": Mistake(
        "videos/test_many.py::test_next_call_makes_what_a_worker_lost",
        "sdvg_core.videos.many.save",
        in_half_precision,
        heavy=True,
    ),
    "every shot's blocks are counted from 1": Mistake(
        "videos/test_spread_film.py::test_shots_in_any_order_make_the_same_film",
        "sdvg_core.videos.film.ResolvedFilm.first_numbers",
        lambda first_numbers: property(lambda film: {run.shot.key: 1 for run in film.runs}),
    ),
    "latents beside a video are taken unasked": Mistake(
        "videos/test_own_latents.py::test_video_goes_on_from_pixels_and_says_why[other latents]",
        "sdvg_core.videos.clip_files._why_not",
        lambda why_not: lambda *arguments: "",
    ),
    # --- damaged files, impossible values, faults
    "a pickle may run code": Mistake(
        "weights/test_weights.py::test_pickle_that_runs_code_is_refused[touch-arguments2--zip]",
        "torch.load",
        unrestricted,
    ),
    "a damaged file is refused without a remedy": Mistake(
        "fuzz/test_fuzz.py::test_hostile_file_is_taken_or_refused[safetensors-25]",
        "sdvg_core.weights.weight_file.unreadable",
        lambda unreadable: lambda kind, name, error: BadInput(f"{name} is damaged"),
    ),
    "a refusal says no remedy": Mistake(
        "fuzz/test_texts.py::test_text_is_read_or_refused[prompt]",
        "sdvg_core.text.prompts.EMPTY",
        lambda sentence: sentence.partition(";")[0],
    ),
    "a switch is taken for a number": Mistake(
        "fuzz/test_settings.py::test_value_fits_its_field_or_is_refused[VideoRequest]",
        "sdvg_core.settings.fields.fit_value",
        with_switches_as_numbers,
    ),
    "a stopped replacement is not undone": Mistake(
        "files/test_outputs.py::test_stopped_replacement_loses_nothing[before-KeyboardInterrupt]",
        "sdvg_core.files.outputs._put_in_order",
        lambda put_in_order: lambda folder: None,
    ),
    "a stopped run's blocks are thrown away": Mistake(
        "faults/test_every_call.py::test_fault_at_every_seventeenth_call_does_no_harm",
        "sdvg_core.files.outputs.unfinished_blocks",
        lambda blocks: lambda folder: [],
        heavy=True,
    ),
}
