"""Model files: kinds by the tensors inside, published models by name, and finding the files of a run.

`doctor`, error messages, presets and docs/models.md all read the tables. A causal checkpoint has the
tensors of plain Wan 2.1, so a published one can be recognised only by its name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import iglob
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any

from ..errors import BadInput
from ..settings.fields import check_fields, setting
from .extra_paths import EXTRA_PATHS, extra_folders

VAE = "Wan 2.1 VAE"
TAEHV = "tiny autoencoder (TAEHV)"
TEXT_ENCODER = "UMT5 text encoder"
IMAGE_REWARD = "ImageReward"
CONTROL_MODULE = "control module (VACE)"
LORA = "LoRA"

Telltales = tuple[tuple[str, ...], ...]
"""Sets of names of tensors or modules; one complete set identifies the kind."""

VARIANTS: Mapping[str, Telltales] = {
    CONTROL_MODULE: (("vace_patch_embedding",), ("vace_blocks",)),
    "image-to-video model": (("img_emb",), ("blocks.0.cross_attn.k_img",), ("blocks.0.cross_attn.add_k_proj",)),
    "camera-control model": (("control_adapter",),),
    "Fun control model": (("ref_conv",),),
    "pose-control model": (("patch_embedding_mask",), ("patch_embedding_pose",)),
    "WanDancer model": (("patch_embedding_global",),),
    "Animate model": (("face_adapter",),),
    "model driven by sound": (("casual_audio_encoder",), ("audio_proj",)),
    "Self Gradient Forcing Plus model": (("memory_patch_embedding",),),
}
"""Wan models with inputs other than text, by their additional modules."""
FAMILIES: Mapping[str, Telltales] = {
    "Wan 2.2 VAE": (("decoder.upsamples.0.upsamples.0.residual.0.gamma",),),
    VAE: (("decoder.middle.0.residual.0.gamma",), ("decoder.mid_block.resnets.0.norm1.gamma",)),
    TAEHV: (("decoder.3.conv.0.weight", "decoder.19.conv.weight"),),
    TEXT_ENCODER: (
        ("token_embedding.weight", "blocks.0.attn.q.weight", "blocks.1.pos_embedding.embedding.weight"),
        ("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",),
    ),
    "T5 text encoder": (
        ("token_embedding.weight", "blocks.0.attn.q.weight"),
        ("encoder.block.0.layer.0.SelfAttention.q.weight",),
    ),
    IMAGE_REWARD: (("blip.visual_encoder.cls_token", "mlp.layers.0.weight"),),
    **VARIANTS,
}
"""Kinds of files other than drafter and target. The first match counts, as a UMT5 has a T5's names too."""

LORA_PARTS = ("lora_A", "lora_B", "lora_up", "lora_down", "lora.up", "lora.down", "hada_w1", "lokr_w1")


def family_of(names: Iterable[str], families: Mapping[str, Telltales] = FAMILIES) -> str | None:
    """Return the kind of a file by names of its tensors or modules, or None."""
    names = set(names)
    if any(map(is_lora, names)):
        return LORA
    modules = {name.rsplit(".", levels)[0] for name in names for levels in range(name.count(".") + 1)}
    return next((kind for kind, sets in families.items() if any(map(modules.issuperset, sets))), None)


def is_lora(name: str) -> bool:
    """True for a tensor of a low-rank adapter, in any usual spelling."""
    return any(part in name for part in LORA_PARTS)


# --- published models

LICENCES_READ = "2026-11-22"
"""Date on which licences were read, as stated on a card or in a file; not advice."""

SELF_FORCING = {
    "preset": "self-forcing-1.3b",
    "repository": "gdhe17/Self-Forcing",
    "licence": "Apache-2.0; an older copy of the card says CC-BY-NC-SA-4.0",
    "gigabytes": 5.7,
}
CAUSAL_FORCING = {"repository": "zhuhz22/Causal-Forcing", "licence": "Apache-2.0", "gigabytes": 5.7}
SELF_GRADIENT_FORCING = {
    "repository": "JunhaoZhuang/Self_Gradient_Forcing",
    "licence": "code: Apache-2.0 (read 2026-11-27); licence of the weights not checked",
    "gigabytes": 11.4,
}
RAVEN = {
    "preset": "raven",
    "repository": "mvp-lab/RAVEN",
    "licence": "CC-BY-NC-4.0, not for commercial use (read 2026-11-27)",
}
KREA_FP8 = {
    "preset": "krea-14b",
    "size": "14B",
    "repository": "6chan/krea-realtime-video-fp8",
    "licence": "the card states none, by a secondary source; Krea's own: see above",
    "gigabytes": 14.3,
}

# The first of each role is the default: looked for first, and named in messages.
PUBLISHED_FILES: Mapping[str, Mapping[str, Any]] = {
    "Self-Forcing DMD": {
        **SELF_FORCING,
        "files": ("self_forcing_dmd.pt", "self_forcing_dmd.safetensors"),
        "path": "checkpoints/self_forcing_dmd.pt",
    },
    "Self-Forcing SiD": {**SELF_FORCING, "path": "checkpoints/self_forcing_sid.pt"},
    "Causal-Forcing, chunk-wise": {
        **CAUSAL_FORCING,
        "preset": "causal-forcing",
        "files": ("chunkwise/causal_forcing.pt",),
        "path": "chunkwise/causal_forcing.pt",
    },
    "Causal-Forcing, frame-wise": {
        **CAUSAL_FORCING,
        "preset": "causal-forcing-framewise",
        "files": ("framewise/causal_forcing.pt",),
        "path": "framewise/causal_forcing.pt",
    },
    "Causal-Forcing, frame-wise, repackaged for ComfyUI": {
        "preset": "causal-forcing-framewise",
        "repository": "TalmajM/causal_forcing_framewise_ComfyUI_repackaged",
        "path": "split_files/diffusion_models/causal_forcing-framewise.safetensors",
        "licence": "Apache-2.0",
        "gigabytes": 5.7,
    },
    "Causal-Forcing++, 2 steps": {
        **CAUSAL_FORCING,
        "preset": "causal-forcing-2step",
        "files": ("causal-forcing++/framewise-2step.pt", "framewise-2step.pt"),
        "path": "causal-forcing++/framewise-2step.pt",
    },
    "Causal-Forcing++, 1 step": {
        **CAUSAL_FORCING,
        "preset": "causal-forcing-1step",
        "files": ("causal-forcing++/framewise-1step.pt", "framewise-1step.pt"),
        "path": "causal-forcing++/framewise-1step.pt",
    },
    "One-Forcing": {
        "preset": "one-forcing",
        "repository": "JiaqiFeng/OneForcing",
        "path": "checkpoints/one_forcing.pt",
        "licence": "code: Apache-2.0; the card of the weights states none",
    },
    "LongLive 1.0": {
        "preset": "longlive-1.0",
        "repository": "Efficient-Large-Model/LongLive-1.3B",
        "path": "models/longlive_base.pt",
        "licence": "Apache-2.0 since November 2025, non-commercial before",
        "warning": "this is LongLive's base, which is run with its LoRA: --lora lora.pt (models/lora.pt there)",
    },
    "Self Gradient Forcing, chunk-wise": {
        **SELF_GRADIENT_FORCING,
        "preset": "self-gradient-forcing",
        "files": ("chunkwise/ar/model.pt", "self_gradient_forcing_chunkwise.pt"),
        "path": "chunkwise/ar/model.pt",
    },
    "Self Gradient Forcing, frame-wise": {
        **SELF_GRADIENT_FORCING,
        "preset": "self-gradient-forcing-framewise",
        "files": ("framewise/ar/model.pt", "self_gradient_forcing_framewise.pt"),
        "path": "framewise/ar/model.pt",
    },
    "RAVEN": {**RAVEN, "path": "raven_model.pt"},
    "RAVEN, CM-GRPO": {**RAVEN, "path": "cmgrpo_raven_merge.pt"},
    "Krea Realtime": {
        "preset": "krea-14b",
        "size": "14B",
        "repository": "krea/krea-realtime-video",
        "path": "krea-realtime-video-14b.safetensors",
        "licence": "card of the weights: Apache-2.0; code repository: CC-BY-NC-SA-4.0, not for commercial use",
        "gigabytes": 28.6,
    },
    "Krea Realtime, fp8": {**KREA_FP8, "path": "krea-realtime-video-14b-fp8-e4m3fn.safetensors"},
    "Krea Realtime, fp8 e5m2": {**KREA_FP8, "path": "krea-realtime-video-14b-fp8-e5m2.safetensors"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A published causal Wan 2.1.

    `files`: names on disk, the first as published; with the folder if other models share the name. `repository`,
    `path`: on the Hugging Face Hub. `gigabytes`: of the first file, None if not known. `warning`: note for its
    users.
    """

    name: str
    preset: str
    size: str = "1.3B"
    files: tuple[str, ...]
    repository: str
    path: str
    licence: str
    gigabytes: float | None = None
    warning: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its files, and of what `convert` makes of them."""
        made = [str(converted_name(PurePath(file), form)) for form in QUANTISED_FORMATS for file in self.files]
        return (*self.files, *dict.fromkeys(made))

    @property
    def role(self) -> str:
        """Either `drafter` or `target`."""
        return "target" if self.size == "14B" else "drafter"


KNOWN_MODELS = tuple(
    KnownModel(name=name, **{"files": (PurePath(row["path"]).name,), **row})
    for name, row in PUBLISHED_FILES.items()
)


QUANTISED_FORMATS = ("int8", "w4a8")
"""What `convert` makes."""


def converted_name(file: PurePath, form: str) -> PurePath:
    """Return the usual name of what is made of a file: beside it, with the format in its name."""
    stem = file.name.removesuffix(".index.json").rpartition(".")[0]
    return file.with_name(f"{stem}_{form}.safetensors")


def smaller_file(file: Path) -> str:
    """Return which smaller file of a model is there, or the command that makes one."""
    made = [Path(converted_name(file, form)) for form in QUANTISED_FORMATS]
    smaller = next((path.name for path in made if path.is_file()), None)
    command = f"python -m sdvg_core convert {file.name} --format {QUANTISED_FORMATS[0]}"
    return f"{smaller} beside it is smaller" if smaller else f"{command} makes a smaller file"


def known_model(file: Path) -> KnownModel | None:
    """Return the model with a file's name (and folder, if models share the name), or None."""
    return next((model for model in KNOWN_MODELS if any(has_name(file, name) for name in model.names)), None)


def has_name(file: PurePath, name: str) -> bool:
    """Return True if a path ends with a name, which may include a folder, in any letter case."""
    return PurePath(str(file).lower()).match(name.lower())


# --- the files of a run, in ComfyUI's folders, `extra_model_paths.yaml` included, so that one copy of the weights
# serves both

TRANSFORMER_FOLDER = "diffusion_models"
"""Folder of drafters and targets in a ComfyUI installation."""
OLDER = ("unet",)
"""Its names in older installations."""
MOST_FILES = 20_000
"""Files of a folder that are looked at."""
MOST_SEARCHED = 3 * MOST_FILES
"""Files of all folders."""


class Listings:
    """The files below folders. Each folder is listed once, as several kinds of models may share it."""

    def __init__(self) -> None:
        self._files: dict[Path, list[str]] = {}

    def below(self, place: Path) -> list[str]:
        """Return the first `MOST_FILES` files and folders below a folder, links included.

        Raises `BadInput` for more than `MOST_SEARCHED` in all folders.
        """
        if place not in self._files:
            self._files[place] = _glob(place, "**")
        if sum(map(len, self._files.values())) > MOST_SEARCHED:
            fault = f"the folders of models, as {EXTRA_PATHS} or links name them, have over {MOST_SEARCHED} files"
            raise BadInput(f"{fault}; name fewer, or give the models one by one")
        return self._files[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The model files of a run.

    `drafter`, `target`, `reward`: None if not needed. `controls`: control modules, each for models of its width.
    `tokenizer`, `vocabulary`: by default next to their models.
    """

    drafter: Path | None = setting(None, parts=("drafter",))
    target: Path | None = setting(None, parts=("target",))
    vae: Path
    text_encoder: Path
    reward: Path | None = setting(None, parts=("scorer",))
    tokenizer: Path | None = None
    vocabulary: Path | None = setting(None, parts=("scorer",))
    controls: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A file of the published models.

    `names`: usual names, the one to download first. `repository`, `path`: of that one on the Hugging Face Hub.
    `other_folders`: further folders to search. `licence`: as stated on its card. `smaller`: name, size and source
    of a version for smaller cards.
    """

    role: str
    folder: str
    names: tuple[str, ...]
    repository: str
    path: str
    gigabytes: float
    other_folders: tuple[str, ...] = ()
    licence: str = ""
    smaller: str = ""

    @property
    def source(self) -> str:
        """Where to get it, in words."""
        return f"{self.repository} on the Hugging Face Hub, {self.path}"


def _transformer(role: str) -> KnownFile:
    models = [model for model in KNOWN_MODELS if model.role == role]
    sizes = [model for model in models if (model.gigabytes or math.inf) < (models[0].gigabytes or 0.0)]
    return KnownFile(
        role=role,
        folder=TRANSFORMER_FOLDER,
        other_folders=OLDER,
        names=tuple(name for model in models for name in model.names),
        repository=models[0].repository,
        path=models[0].path,
        licence=f"{models[0].licence} (read {LICENCES_READ})",
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
        repository="Comfy-Org/Wan_2.1_ComfyUI_repackaged",
        path="split_files/vae/wan_2.1_vae.safetensors",
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
        repository="Comfy-Org/Wan_2.1_ComfyUI_repackaged",
        path="split_files/text_encoders/umt5_xxl_fp16.safetensors",
        gigabytes=11.4,
    ),
    KnownFile(
        role="reward",
        folder="image_reward",
        names=("ImageReward.pt", "ImageReward.safetensors"),
        repository="zai-org/ImageReward",
        path="ImageReward.pt",
        gigabytes=1.79,
    ),
    KnownFile(
        role="vocabulary",
        folder="image_reward",
        names=("vocab.txt", "bert-base-uncased/vocab.txt", "bert/vocab.txt"),
        repository="google-bert/bert-base-uncased",
        path="vocab.txt",
        gigabytes=0.0002,
    ),
)

CONTROL_FILES = tuple(
    KnownFile(
        role=f"{role}_control",
        folder=TRANSFORMER_FOLDER,
        other_folders=OLDER,
        names=(f"Wan2_1-VACE_module_{size}_bf16.safetensors", f"wan2.1_vace_{whole}_fp16.safetensors"),
        repository="Kijai/WanVideo_comfy",
        path=f"Wan2_1-VACE_module_{size}_bf16.safetensors",
        gigabytes=gigabytes,
        licence="Apache-2.0",
    )
    for role, size, whole, gigabytes in (("drafter", "1_3B", "1.3B", 1.47), ("target", "14B", "14B", 6.1))
)
"""Control modules of the published models."""


def find_models(folder: Path, known_files: Iterable[KnownFile] = KNOWN_FILES) -> Mapping[str, Path | None]:
    """Return the file of every role in a models folder, or None."""
    listings = Listings()
    return {k.role: find_files(folder, k.names, (k.folder, *k.other_folders), listings) for k in known_files}


def find_files(
    folder: Path, names: Sequence[str], folders: Sequence[str], listings: Listings | None = None
) -> Path | None:
    """Return the first file of these names in a models folder: in `folders` or at the top, or None.

    Then search below `folders`, as ComfyUI does, and ignore case. `folder` may be ComfyUI's base directory; its
    `extra_model_paths.yaml` is read too.
    """
    base = folder / "models"
    places = [parent / name for parent in (folder, base) for name in folders] + extra_folders(folder, folders)
    usual = (place / name for place in (*places, folder) for name in names)
    listings = listings or Listings()
    below = (file for place in places for file in _named(place, listings.below(place), names))
    top = _named(folder, _glob(folder, "*"), names)
    return next((path for path in chain(usual, below, top) if path.is_file()), None)


def misplaced(folder: Path, known: KnownFile) -> str:
    """Return the remedy for a file of a missing role that is in the wrong folder; empty if there is none."""
    file = next((path for path in _named(folder, _glob(folder, "**"), known.names) if path.is_file()), None)
    option = known.role.replace("_", "-")
    return f"move {file} into {known.folder}/, or give it as --{option}" if file else ""


def _glob(place: Path, pattern: str) -> list[str]:
    matching = iglob(pattern, root_dir=place, recursive=True)  # noqa: PTH207 - that of Path follows no links
    return list(islice(matching, MOST_FILES))


def _named(place: Path, listed: Iterable[str], names: Sequence[str]) -> Iterator[Path]:
    """Yield the listed files of a folder that have one of `names`, in their order, the least nested first."""
    last_parts = {PurePath(name).name.lower() for name in names}
    alike = (PurePath(file) for file in listed if file[file.rfind(os.sep) + 1 :].lower() in last_parts)
    files = sorted(alike, key=lambda file: (len(file.parts), file))
    return (place / file for name in names for file in files if has_name(file, name))
