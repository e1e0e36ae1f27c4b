"""From a file's name to the preset of the published model that has it."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints.known_models import known_model, row_of
from .config import WanConfig
from .presets import Preset, get_preset, size_preset


def preset_by_name(file: Path) -> Preset | None:
    """Return the preset of a known file; None for any other. Raises `BadInput` as `known_model` does."""
    known = known_model(file)
    return get_preset(known.preset) if known else None


def notes_by_name(file: Path, config: WanConfig, *, stated: bool) -> tuple[str, ...]:
    """Return what a user must know of a file because of its name. `stated`: whether the preset was."""
    known = row_of(file)
    if known is None:
        return ()
    notes = [f"{file.name}: {known.warning}."] if known.warning else []
    # What the size suggests too surprises nobody.
    if not stated and size_preset(config) != known.preset:
        notes.append(
            f"{file.name} is run with the preset {known.preset}, for that is the name of {known.name}. A stated "
            "preset goes before the name."
        )
    return tuple(notes)
