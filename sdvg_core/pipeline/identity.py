"""Everything that determines a video, as text, so that requests can be compared without loading a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ..devices.device import arithmetic_on, check_device
from .fingerprint import named

if TYPE_CHECKING:
    from ..checkpoints.model_files import ModelFiles
    from ..text.prompts import PromptSchedule
    from .options import LoadOptions
    from .request import VideoRequest

Identity = Mapping[str, str]
MOST_TOLD = 3


def identify(
    files: ModelFiles,
    load: LoadOptions,
    request: VideoRequest,
    prompt: PromptSchedule,
    gate_prompt: str | None = None,
) -> Identity:
    """Return everything that determines a video's bits, by name. Equal identities make the same video."""
    models = {f.name.replace("_", " "): getattr(files, f.name) for f in fields(files)}
    begin = {name: getattr(request, name) for name in ("continue_from", "start_image")}
    texts = {f"prompt from block {start + 1}": text for start, text in prompt.entries}
    here, side = check_device(load.device), load.side
    aside = {f"side {name}": value for name, value in arithmetic_on(side).items()} if side != here else {}
    gate = {} if gate_prompt is None else {"gate prompt": gate_prompt}
    return {
        **texts,
        **gate,
        **_flat({**asdict(request), **{name: named(path) for name, path in begin.items()}}),
        **{role: named(path) for role, path in models.items()},
        **_flat(_arithmetic(load)),
        **arithmetic_on(here),
        **aside,
    }


def _arithmetic(load: LoadOptions) -> dict[str, Any]:
    """Return every execution setting that changes bits of the output; overlap changes none."""
    settings = asdict(load.settled())
    execution: dict[str, Any] = settings.pop("execution")
    del execution["overlap"]
    return settings | execution


def differences(then: Identity, now: Identity) -> str:
    """Return what differs, for people to read: `seed (then 42, now 43), tau (...)`."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    told = [f"{name} (then {_short(then.get(name))}, now {_short(now.get(name))})" for name in names[:MOST_TOLD]]
    return ", ".join(told) + (f" and {len(names) - MOST_TOLD} more" if names[MOST_TOLD:] else "")


def digest_of(identity: Identity) -> str:
    """Return a hash of an identity, which reveals nothing of it."""
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        words = f"{prefix}{name}".replace("_", " ")
        flat |= _flat(value, f"{words} ") if isinstance(value, Mapping) else {words: str(value)}
    return flat


def _short(value: str | None, limit: int = 40) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= limit else text[: limit - 3] + "..."
