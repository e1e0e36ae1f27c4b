"""Our engine against the pipelines of Self-Forcing, of the originals built on its code, and of RAVEN.

Windows, sinks and memories, changes of prompt and cuts; and that a setting which is another one shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor
from witness import (
    AGREES,
    BLOCKS,
    SECOND,
    SPANS,
    ask,
    ask_family,
    difference,
    generator_over,
    per_block,
    request_for,
    tree_of,
    video_of,
)

from sdvg_core.causal_wan.context import RollingContext
from sdvg_core.decoders.open import load_vae
from sdvg_core.engine.types import plan_spans
from sdvg_core.settings.context import get_preset

pytestmark = pytest.mark.originals

LONGLIVE = get_preset("longlive-1.0")
RAVEN = get_preset("raven")
GRADIENT = {
    "chunk-wise": get_preset("self-gradient-forcing"),
    "frame-wise": get_preset("self-gradient-forcing-framewise"),
}
CUT = replace(SECOND, cut=True)
FIRST_PROMPT = {"text_prompts": ["first"]}
EVERYTHING = 3 * BLOCKS
TRAINED = 21
"""Latent frames of a training clip, to which Self Gradient Forcing pins its positions, and that RAVEN sees."""
SWITCHES = {"early": 2, "late": 6}
"""The first block with LongLive's second prompt: before and after the window of four blocks is full."""


def self_forcing(window: int, sink: int) -> dict[str, Any]:
    return {"model": {"local_attn_size": window, "sink_size": sink}, "asked": FIRST_PROMPT}


def infinity_rope(text: str) -> dict[str, Any]:
    return {"model": {"local_attn_size": 6, "sink_size": 1}, "asked": {"text_prompts": [text]}}


def longlive(*switches: int, infinity: bool = False) -> dict[str, Any]:
    texts = [["first"], ["second"]][: 1 + len(switches)]
    model = {"local_attn_size": 12, "sink_size": 3, "use_infinite_attention": infinity}
    return {"model": model, "asked": {"text_prompts_list": texts, "switch_frame_indices": [*switches]}}


def gradient_forcing(name: str) -> dict[str, Any]:
    """As its inference script asks."""
    window = {"kv_cache_max_frames": GRADIENT[name].context.window, "kv_cache_sink": GRADIENT[name].context.sink}
    positions = {"kv_cache_train_frames": TRAINED, "kv_cache_position_mode": "top_aligned"}
    asked = {**FIRST_PROMPT, "long_video": True, **window, **positions}
    return {"video": {"model": {}, "asked": asked, "block_frames": GRADIENT[name].block_frames}}


def spans_of(name: str) -> tuple[Any, ...]:
    frames = GRADIENT[name].block_frames
    return tuple(plan_spans(EVERYTHING // frames, frames))


MEMROPE = {"local_attn_size": 12, "sink_size": 3, "recent_size": 4, "compression_method": "ema"}
INTERACTIVE = "interactive_causal_inference.InteractiveCausalInferencePipeline"
ORIGINALS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Self-Forcing": (
        "SELF_FORCING_PATH",
        {"full": self_forcing(-1, 0), "21": self_forcing(21, 0), "12 + 3": self_forcing(12, 3)},
        {"pixels": True},
    ),
    "Infinity-RoPE": (
        "INFINITY_ROPE_PATH",
        {
            "one prompt": infinity_rope("first[7s]"),
            "new prompt": infinity_rope("first[4.5s] | second[2.3s]"),
            "cut": infinity_rope("first[4.5s#] | second[2.3s]"),
        },
        {"flush": True},
    ),
    "MemRoPE": ("MEMROPE_PATH", {"means": {"model": MEMROPE, "asked": FIRST_PROMPT}}, {"whole_cache": False}),
    "LongLive": (
        "LONGLIVE_PATH",
        {
            "one prompt": longlive(),
            "infinity": longlive(infinity=True),
            **{name: longlive(3 * block) for name, block in SWITCHES.items()},
        },
        {"models": ["causal_model", "causal_model_infinity"], "pipeline": INTERACTIVE, "whole_cache": False},
    ),
    **{
        name: ("SELF_GRADIENT_FORCING_PATH", gradient_forcing(name), {"spans": spans_of(name)}) for name in GRADIENT
    },
    # Its window and sink count blocks, and neither the other nor the block being made. Its trial sees everything.
    "RAVEN": (
        "RAVEN_PATH",
        {
            "everything": {},
            "21": {"data.args.window_size": TRAINED // 3 - 1},
            "12 + 3": {"data.args.window_size": 2, "data.args.sink": 1},
        },
        {"script": "run_raven.py"},
    ),
}
"""The variable that names the checkout, the cases, and how it is asked."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """Return an original's answer, which is asked for once."""

    @cache
    def answer(name: str) -> dict[str, Any]:
        variable, cases, options = ORIGINALS[name]
        folder = tmp_path_factory.mktemp("theirs")
        if "script" in options:
            return ask(options["script"], variable, request_for(cases, weights=tree_of(1).state_dict()), folder)
        return ask_family(variable, cases, folder, **options)

    return answer


def ours(name: str, **settings: Any) -> Tensor:
    schedule = settings.pop(
        "schedule", {"LongLive": LONGLIVE.schedule, "RAVEN": RAVEN.schedule}.get(name, "four-step")
    )
    video = {"prompts": settings.pop("prompts", None)}
    if name in GRADIENT:
        schedule = GRADIENT[name].schedule
        video["spans"] = spans_of(name)
    return video_of(generator_over(tree_of(1), RollingContext(**settings), schedule), **video)


SINK = {"window": 12, "sink": 3}
ROPE = {"window": 6, "sink": 1, "relative": True, "flush": True}
MEANS = {"window": 12, "sink": 5, "relative": True, "means": True}
LIVE = {"window": LONGLIVE.context.window, "sink": LONGLIVE.context.sink}
PINNED = {
    name: {key: getattr(preset.context, key) for key in ("window", "sink", "relative", "trained")}
    for name, preset in GRADIENT.items()
}
CAUSAL = {name: getattr(RAVEN.context, name) for name in ("window", "sink", "relative")}
AGREE: list[tuple[str, str, dict[str, Any]]] = [
    ("Self-Forcing", "full", {"window": EVERYTHING, "sink": 0}),
    ("Self-Forcing", "21", {"window": 21, "sink": 0}),
    ("Self-Forcing", "12 + 3", SINK),
    ("Infinity-RoPE", "one prompt", ROPE),
    ("Infinity-RoPE", "new prompt", {**ROPE, "prompts": {6: SECOND}}),
    ("Infinity-RoPE", "cut", {**ROPE, "prompts": {6: CUT}}),
    ("MemRoPE", "means", MEANS),
    ("LongLive", "one prompt", LIVE),
    ("LongLive", "infinity", {**LIVE, "relative": True}),
    *(("LongLive", name, {**LIVE, "recache": True, "prompts": {at: SECOND}}) for name, at in SWITCHES.items()),
    *((name, "video", PINNED[name]) for name in GRADIENT),
    # Its window is that of a training clip, so positions counted from there are the same.
    ("frame-wise", "video", {**PINNED["frame-wise"], "trained": None}),
    ("RAVEN", "everything", {"window": EVERYTHING}),
    # Without a sink, positions may be counted from the window as well: only distances matter.
    ("RAVEN", "21", CAUSAL),
    ("RAVEN", "12 + 3", SINK),
]


@pytest.mark.parametrize(("name", "case", "settings"), AGREE)
def test_latents_are_those_of_the_original(theirs, name, case, settings, measured):
    """Of nine blocks, 27 latent frames."""
    assert measured(difference(ours(name, **settings), theirs(name)["latents"][case])) < AGREES


# The least difference, and the first block that has it.
SHOW: list[tuple[str, str, dict[str, Any], float, int | None]] = [
    ("Self-Forcing", "12 + 3", {"window": 12, "sink": 0}, 0.3, None),
    ("Self-Forcing", "12 + 3", {"window": 9, "sink": 3}, 0.1, None),
    ("Self-Forcing", "12 + 3", {**SINK, "schedule": "raw4"}, 0.1, None),  # timesteps that are not warped
    *(
        ("Infinity-RoPE", "one prompt", {**ROPE, **other}, 1e-2, None)
        for other in ({"relative": False}, {"sink": 0}, {"window": 9})
    ),
    ("Infinity-RoPE", "cut", {**ROPE, "prompts": {6: SECOND}}, 1e-2, None),
    ("MemRoPE", "means", {**MEANS, "means": False}, 1e-2, None),
    ("LongLive", "one prompt", {**LIVE, "relative": True}, 0.1, None),
    ("LongLive", "infinity", LIVE, 0.1, None),
    ("LongLive", "one prompt", {**LIVE, "sink": 0}, 0.1, None),
    # A cache that is kept.
    *(("LongLive", name, {**LIVE, "prompts": {at: SECOND}}, 0.1, at) for name, at in SWITCHES.items()),
    *((name, "video", {**PINNED[name], "sink": 0}, 0.1, None) for name in GRADIENT),
    # Positions counted from the window: from the fifth block of three on, when the window of 12 is full.
    ("chunk-wise", "video", {**PINNED["chunk-wise"], "trained": None}, 0.01, 4),
    # The preset forgets what the trial would see, only beyond a training clip.
    ("RAVEN", "everything", CAUSAL, 0.1, TRAINED // 3),
    ("RAVEN", "12 + 3", {**SINK, "schedule": "four-step"}, 0.1, None),  # timesteps that are not rounded
    ("RAVEN", "12 + 3", {**SINK, "schedule": "1000,938,833,625"}, 1e-3, None),  # noise levels of the table
    ("RAVEN", "12 + 3", {"window": 12, "sink": 0}, 0.1, None),
    ("RAVEN", "12 + 3", {"window": 9, "sink": 3}, 0.1, None),
    ("RAVEN", "12 + 3", {**SINK, "relative": True}, 0.1, None),
]


@pytest.mark.parametrize(("name", "case", "settings", "least", "first"), SHOW)
def test_other_settings_change_the_latents(theirs, name, case, settings, least, first, measured):
    apart = per_block(ours(name, **settings), theirs(name)["latents"][case])
    assert max(apart[:first], default=0) < AGREES or first is None
    assert measured(max(apart) if first is None else apart[first]) > least


def test_official_decoder_makes_the_same_pixels(theirs, tmp_path, measured):
    answer = theirs("Self-Forcing")
    save_file(answer["vae"], tmp_path / "vae.safetensors")
    frames, _ = load_vae(tmp_path / "vae.safetensors").decode(answer["latents"]["full"])
    assert frames.shape[1] == 1 + 4 * (3 * len(SPANS) - 1)
    assert answer["pixels"].std() > 0.1
    assert measured(difference(frames * 2 - 1, answer["pixels"])) < AGREES
