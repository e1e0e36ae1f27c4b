"""The fingerprint of a request: everything that determines a video's bits, known before a model is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..devices.device import arithmetic_on, check_device, side_device
from ..engine.outside import part_key
from ..loading.headers import named
from ..settings.fields import as_json, settings_of
from ..settings.load import LoadOptions, split_strength
from ..settings.request import VideoRequest
from ..text.prompts import PromptSchedule
from ..weights.lora_file import config_beside
from ..weights.model_files import ModelFiles

Fingerprint = Mapping[str, str]
MOST_DIFFERENCES = 3
LONGEST_NAMED = 80
CLIPS = ("continue_from", "start_image", "restyle", "control", "control_mask")
"""Fields of a request that are files, or words; the fingerprint has a hash of a file's content."""


def request_fingerprint(
    files: ModelFiles,
    load: LoadOptions,
    request: VideoRequest,
    prompt: PromptSchedule,
    own_latents: Path | None = None,
) -> Fingerprint:
    """Return the fingerprint of a video: text values by name. Equal fingerprints give the same bits.

    `own_latents`: file of the latents that are taken in place of the clip to continue.
    """
    clips = {name: named(path) for name in CLIPS if not isinstance(path := getattr(request, name), str)}
    models = {
        f.name.replace("_", " "): named(getattr(files, f.name)) for f in fields(files) if f.name != "controls"
    }
    models |= {f"control module {path.name}": named(path) for path in files.controls}
    loras = {f"LoRA {text}": _named_lora(split_strength(text)[0]) for text in load.loras}
    texts = {f"prompt from block {start + 1}": text for start, text in prompt.entries}
    texts |= {f"cut at block {start + 1}": "yes" for start in prompt.cuts}
    texts |= {"shots": request.shots} if request.shots else {}
    texts |= {"shown clips": request.shown_clips} if request.shown_clips else {}
    texts |= {"context blocks": str(request.context_blocks)} if request.context_blocks else {}
    texts |= {f"clip {clip.name}": named(clip.path) for clip in request.clips}
    texts |= {"latents of the clip": named(own_latents)} if own_latents else {}
    device = check_device(load.device)
    side_arithmetic = arithmetic_on(side_device(load)) if side_device(load) != device else {}
    return {
        **texts,
        **flat(_of_files(request) | clips),
        **models,
        **flat(_of_files(load) | {"loras": None, "reward_dtype": load.scorer_dtype}),
        **loras,
        **arithmetic_on(device),
        **{f"side {name}": value for name, value in side_arithmetic.items()},
    }


def _of_files(settings: Any) -> dict[str, Any]:
    """Return the settings from which the files that are written can follow, as JSON values."""
    values = as_json(settings, part_key)
    return {name: values[name] for name, known in settings_of(type(settings)).items() if known.of_files}


def _named_lora(path: Path) -> str:
    """Return a LoRA's name and fingerprint, with those of the config beside it, which may state its scale."""
    config = config_beside(path)
    return named(path) if config is None else f"{named(path)} {named(config)}"


def differences(then: Fingerprint, now: Fingerprint) -> str:
    """Describe the differences of two fingerprints: `seed (then 42, now 43), tau (...)`; no long values."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    shown = []
    for name in names[:MOST_DIFFERENCES]:
        before = then.get(name, "nothing")
        after = now.get(name, "nothing")
        shown.append(f"{name} (then {before}, now {after})" if len(before + after) <= LONGEST_NAMED else name)
    return ", ".join(shown) + (f" and {len(names) - MOST_DIFFERENCES} more" if names[MOST_DIFFERENCES:] else "")


def digest_of(fingerprint: Fingerprint) -> str:
    """Return a hash of a fingerprint, without readable prompts."""
    return hashlib.sha256(json.dumps(dict(fingerprint), sort_keys=True).encode()).hexdigest()


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values as text, by the names that lead to them."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        words = f"{prefix}{name}".replace("_", " ")
        texts |= flat(value, f"{words} ") if isinstance(value, Mapping) else {words: str(value)}
    return texts
