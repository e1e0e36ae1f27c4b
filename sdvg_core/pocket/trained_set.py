"""The embedded models: a complete miniature of the real system, trained on the small world (lab/training/).

They use the classes, file formats and loaders of the published models, not mocks, so that the demo exercises the
whole path in a few megabytes. `manifest.json`, by lab/training/export.py, has their hashes and measurements.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..errors import BadInput, why
from ..settings.load import LoadOptions, ModelOptions
from ..weights.model_files import ModelFiles

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
WEIGHT_FILES = {
    "drafter": "pocket_self_forcing.safetensors",
    "target": "pocket_krea.safetensors",
    "vae": "pocket_wan_2.1_vae.safetensors",
    "text_encoder": "pocket_umt5.safetensors",
    "reward": "PocketImageReward.safetensors",
    "vocabulary": "vocab.txt",
}
FAST_VAE = "fast_vae"
FAST_VAE_NAME = "pocket_taew2_1.safetensors"
"""File of the TAEHV, an alternative to the VAE; `FAST_VAE` is its name in the manifest."""


def trained_set() -> ModelFiles:
    """Return the files of the embedded models. Raises `BadInput` if one is missing or damaged."""
    files: dict[str, Any] = {role: _released(role, name) for role, name in WEIGHT_FILES.items()}
    return ModelFiles(**files)


def pocket_fast_vae() -> Path:
    """Return the path of the embedded TAEHV, three times as fast as the VAE. Raises `BadInput` if it is damaged."""
    return _released(FAST_VAE, FAST_VAE_NAME)


def pocket_options() -> LoadOptions:
    """Return the load options of the embedded models: float32, and the presets of the models that they imitate."""
    return LoadOptions(
        drafter=ModelOptions(preset="self-forcing-1.3b"),
        target=ModelOptions(preset="krea-14b"),
        dtype="float32",
        text_dtype="float32",
    )


def manifest() -> dict[str, Any]:
    """Return the manifest: hashes, sizes and measurements. Raises `BadInput` if it cannot be read."""
    try:
        content: dict[str, Any] = json.loads((WEIGHTS_FOLDER / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fault = f"manifest.json of the embedded models cannot be read ({why(error)})"
        raise BadInput(f"{fault}; install the package again") from error
    return content


def _released(role: str, name: str) -> Path:
    """Return the path of an embedded file. Raises `BadInput` unless its hash is that of the manifest."""
    path = WEIGHTS_FOLDER / name
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    if digest is None or digest != manifest()["files"][role]["sha256"]:
        state = "damaged" if path.is_file() else "missing"
        raise BadInput(f"{path.name}, the embedded {role}, is {state}; install the package again")
    return path
