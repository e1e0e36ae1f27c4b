"""Mistakes in the nodes, for tests in ComfyUI. The pack has another name there, so nothing of it is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.planted import Mistake


def from_zero(rope: Callable[..., Any]) -> Any:
    return lambda ops, tree, first, grid, device: rope(ops, tree, 0, grid, device)


def of_full_strength(at: Callable[..., Any]) -> Any:
    return lambda clip, span: replace(at(clip, span), strength=1.0)


def without_recorded(block: Callable[..., None]) -> Any:
    return lambda *arguments, recorded=None, **more: block(*arguments, **more)


MISTAKES = {
    "ComfyUI's positions begin anew in every block": Mistake(
        "comfyui/test_host_model.py::test_our_forward_equals_comfyuis_causal_forward[float32]",
        "sdvg_pack.nodes.host.model.ComfyOps.rope",
        from_zero,
    ),
    "ComfyUI's VAE decodes each block as a clip's first": Mistake(
        "comfyui/test_host_vae.py::test_blocks_of_any_lengths_decode_as_a_whole[(1, 3, 3, 3)]",
        "sdvg_pack.nodes.host.vae.ComfyCodec.decode",
        lambda decode: lambda codec, latents, state=None: decode(codec, latents),
    ),
    "a control has full strength": Mistake(
        "comfyui/test_host_control.py::test_control_branch_makes_what_comfyuis_vace_model_makes[half-14B]",
        "sdvg_pack.sdvg_core.engine.inputs.ControlClip.at",
        of_full_strength,
    ),
    "any difference of the host counts as rounding": Mistake(
        "comfyui/test_self_check.py::test_changed_host_is_refused_with_part_and_difference[scaled_latents-the VAE]",
        "sdvg_pack.nodes.host.self_check.TOLERANCE",
        lambda tolerance: dict.fromkeys(tolerance, float("inf")),
    ),
    "a session's takes are lost on their way into the graph": Mistake(
        "comfyui/test_live_session.py::test_recording_makes_the_sessions_film",
        "sdvg_pack.nodes.live._values",
        lambda values: lambda *arguments: {**values(*arguments), "takes": ""},
    ),
    "a page hears what a session records at its end alone": Mistake(
        "comfyui/test_live_session.py::test_blocks_bring_what_they_record",
        "sdvg_pack.nodes.page.progress.NodeProgress.block",
        without_recorded,
    ),
    "a session makes all that it can": Mistake(
        "comfyui/test_steering_page.py::test_no_more_is_made_than_a_page_plays",
        "sdvg_pack.nodes.page.steering.LiveSession._is_ahead",
        lambda is_ahead: lambda session, now: False,
    ),
    "a session that nobody watches goes on": Mistake(
        "comfyui/test_steering_page.py::test_session_that_nobody_watches_holds_and_ends",
        "sdvg_pack.nodes.page.steering.UNSEEN",
        lambda seconds: float("inf"),
    ),
    "a key forgets a MODEL's patches": Mistake(
        "comfyui/test_host_reuse.py::test_changed_model_makes_its_blocks_again[LoRA on the target]",
        "sdvg_pack.nodes.host.reuse._of_module",
        lambda of_module: lambda module, patcher, device, *settings: repr((settings, str(device))),
    ),
}
