"""The folders of models that ComfyUI's `extra_model_paths.yaml` names.

Every value there is text for ComfyUI, so all are read as text: numbers and dates would only cost time, those of
base 60 any amount. Nothing is merged (`<<`), as a few merges can stand for any number of entries.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadInput, first_line
from ..files.small_files import read_small
from ..settings.fields import impossible_path

EXTRA_PATHS = "extra_model_paths.yaml"
LARGEST_CONFIG = 64_000
"""Bytes; ComfyUI's example has 3,000. Reading so many takes half a second."""


def extra_folders(models: Path, kinds: Sequence[str]) -> list[Path]:
    """Return the folders of these kinds in ComfyUI's extra_model_paths.yaml, which is in or next to `models`.

    Raises `BadInput` if that file cannot be read, and `ModuleNotFoundError` without PyYAML if there is one.
    """
    file = next((place / EXTRA_PATHS for place in (models, models.parent) if (place / EXTRA_PATHS).is_file()), None)
    if file is None or not file.stat().st_size:
        return []
    import yaml

    try:
        content = yaml.load(read_small(file, LARGEST_CONFIG), yaml.BaseLoader)
        sections = content.values() if isinstance(content, dict) else ()
        return [
            folder for section in sections if isinstance(section, dict) for folder in _named(section, kinds, file)
        ]
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        fault = f"{file} is not read ({first_line(error)})"
        raise BadInput(f"{fault}; correct it, or name the models one by one") from error


def _named(section: dict[str, object], kinds: Sequence[str], file: Path) -> list[Path]:
    """Return the folders of a section. Raises `ValueError` for paths that no system has."""
    if "<<" in section:
        raise ValueError("it merges sections by <<, which is not read here")
    values = {name: value for name, value in section.items() if isinstance(value, str)}
    base = os.path.expandvars(os.path.expanduser(values.get("base_path", "")))  # noqa: PTH111 - as ComfyUI does it
    lines = [line for kind in kinds for line in values.get(kind, "").splitlines() if line]
    folders = [file.parent / base / line for line in lines]
    if odd := [folder for folder in folders if impossible_path(str(folder))]:
        raise ValueError(f"the path {ascii(str(odd[0]))[1:60]} is too long or has a NUL byte or half a character")
    return folders
