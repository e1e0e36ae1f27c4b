"""Check the results of custom parts written by others, at every call; `settings/parts.py` checks them at the door.

What needs only shapes and types is checked here. Values are read with those of every other part (`FiniteChecks`),
as reading waits for a GPU. A part may have a text `key` that differs whenever its results could. Without one it has
a new cache key in every run, so that its results are never re-used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from ..errors import BadInput, quoted
from ..settings.parts import faults_of, is_whole, part_name
from .inputs import BlockCall
from .types import FiniteChecks, Generated, Span

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""The kinds of numbers that parts return."""


def checked_parts(parts: Mapping[str, Any], vae: Any) -> dict[str, Any]:
    """Wrap parts, by role, to check their results. Raises `BadInput` for one that does not fit the VAE."""
    for role, part in parts.items():
        for name in ("latent_channels", "temporal_stride", "spatial_stride"):
            size = getattr(part, name, None)
            wanted = getattr(vae, name)
            if role != "scorer" and size not in (None, wanted):
                raise BadInput(f"the {role} {part_name(part)} has {name} {quoted(size, 20)}; the VAE's is {wanted}")
    return {role: OutsidePart(role, part) for role, part in parts.items()}


def part_key(part: Any) -> str:
    """Return the cache key of a part: its `key`, or a unique one."""
    return f"{type(part).__qualname__} {getattr(part, 'key', '') or uuid.uuid4()}"


def outside_note(role: str, part: Any) -> str:
    """Return the report's note on a part."""
    unkeyed = "" if getattr(part, "key", "") else ", and gives no key, so nothing it made is used again"
    return f"The {role} is {part_name(part)}, from outside{unkeyed}."


# --- at every call


class OutsidePart:
    """Wraps a custom part. Raises `BadInput` for results that its protocol rules out."""

    def __init__(self, role: str, inner: Any) -> None:
        self.name = role
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block; check that its predictions have the noise's shape."""
        with faults_of(self.name, self.inner):
            made = self.inner.generate(call)
        if not isinstance(made, Generated):
            raise self._fault(f"returned a {part_name(made)}", "return sdvg_core.Generated with a tuple of tensors")
        predictions = made.predictions
        if not isinstance(predictions, Sequence) or not predictions:
            wrong = (
                "no prediction"
                if isinstance(predictions, Sequence)
                else f"predictions in a {part_name(predictions)}"
            )
            raise self._fault(f"returned {wrong}", "return a tuple of one tensor for each step")
        if not _is_cost(made.cost):
            raise self._fault(f"returned the cost {quoted(made.cost, 40)}", "return a Cost, or leave it out")
        if call.left_out and len(predictions) + call.left_out != len(self.timesteps):
            fault = f"returned {len(predictions)} predictions where {call.left_out} steps were to be left out"
            raise self._fault(fault, "heed call.left_out, or set target_steps to 0")
        shape = tuple(call.noise.draw(call.span, 0).shape)
        for latents in (*predictions, made.latents):
            self._check_tensor(latents, shape)
        return made

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per frame."""
        with faults_of(self.name, self.inner):
            scores: Tensor = self.inner.score(frames.clone(), prompt)  # it may write into what it gets
        self._check_tensor(scores, (frames.shape[1],))
        return scores.float().cpu()

    def describe(self) -> Mapping[str, Any]:
        """Return the settings for the report, with a note on the part."""
        with faults_of(self.name, self.inner):
            described = self.inner.describe()
        try:
            described = json.loads(json.dumps(dict(described), allow_nan=False))
        except (TypeError, ValueError):
            raise self._fault("returned what JSON cannot hold", "return a dict of texts and numbers") from None
        notes = described.get("notes", [])
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise self._fault(f"returned the notes {quoted(notes, 40)}", "return a list of texts")
        return {**described, "notes": (*notes, outside_note(self.name, self.inner))}

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return no notes, as the scorer's limits are not known."""
        return ()

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode latents; check the frames. The state is a tuple around the codec's own, which may be None."""
        begins_clip = state is None
        with faults_of(self.name, self.inner):
            decoded = self.inner.decode(latents, None if begins_clip else state[0])
        if not isinstance(decoded, tuple) or len(decoded) != 2:
            raise self._fault(f"returned a {part_name(decoded)}", "return a tuple of frames and state")
        frames, state_after = decoded
        stride = self.temporal_stride
        count = stride * latents.shape[2] - (stride - 1 if begins_clip else 0)
        rows, columns = (self.spatial_stride * size for size in latents.shape[3:])
        self._check_tensor(frames, (1, count, 3, rows, columns))
        return frames, (state_after,)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode 1 + stride * k pixel frames; check the shape of the latents."""
        with faults_of(self.name, self.inner):
            latents: Tensor = self.inner.encode(frames)
        count = 1 + (frames.shape[1] - 1) // self.temporal_stride
        rows, columns = (size // self.spatial_stride for size in frames.shape[3:])
        self._check_tensor(latents, (1, self.latent_channels, count, rows, columns))
        return latents

    def _check_tensor(self, values: Any, shape: tuple[int, ...]) -> None:
        """Raise `BadInput` unless `values` is a dense tensor of real numbers, of this shape."""
        if not isinstance(values, torch.Tensor):
            raise self._fault(f"returned no tensor but a {part_name(values)}", f"return {_sizes(shape)}")
        if tuple(values.shape) != shape:
            raise self._fault(f"returned {_sizes(values.shape)}", f"return {_sizes(shape)}")
        if values.dtype not in FLOAT_DTYPES:
            kind = str(values.dtype).removeprefix("torch.")
            raise self._fault(f"returned numbers in {kind}", "return them in float32, float16 or bfloat16")
        if values.is_meta or values.layout != torch.strided:
            raise self._fault("returned a tensor without plain memory", "return a dense one, on a device")

    def _fault(self, fault: str, remedy: str) -> BadInput:
        return BadInput(f"the {self.name} {part_name(self.inner)} {fault}; {remedy}")


def check_frames(checks: FiniteChecks, codec: Any, frames: Tensor, span: Span) -> None:
    """Start the checks of a block's frames; our own codecs clamp them, so only custom ones may leave [0, 1]."""
    checks.add(frames, span, "decoded frames")
    if isinstance(codec, OutsidePart):
        checks.add_range(frames, span, f"the {codec.name} {part_name(codec.inner)}")


def _is_cost(cost: Any) -> bool:
    """True for a `Cost` of numbers."""
    from .types import Cost

    if not isinstance(cost, Cost):
        return False
    counts = (cost.denoising_passes, cost.context_passes, cost.encodes)
    return all(is_whole(number, 0) for number in counts) and isinstance(cost.context_seconds, SupportsFloat)


def _sizes(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "()"
