"""Check custom parts written by others against `protocols.py`, and their results at every call.

A part may have a text `key` that differs whenever its results could. Without one it gets a new cache key in every
run, so that its results are never re-used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import Tensor

from ..errors import BadInput, faults_of
from ..settings.route import Router
from .inputs import BlockCall
from .protocols import Scorer
from .types import Generated


def check_part(role: Literal["router", "scorer"], part: Any) -> None:
    """Raise `BadInput` unless a part fits its protocol."""
    with faults_of(role, part):
        fits = isinstance(part, {"router": Router, "scorer": Scorer}[role])
    if not fits:
        raise BadInput(f"{_name(part)} is no {role}; give it what sdvg_core.{role.title()} has")


def checked_parts(parts: Mapping[str, Any], vae: Any) -> dict[str, Any]:
    """Wrap parts, by role, to check their results. Raises `BadInput` for one that does not fit the VAE."""
    for role, part in parts.items():
        for name in ("latent_channels", "temporal_stride", "spatial_stride"):
            size = getattr(part, name, None)
            wanted = getattr(vae, name)
            if role != "scorer" and size not in (None, wanted):
                raise BadInput(f"the {role} {_name(part)} has {name} {size!r:.20}; the VAE's is {wanted}")
    return {role: OutsidePart(role, part) for role, part in parts.items()}


def cache_key(part: Any) -> str:
    """Return the cache key of a part: its `key`, or a unique one."""
    return f"{type(part).__qualname__} {getattr(part, 'key', '') or uuid.uuid4()}"


def note_on(role: str, part: Any) -> str:
    """Return the report's note on a part."""
    unkeyed = "" if getattr(part, "key", "") else ", and gives no key, so nothing it made is used again"
    return f"The {role} is {_name(part)}, from outside{unkeyed}."


class OutsidePart:
    """Wraps a custom part. Raises `BadInput` for results of a wrong shape, which could go unnoticed."""

    def __init__(self, role: str, inner: Any) -> None:
        self.name = role
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block; check that it has the noise's shape."""
        with faults_of(self.name, self.inner):
            made: Generated = self.inner.generate(call)
        self._check_shape(made.latents, tuple(call.noise.draw(call.span, 0).shape))
        return made

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per frame."""
        with faults_of(self.name, self.inner):
            scores: Tensor = self.inner.score(frames.clone(), prompt)  # it may write into what it gets
        self._check_shape(scores, (frames.shape[1],))
        return scores.float().cpu()

    def describe(self) -> Mapping[str, Any]:
        """Return the settings for the report, with a note on the part."""
        with faults_of(self.name, self.inner):
            described = self.inner.describe()
        try:
            described = json.loads(json.dumps(dict(described)))
        except (TypeError, ValueError):
            fault = f"describe() of the {self.name} {_name(self.inner)} returns what JSON cannot hold"
            raise BadInput(f"{fault}; return a dict of texts and numbers") from None
        return {**described, "notes": (*described.get("notes", ()), note_on(self.name, self.inner))}

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return no notes, as the scorer's limits are not known."""
        return ()

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode latents; check the shape of the frames."""
        with faults_of(self.name, self.inner):
            frames, state_after = self.inner.decode(latents, state)
        count = self.temporal_stride * latents.shape[2] - (self.temporal_stride - 1 if state is None else 0)
        rows, columns = (self.spatial_stride * size for size in latents.shape[3:])
        self._check_shape(frames, (1, count, 3, rows, columns))
        return frames, state_after

    def encode(self, frames: Tensor) -> Tensor:
        """Encode 1 + stride * k pixel frames; check the shape of the latents."""
        with faults_of(self.name, self.inner):
            latents: Tensor = self.inner.encode(frames)
        count = 1 + (frames.shape[1] - 1) // self.temporal_stride
        rows, columns = (size // self.spatial_stride for size in frames.shape[3:])
        self._check_shape(latents, (1, self.latent_channels, count, rows, columns))
        return latents

    def _check_shape(self, values: Any, shape: tuple[int, ...]) -> None:
        sizes = getattr(values, "shape", None)
        if sizes is None or tuple(sizes) != shape:
            wrong = f"no tensor but a {type(values).__name__:.40}" if sizes is None else _sizes(sizes)
            raise BadInput(f"the {self.name} {_name(self.inner)} returned {wrong}; return {_sizes(shape)}")


def _sizes(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "()"


def _name(part: Any) -> str:
    return f"{type(part).__name__:.40}"
