"""Attach a checkpoint's preset to its MODEL, so that it survives every clone that LoRA and device nodes make."""

from __future__ import annotations

from typing import Any

from ...sdvg_core.causal_wan.presets import Preset, guess_preset
from .model import config_of

KEY, FILE_KEY = "sdvg_preset", "sdvg_file"


def attach_preset(patcher: Any, preset: Preset | None, file: str | None = None) -> Any:
    """Attach the preset (None: guess it later) and the file's name (for reports) to the MODEL, and return it."""
    for key, value in ((KEY, preset), (FILE_KEY, file)):
        if value is not None:
            patcher.set_attachments(key, value)
    return patcher


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
