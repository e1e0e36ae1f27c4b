"""Which models a study runs on, and what all of its rows have in common because of that."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..checkpoints.model_files import ModelFiles
from ..pipeline.options import LoadOptions
from ..pocket.trained_set import load_options as pocket_load_options
from ..pocket.trained_set import trained_set
from .equipment import WorkerOptions

POCKET_SIZE = 64
FINGERPRINTED = 32 << 20
"""Bytes at either end of a model file that tell it from another one of the same size."""


def pocket_models(load: LoadOptions) -> tuple[ModelFiles, LoadOptions]:
    """Return the embedded set, and `load` with what it is meant to be run with."""
    meant = pocket_load_options()
    return trained_set(), replace(
        load,
        drafter=meant.drafter,
        target=meant.target,
        dtype=meant.dtype,
        text_dtype=meant.text_dtype,
        execution=replace(load.execution, vae_layers=meant.execution.vae_layers),
    )


def common_settings(options: WorkerOptions) -> dict[str, Any]:
    """Return everything but prompt, seed and configuration that a row's values depend on, as JSON values."""
    roles = ("drafter", "target", "vae", "text_encoder", "reward")
    return {
        "models": {role: fingerprint(getattr(options.files, role)) for role in roles},
        "loading": asdict(options.load),
        "blocks": options.blocks,
        "size": [options.width, options.height],
        "oracle": options.pocket,
        "external": asdict(options.external) if options.external else None,
        "versions": {"sdvg": __version__, "torch": torch.__version__},
    }


def fingerprint(path: Path) -> dict[str, str]:
    """Return a file's name, and a hash of its size, its beginning and its end; a folder has only a name."""
    if not path.is_file():
        return {"file": path.name}
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(FINGERPRINTED))
        file.seek(max(size - FINGERPRINTED, 0))
        digest.update(file.read())
    return {"file": path.name, "sha256": digest.hexdigest()}
