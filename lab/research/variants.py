"""The shipped models in other forms, by name: other memories, smaller files, the TAEHV, held colours.

Of two names that are joined by TOGETHER, the first is the drafter's and the second the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sdvg_core.loading.convert import Conversion, open_source
from sdvg_core.pocket.trained_set import pocket_fast_vae
from sdvg_core.weights.kitchen import FORMATS

from .videos import StudyOptions

Change = Callable[[StudyOptions, str], StudyOptions]
"""Gives the models of a study another form, by its name."""
TOGETHER = "+"

WINDOW = {"policy": "incremental", "relative": True, "window": 12}
MEMORIES: Mapping[str, dict[str, Any]] = {
    "recompute": {},
    "window": {**WINDOW, "sink": 3},
    "deep-sink": {**WINDOW, "context_memory": "deep-sink"},
    "memrope": {**WINDOW, "sink": 3, "context_memory": "memrope"},
}
"""Settings of a model that remembers; the first as they were trained."""
PLAIN = "bf16"
FILES = (PLAIN, "int8", "w4a8")
"""Formats of a model's file; the first is the shipped one's."""
SMALLER = Path("out/formats")
"""Where smaller files are kept; not part of the repository."""
DECODERS = ("vae", "taehv")
HOLDS = ("0", "0.3")
"""Colour holds."""


def both(name: str) -> tuple[str, str]:
    """Return the names of the drafter's form and the target's."""
    drafter, joined, target = name.partition(TOGETHER)
    return (drafter, target) if joined else (name, name)


def as_shipped(options: StudyOptions, _: str) -> StudyOptions:
    """Change nothing."""
    return options


def with_fast_decoder(options: StudyOptions, name: str) -> StudyOptions:
    """Decode by the VAE or by the TAEHV; see DECODERS."""
    return options if name == "vae" else replace(options, files=replace(options.files, vae=pocket_fast_vae()))


def with_memories(options: StudyOptions, name: str) -> StudyOptions:
    """Give each model its memory; see MEMORIES. The TAEHV decodes."""
    drafter, target = (MEMORIES[of] for of in both(name))
    load = options.load
    load = replace(load, drafter=replace(load.drafter, **drafter), target=replace(load.target, **target))
    return replace(with_fast_decoder(options, "taehv"), load=load)


def with_files(options: StudyOptions, name: str, folder: Path = SMALLER) -> StudyOptions:
    """Give each model a file in its format; see FILES. A smaller one is made if the folder lacks it.

    Products are of float32, so that the shipped format is exactly what its file holds.
    """
    drafter, target = both(name)
    files = options.files
    assert files.drafter is not None
    assert files.target is not None
    smaller = replace(
        files,
        drafter=converted(files.drafter, drafter, folder),
        target=converted(files.target, target, folder),
    )
    return replace(options, files=smaller)


def converted(source: Path, form: str, folder: Path) -> Path:
    """Return the file of a model in a format; make it in the folder if it is not there."""
    if form == PLAIN:
        return source
    output = folder / f"{source.stem}_{form}.safetensors"
    if not output.exists():
        folder.mkdir(parents=True, exist_ok=True)
        conversion = Conversion(source=open_source(source), form=FORMATS[form], device=torch.device("cpu"))
        conversion.write(output, lambda _: None)
    return output


def with_hold(options: StudyOptions, name: str) -> StudyOptions:
    """Hold the colours by a share; see HOLDS. The TAEHV decodes."""
    return replace(with_fast_decoder(options, "taehv"), colour_hold=float(name))
