"""Parts that others write: what they must have, and checks on what they return.

A part may have a text `key`, which must differ wherever its results could. A part without one gets a new name in
every run, so its results are never re-used.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from .protocols import BlockCall
    from .types import Generated

# Nothing here imports torch: the router imports this file, and the command line the router.
MODEL = ("name", "block_frames", "latent_channels", "timesteps", "first_timesteps", "anchor_horizon", "generate")
NEEDED = {
    "drafter": ("BlockGenerator", MODEL),
    "target": ("BlockGenerator", MODEL),
    "codec": ("VideoCodec", ("latent_channels", "temporal_stride", "spatial_stride", "decode", "encode")),
    "scorer": ("Scorer", ("score", "describe")),
    "router": ("Router", ("needs_scorer", "keep")),
}
"""By role: the protocol, and the attributes it asks for."""


def check_part(role: str, part: Any) -> None:
    """Raise `BadInput` unless a part has all that its protocol asks for."""
    protocol, names = NEEDED[role]
    missing = [name for name in names if not hasattr(part, name)]
    if missing:
        raise BadInput(f"the {role} {_name(part)} has no {missing[0]}; give it what sdvg_core.{protocol} has")


def checked_parts(parts: Mapping[str, Any], vae: Any) -> dict[str, Any]:
    """Return parts, by role, that check what they return. Raises `BadInput` for one that does not fit the VAE."""
    for role, part in parts.items():
        for name in ("latent_channels", "temporal_stride", "spatial_stride"):
            here, there = getattr(part, name, None), getattr(vae, name)
            if role != "scorer" and here is not None and here != there:
                raise BadInput(f"the {role} {_name(part)} has {name} {here!r:.20}; the VAE's is {there}")
    return {role: OutsidePart(role, part) for role, part in parts.items()}


def identity_of(part: Any) -> str:
    """Return what the results of a part depend on: its key, or a name that nothing else has."""
    return f"{type(part).__qualname__} {getattr(part, 'key', '') or uuid.uuid4()}"


def note_on(role: str, part: Any) -> str:
    """Return what a reader of the report must know of a part."""
    kept = "" if getattr(part, "key", "") else ", and gives no key, so nothing it made is used again"
    return f"The {role} is {_name(part)}, from outside{kept}."


class OutsidePart:
    """A part from outside in its role. Its results are checked; `BadInput` says what is wrong with them."""

    def __init__(self, role: str, inner: Any) -> None:
        check_part(role, inner)
        self.name, self.inner, self._who = role, inner, f"the {role} {_name(inner)}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block: an estimate per timestep, each shaped as the noise."""
        made: Generated = self.inner.generate(call)
        steps = self.first_timesteps if call.span.start == 0 and self.first_timesteps else self.timesteps
        wanted, there = call.stop or len(steps), getattr(made, "predictions", ())
        if len(there) != wanted:
            found = f"{self._who} made {len(there)} estimates"
            raise BadInput(f"{found}; return Generated with {wanted}, one per timestep")
        for clean in there:
            _check_shape(self._who, clean, tuple(call.noise.draw(call.span, 0).shape))
        return made

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per frame."""
        scores = self.inner.score(frames, prompt)
        _check_shape(self._who, scores, (frames.shape[1],))
        return cast("Tensor", scores.float().cpu())

    def describe(self) -> Mapping[str, Any]:
        """Return the settings for the report, with a note on where it is from."""
        described = self.inner.describe()
        return {**described, "notes": (*described.get("notes", ()), note_on(self.name, self.inner))}

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return nothing: what such a scorer reads of a prompt is not known."""
        return ()

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode latents; the clip's first latent frame is one pixel frame."""
        frames, state_after = self.inner.decode(latents, state)
        count = self.temporal_stride * latents.shape[2] - (self.temporal_stride - 1 if state is None else 0)
        rows, columns = (self.spatial_stride * size for size in latents.shape[3:])
        _check_shape(self._who, frames, (1, count, 3, rows, columns))
        return frames, state_after


def _check_shape(who: str, values: Any, shape: tuple[int, ...]) -> None:
    found = getattr(values, "shape", None)
    if found is None or not values.is_floating_point():
        raise BadInput(f"{who} returned a {type(values).__name__}; return a tensor of floats")
    if tuple(found) != shape:
        wrong, wanted = (" x ".join(map(str, sizes)) or "()" for sizes in (found, shape))
        raise BadInput(f"{who} returned {wrong}; return {wanted}")


def _name(part: Any) -> str:
    return f"{type(part).__name__:.40}"
