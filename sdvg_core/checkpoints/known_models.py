"""The published models that we know: one row each, with what its authors and its card say.

The values of a run (block, steps, context) are those of the preset that a row names. Licences are what a card or a
file said on the day it was read, not advice. A digest stands here only if a public source states it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Literal

from ..errors import BadInput

READ = "2026-11-22"
"""The day all rows were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A published checkpoint of a causal Wan 2.1.

    `files`: its names on a disk, the first as published; with the folder if other models have that name too.
    `preset`: the name of the preset it is run with, which also states the state dict. `repository`, `path`: its
    place on the Hugging Face Hub. `licence`: as stated there, read on `read`.
    `gigabytes`, `sha256`: of the first file, None if no public source was read; `digest_source`: which one it was.
    `warning`: what its users must know.
    """

    name: str
    role: Literal["drafter", "target"]
    size: Literal["1.3B", "14B"]
    files: tuple[str, ...]
    preset: str
    licence: str
    repository: str
    path: str
    read: str = READ
    gigabytes: float | None = None
    sha256: str | None = None
    digest_source: str = ""
    warning: str = ""

    @property
    def source(self) -> str:
        """Where to get it, in words."""
        return f"{self.repository} on the Hugging Face Hub, {self.path}"


# The first of each role is the published pair's, which is looked for and asked for first.
KNOWN_MODELS = (
    KnownModel(
        name="Self-Forcing DMD",
        role="drafter",
        size="1.3B",
        files=("self_forcing_dmd.pt", "self_forcing_dmd.safetensors"),
        preset="self-forcing-1.3b",
        licence="Apache-2.0; an older copy of the card says CC-BY-NC-SA-4.0",
        repository="gdhe17/Self-Forcing",
        path="checkpoints/self_forcing_dmd.pt",
        gigabytes=5.7,
        sha256="a0413986d9734e02c09504e1520f5697ba6df731bb2f0f35577485e9cc8f56a3",
        digest_source="several public repositories that check their copy by it, one for commit 2f8b779 on the Hub",
    ),
    KnownModel(
        name="Self-Forcing SiD",
        role="drafter",
        size="1.3B",
        files=("self_forcing_sid.pt",),
        preset="self-forcing-1.3b",
        licence="Apache-2.0; an older copy of the card says CC-BY-NC-SA-4.0",
        repository="gdhe17/Self-Forcing",
        path="checkpoints/self_forcing_sid.pt",
        gigabytes=5.7,
    ),
    KnownModel(
        name="Causal-Forcing, chunk-wise",
        role="drafter",
        size="1.3B",
        files=("chunkwise/causal_forcing.pt",),
        preset="causal-forcing",
        licence="Apache-2.0",
        repository="zhuhz22/Causal-Forcing",
        path="chunkwise/causal_forcing.pt",
    ),
    KnownModel(
        name="Causal-Forcing, frame-wise",
        role="drafter",
        size="1.3B",
        files=("framewise/causal_forcing.pt",),
        preset="causal-forcing-framewise",
        licence="Apache-2.0",
        repository="zhuhz22/Causal-Forcing",
        path="framewise/causal_forcing.pt",
    ),
    KnownModel(
        name="Causal-Forcing, frame-wise, repackaged for ComfyUI",
        role="drafter",
        size="1.3B",
        files=("causal_forcing-framewise.safetensors",),
        preset="causal-forcing-framewise",
        licence="Apache-2.0",
        repository="TalmajM/causal_forcing_framewise_ComfyUI_repackaged",
        path="split_files/diffusion_models/causal_forcing-framewise.safetensors",
        gigabytes=5.7,
        sha256="408c67a8c6725756f5be2c5cf2d5c584c15dd147f5a0c458be62dcb3efb78477",
        digest_source="a public catalogue of 2026-08-06 that quotes the Hub",
    ),
    KnownModel(
        name="Causal-Forcing++, 2 steps",
        role="drafter",
        size="1.3B",
        files=("causal-forcing++/framewise-2step.pt", "framewise-2step.pt"),
        preset="causal-forcing-2step",
        licence="Apache-2.0",
        repository="zhuhz22/Causal-Forcing",
        path="causal-forcing++/framewise-2step.pt",
    ),
    KnownModel(
        name="Causal-Forcing++, 1 step",
        role="drafter",
        size="1.3B",
        files=("causal-forcing++/framewise-1step.pt", "framewise-1step.pt"),
        preset="causal-forcing-1step",
        licence="Apache-2.0",
        repository="zhuhz22/Causal-Forcing",
        path="causal-forcing++/framewise-1step.pt",
    ),
    KnownModel(
        name="One-Forcing",
        role="drafter",
        size="1.3B",
        files=("one_forcing.pt",),
        preset="one-forcing",
        licence="code: Apache-2.0; the card of the weights states none",
        repository="JiaqiFeng/OneForcing",
        path="checkpoints/one_forcing.pt",
    ),
    KnownModel(
        name="LongLive 1.0",
        role="drafter",
        size="1.3B",
        files=("longlive_base.pt",),
        preset="longlive-1.0",
        licence="Apache-2.0 since November 2025, non-commercial before",
        repository="Efficient-Large-Model/LongLive-1.3B",
        path="models/longlive_base.pt",
        warning="this is LongLive's base, which is run with its LoRA: --lora lora.pt (models/lora.pt there); alone "
        "it looks like any 1.3B model",
    ),
    KnownModel(
        name="Krea Realtime",
        role="target",
        size="14B",
        files=("krea-realtime-video-14b.safetensors",),
        preset="krea-14b",
        licence="card of the weights: Apache-2.0; code repository: CC-BY-NC-SA-4.0, not for commercial use",
        repository="krea/krea-realtime-video",
        path="krea-realtime-video-14b.safetensors",
        gigabytes=28.6,
    ),
)


def row_of(file: Path) -> KnownModel | None:
    """Return the row of a file, by its name and, where two models share that, its folder; None if it has none."""
    return next((m for m in KNOWN_MODELS if any(has_name(file, name) for name in m.files)), None)


def has_name(file: PurePath, name: str) -> bool:
    """Return whether a path ends with a name, perhaps with its folder, in any letter case."""
    return PurePath(str(file).lower()).match(name.lower())


def known_model(file: Path) -> KnownModel | None:
    """Return the row of a file, as `row_of` does.

    Raises `BadInput` for a name that two models share, in neither's folder: they are run in different ways.
    """
    found = row_of(file)
    if found:
        return found
    alike = [m for m in KNOWN_MODELS if any(has_name(file, PurePosixPath(name).name) for name in m.files)]
    if not alike:
        return None
    presets = " or ".join(dict.fromkeys(m.preset for m in alike))
    folders = " or ".join(m.files[0] for m in alike)
    raise BadInput(f"{len(alike)} models are {file.name}; state the preset ({presets}) or keep it as {folders}")
