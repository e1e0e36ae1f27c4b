"""The embedded model set: a complete miniature of the real system, trained on the small world (training/).

It has the same classes, file formats and loaders as the published models, in a few megabytes. `manifest.json` next
to the files holds their hashes and measurements; training/export.py writes both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..checkpoints.model_files import ModelFiles
from ..errors import BadInput, why
from ..models.options import LoadOptions, ModelOptions
from ..pocket import DEFAULT_PROMPT as DEFAULT_PROMPT
from ..pocket import POCKET as POCKET

FOLDER = Path(__file__).parent / "weights"
NAMES = {
    "drafter": "pocket_self_forcing.safetensors",
    "target": "pocket_krea.safetensors",
    "vae": "pocket_wan_2.1_vae.safetensors",
    "text_encoder": "pocket_umt5.safetensors",
    "reward": "PocketImageReward.safetensors",
    "vocabulary": "vocab.txt",
}
FAST_VAE = "fast_vae"
FAST_VAE_NAME = "pocket_taew2_1.safetensors"
"""The TAEHV that can take the VAE's place: its name in the manifest, and its file."""


def trained_set() -> ModelFiles:
    """Return where the embedded models are.

    Raises `BadInput` if one of them is missing or damaged.
    """
    files: dict[str, Any] = {role: _released(role, name) for role, name in NAMES.items()}
    return ModelFiles(**files)


def pocket_fast_vae() -> Path:
    """Return where the embedded TAEHV is, which decodes in a third of the time of the set's VAE.

    Raises `BadInput` if it is missing or damaged.
    """
    return _released(FAST_VAE, FAST_VAE_NAME)


def pocket_options() -> LoadOptions:
    """Return how to run the embedded models: in float32, with the presets of the models they imitate."""
    return LoadOptions(
        drafter=ModelOptions(preset="self-forcing-1.3b"),
        target=ModelOptions(preset="krea-14b"),
        dtype="float32",
        text_dtype="float32",
    )


def manifest() -> dict[str, Any]:
    """Return hashes, sizes and measurements of the embedded models. Raises `BadInput` if they cannot be read."""
    try:
        content: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fault = f"manifest.json of the embedded models cannot be read ({why(error)})"
        raise BadInput(f"{fault}; install the package again") from error
    return content


def _released(role: str, name: str) -> Path:
    """Return the path of an embedded file. Raises `BadInput` unless it is the one of the manifest."""
    path = FOLDER / name
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    if digest is None or digest != manifest()["files"][role]["sha256"]:
        state = "damaged" if path.is_file() else "missing"
        raise BadInput(f"{path.name}, the embedded {role}, is {state}; install the package again")
    return path
