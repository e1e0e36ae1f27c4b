"""Which models a study runs on, and what all of its rows have in common because of that."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from sdvg_core import __version__
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.pipeline.fingerprint import named
from sdvg_core.pipeline.options import LoadOptions
from sdvg_core.pocket.trained_set import pocket_options, trained_set

from .equipment import WorkerOptions

POCKET_SIZE = 64
ROWS_VERSION = 2
"""Rows of version 1 do not count passes."""


def pocket_models(load: LoadOptions) -> tuple[ModelFiles, LoadOptions]:
    """Return the embedded set, and `load` with what it is meant to be run with."""
    meant = pocket_options()
    return trained_set(), replace(
        load,
        drafter=meant.drafter,
        target=meant.target,
        dtype=meant.dtype,
        text_dtype=meant.text_dtype,
    )


def common_settings(options: WorkerOptions) -> dict[str, Any]:
    """Return everything but prompt, seed and configuration that a row's values depend on, as JSON values."""
    roles = ["drafter", "target", "vae", "text_encoder", "reward"]
    roles += ["judge_vae"] if options.files.judge_vae else []
    return {
        "models": {role: named(getattr(options.files, role)) for role in roles},
        "loading": asdict(options.load.settled()),
        "blocks": options.blocks,
        "size": [options.width, options.height],
        "oracle": options.pocket,
        "external": asdict(options.external) if options.external else None,
        "versions": {"sdvg": __version__, "torch": torch.__version__, "rows": ROWS_VERSION},
    }
