"""Find the model files of a run: their names, folders and download sources.

Folders are ComfyUI's, `extra_model_paths.yaml` included, so that one copy of the weights serves both.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import iglob
from itertools import chain, islice
from pathlib import Path

import yaml

from ..errors import BadInput, first_line
from ..files.small_files import MEGABYTE, read_small
from ..settings import check_fields, setting
from .known_models import KNOWN_MODELS, READ, has_name

TRANSFORMERS = "diffusion_models"
"""Folder of drafters and targets in a ComfyUI installation."""
OLDER = ("unet",)
"""Its names in older installations."""
EXTRA_PATHS = "extra_model_paths.yaml"
MOST_FILES = 20_000
"""Most files of a folder that are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The model files of a run.

    `drafter`, `target`, `reward`: None if not needed. `controls`: control modules, each for models of its width.
    `tokenizer`, `vocabulary`: by default next to their models.
    """

    drafter: Path | None = setting(None, part="drafter")
    target: Path | None = setting(None, part="target")
    vae: Path
    text_encoder: Path
    reward: Path | None = setting(None, part="scorer")
    tokenizer: Path | None = None
    vocabulary: Path | None = setting(None, part="scorer")
    controls: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A file of the published models.

    `names`: usual names, the one to download first. `other_folders`: further folders to search. `licence`: as
    stated on its card. `smaller`: name, size and source of a version for smaller cards.
    """

    role: str
    folder: str
    names: tuple[str, ...]
    source: str
    gigabytes: float
    other_folders: tuple[str, ...] = ()
    licence: str = ""
    smaller: str = ""


def _transformer(role: str) -> KnownFile:
    """Return the file of a role, with the names of all known models of that role."""
    models = [model for model in KNOWN_MODELS if model.role == role]
    sizes = [model for model in models if (model.gigabytes or math.inf) < (models[0].gigabytes or 0.0)]
    return KnownFile(
        role=role,
        folder=TRANSFORMERS,
        other_folders=OLDER,
        names=tuple(name for model in models for name in model.files),
        source=models[0].source,
        licence=f"{models[0].licence} (read {READ})",
        gigabytes=models[0].gigabytes or 0.0,
        smaller=f"{sizes[0].files[0]} ({sizes[0].gigabytes:g} GB) from {sizes[0].repository}" if sizes else "",
    )


KNOWN_FILES = (
    _transformer("drafter"),
    _transformer("target"),
    KnownFile(
        role="vae",
        folder="vae",
        names=("wan_2.1_vae.safetensors", "Wan2.1_VAE.pth", "Wan2_1_VAE_bf16.safetensors"),
        source="Comfy-Org/Wan_2.1_ComfyUI_repackaged on the Hugging Face Hub, split_files/vae",
        gigabytes=0.25,
    ),
    KnownFile(
        role="text_encoder",
        folder="text_encoders",
        other_folders=("clip",),
        names=(
            "umt5_xxl_fp16.safetensors",
            "umt5_xxl_fp8_e4m3fn_scaled.safetensors",
            "models_t5_umt5-xxl-enc-bf16.pth",
            "umt5-xxl-enc-bf16.safetensors",
        ),
        source="Comfy-Org/Wan_2.1_ComfyUI_repackaged on the Hugging Face Hub, split_files/text_encoders",
        gigabytes=11.4,
    ),
    KnownFile(
        role="reward",
        folder="image_reward",
        names=("ImageReward.pt", "ImageReward.safetensors"),
        source="zai-org/ImageReward on the Hugging Face Hub, ImageReward.pt (not the whole repository)",
        gigabytes=1.79,
    ),
    KnownFile(
        role="vocabulary",
        folder="image_reward",
        names=("vocab.txt", "bert-base-uncased/vocab.txt", "bert/vocab.txt"),
        source="google-bert/bert-base-uncased on the Hugging Face Hub, vocab.txt",
        gigabytes=0.0002,
    ),
)

CONTROL_FILES = tuple(
    KnownFile(
        role=f"{role}_control",
        folder=TRANSFORMERS,
        other_folders=OLDER,
        names=(f"Wan2_1-VACE_module_{size}_bf16.safetensors", f"wan2.1_vace_{whole}_fp16.safetensors"),
        source=f"Kijai/WanVideo_comfy on the Hugging Face Hub, Wan2_1-VACE_module_{size}_bf16.safetensors",
        gigabytes=gigabytes,
        licence="Apache-2.0",
    )
    for role, size, whole, gigabytes in (("drafter", "1_3B", "1.3B", 1.47), ("target", "14B", "14B", 6.1))
)
"""Control modules of the published models."""


def find_models(folder: Path, known_files: Iterable[KnownFile] = KNOWN_FILES) -> Mapping[str, Path | None]:
    """Return the file of every role in a models folder, or None."""
    return {k.role: find_files(folder, k.names, (k.folder, *k.other_folders)) for k in known_files}


def find_files(folder: Path, names: Iterable[str], folders: Iterable[str] = (TRANSFORMERS, *OLDER)) -> Path | None:
    """Return the first file of these names in a models folder: in `folders` or at the top, or None.

    Then search below `folders`, as ComfyUI does, and ignore case. `folder` may be ComfyUI's base directory; its
    `extra_model_paths.yaml` is read too.
    """
    return next(_files(folder, tuple(names), tuple(folders)), None)


def namesakes(folder: Path, known: KnownFile, chosen: Path) -> list[Path]:
    """Return the other files with the name of the chosen one."""
    names = [name for name in known.names if has_name(chosen, name)][:1]
    files = _files(folder, names, (known.folder, *known.other_folders))
    return [file for file in dict.fromkeys(files) if not file.samefile(chosen)]


def _files(folder: Path, names: Sequence[str], folders: Sequence[str]) -> Iterator[Path]:
    """Yield the files of these names by priority; a file may come twice."""
    base = folder / "models"
    places = [parent / name for parent in (folder, base) for name in folders] + extra_folders(folder, folders)
    usual = (place / name for place in (*places, folder) for name in names)
    below = (file for place in places for file in _named(place, "**", names))
    return (path for path in chain(usual, below, _named(folder, "*", names)) if path.is_file())


def extra_folders(models: Path, kinds: Sequence[str]) -> list[Path]:
    """Return the folders of these kinds in ComfyUI's extra_model_paths.yaml, which is in or next to `models`.

    Raises `BadInput` if that file cannot be read.
    """
    file = next((place / EXTRA_PATHS for place in (models, models.parent) if (place / EXTRA_PATHS).is_file()), None)
    if file is None:
        return []
    try:
        content = yaml.safe_load(read_small(file, MEGABYTE))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        fault = f"{file} is not read ({first_line(error)})"
        raise BadInput(f"{fault}; correct it, or name the models one by one") from error
    sections = content.values() if isinstance(content, dict) else ()
    folders: list[Path] = []
    for section in sections:
        if isinstance(section, dict):
            values = {key: value for key, value in section.items() if isinstance(value, str)}
            base = values.get("base_path", "")
            parent = file.parent / os.path.expandvars(os.path.expanduser(base))  # noqa: PTH111 - as ComfyUI does it
            lines = [line for kind in kinds for line in values.get(kind, "").splitlines()]
            folders += [parent / line for line in lines if line]
    return folders


def misplaced(folder: Path, known: KnownFile) -> str:
    """Return the remedy for a file of a missing role that is in the wrong folder; empty if there is none."""
    file = next((path for path in _named(folder, "**", known.names) if path.is_file()), None)
    option = known.role.replace("_", "-")
    return f"move {file} into {known.folder}/, or give it as --{option}" if file else ""


def _named(place: Path, pattern: str, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a folder that match a pattern, in the order of `names`, the least nested first."""
    matching = iglob(pattern, root_dir=place, recursive=True)  # noqa: PTH207 - that of Path follows no links
    files = sorted((Path(file) for file in islice(matching, MOST_FILES)), key=lambda file: (len(file.parts), file))
    return (place / file for name in names for file in files if has_name(file, name))
