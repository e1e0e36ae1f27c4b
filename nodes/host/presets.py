"""How a checkpoint is to be run travels with its MODEL, through every clone that LoRA and device nodes make."""

from __future__ import annotations

from typing import Any

from ...sdvg_core.causal_wan.presets import Preset, guess_preset
from .model import config_of

KEY = "sdvg_preset"


def attach_preset(patcher: Any, preset: Preset | None) -> Any:
    """Return the MODEL with the preset attached; None leaves it to be guessed."""
    if preset is not None:
        patcher.set_attachments(KEY, preset)
    return patcher


def preset_of(patcher: Any) -> Preset:
    """Return a MODEL's preset, or guess it by size for one from another loader.

    Raises `BadInput` if neither is possible.
    """
    attached = patcher.get_attachment(KEY)
    if attached is not None:
        return attached
    return guess_preset(config_of(patcher.model.diffusion_model))
