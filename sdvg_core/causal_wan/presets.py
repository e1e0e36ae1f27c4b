"""Which preset a checkpoint runs with, by its file's name or its size."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path, PurePath

from ..errors import BadInput
from ..settings.context import Preset, changed_preset, get_preset
from ..settings.execution import AUTO
from ..settings.load import ModelOptions
from ..weights.model_files import KNOWN_MODELS, QUANTISED_FORMATS, converted_name, has_name, known_model
from ..weights.pickles import Choice
from .config import WanConfig

ANYBODYS = ("model.pt", *(converted_name(PurePath("model.pt"), form).name for form in QUANTISED_FORMATS))
"""File names shared by many checkpoints, which do not identify one without its folder."""


def size_preset(config: WanConfig) -> str | None:
    """Return the name of the likely preset for a published size, else None."""
    return next((model.preset for model in KNOWN_MODELS if model.size == config.size), None)


def guess_preset(config: WanConfig, remedy: str = "name one, such as custom") -> Preset:
    """Return the likely preset for a checkpoint of this size. Raises `BadInput`, with `remedy`, if it has none."""
    name = size_preset(config)
    if name is None:
        size = f"{config.size} ({config.num_layers} blocks of width {config.dim})"
        raise BadInput(f"no preset is known for a model of {size}; {remedy}")
    return get_preset(name)


def preset_by_name(file: Path) -> Preset | None:
    """Return the preset of a known file, or None.

    Raises `BadInput` for a name that several models share, outside their folders, as they run differently.
    """
    if known := known_model(file):
        return get_preset(known.preset)
    if file.name.lower() in ANYBODYS:
        return None
    sharing = [model for model in KNOWN_MODELS if any(has_name(file, PurePath(name).name) for name in model.names)]
    if not sharing:
        return None
    presets = " or ".join(dict.fromkeys(model.preset for model in sharing))
    folders = " or ".join(model.files[0] for model in sharing)
    raise BadInput(f"{len(sharing)} models are {file.name}; state the preset ({presets}) or keep it as {folders}")


def notes_by_name(file: Path, config: WanConfig, *, stated: bool) -> tuple[str, ...]:
    """Return notes on a known file. `stated`: whether the user chose the preset."""
    known = known_model(file)
    if known is None:
        return ()
    notes = [f"{file.name}: {known.warning}."] if known.warning else []
    # The preset of this size needs no note.
    if not stated and size_preset(config) != known.preset:
        notes.append(f"{file.name} is the name of {known.name}, so it runs with the preset {known.preset}.")
    return tuple(notes)


def named_preset(options: ModelOptions, file: Path) -> Preset | None:
    """Return the stated preset, else that of the file's name, else None."""
    return preset_by_name(file) if options.preset == AUTO else get_preset(options.preset)


def choice_of(options: ModelOptions, file: Path) -> Choice:
    """Return the choice of a file's state dict, by the options' `weights` or the named preset."""
    named = named_preset(options, file)
    return Choice(options.weights, named.weights if named else AUTO)


def chosen_preset(options: ModelOptions, file: Path, config: WanConfig, schedule: str | None = None) -> Preset:
    """Return the preset of a checkpoint, with the options' values. `schedule`: of both models, unless stated.

    Raises `BadInput` for an unknown preset, contradictory values, and settings without effect.
    """
    base = named_preset(options, file) or guess_preset(config)
    changes = {name: value for name, value in asdict(options).items() if value is not None}
    del changes["preset"], changes["weights"]
    policy = changes.pop("policy", None)
    changes["schedule"] = options.schedule or schedule or base.schedule
    return changed_preset(base, changes, policy)
