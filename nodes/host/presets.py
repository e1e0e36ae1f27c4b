"""Attach to a MODEL what its checkpoint was, so that it survives every clone that LoRA and device nodes make."""

from __future__ import annotations

from typing import Any

from ...sdvg_core.causal_wan.presets import Preset, guess_preset
from ...sdvg_core.checkpoints.dictionaries import Choice, note_on
from ...sdvg_core.checkpoints.weights import WeightFile
from .model import config_of

KEY, FILE_KEY = "sdvg_preset", "sdvg_file"
DICTIONARY_KEY, NOTE_KEY, NOTES_KEY = "sdvg_dictionary", "sdvg_dictionary_note", "sdvg_file_notes"


def attach_preset(patcher: Any, preset: Preset | None, file: str | None = None, notes: tuple[str, ...] = ()) -> Any:
    """Attach the preset (None: guess it later), the file's name and notes on it to the MODEL, and return it."""
    return _attach(patcher, {KEY: preset, FILE_KEY: file, NOTES_KEY: notes or None})


def attach_dictionary(patcher: Any, file: WeightFile, choice: Choice) -> Any:
    """Attach the name of the dictionary that was taken from a training checkpoint, and what to tell of that choice."""
    note = note_on(file.path.name, file.dictionary, file.dictionaries, choice)
    return _attach(patcher, {DICTIONARY_KEY: file.dictionary or None, NOTE_KEY: note})


def _attach(patcher: Any, values: dict[str, Any]) -> Any:
    for key, value in values.items():
        if value is not None:
            patcher.set_attachments(key, value)
    return patcher


def dictionary_of(patcher: Any) -> str | None:
    """Return the name of the dictionary that a MODEL was taken from; None if its file has none, or is not known."""
    return patcher.get_attachment(DICTIONARY_KEY)


def file_notes(patcher: Any) -> tuple[str, ...]:
    """Return what to tell of a MODEL's file: of the dictionary that was chosen, and of its name."""
    taken = patcher.get_attachment(NOTE_KEY)
    return (*([taken] if taken else []), *(patcher.get_attachment(NOTES_KEY) or ()))


def file_of(patcher: Any) -> str | None:
    """Return the name of a MODEL's file, without folders; None if another loader loaded it."""
    return patcher.get_attachment(FILE_KEY)


def preset_of(patcher: Any) -> Preset:
    """Return a MODEL's preset. If another loader loaded it, guess the preset from its size.

    Raises `BadInput` if neither is possible.
    """
    attached = patcher.get_attachment(KEY)
    if attached is not None:
        return attached
    return guess_preset(config_of(patcher.model.diffusion_model))
