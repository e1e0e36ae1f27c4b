"""The files a run needs: their usual names, where to get them, and which of them are present."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where the models of a run are.

    `drafter`, `target`, `reward`: None for a run that never asks for it. `judge_vae`: a fast decoder for drafts;
    None if the VAE decodes them too. `tokenizer` and `vocabulary` are looked for next to their models if not given.
    """

    drafter: Path | None = None
    target: Path | None = None
    vae: Path
    text_encoder: Path
    reward: Path | None = None
    tokenizer: Path | None = None
    vocabulary: Path | None = None
    judge_vae: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A part of the real pair: its usual names (the first is the one to get), folder, source and size in GB.

    `other_folders`: where it may lie too.
    """

    role: str
    folder: str
    names: tuple[str, ...]
    source: str
    gigabytes: float
    other_folders: tuple[str, ...] = ()


# The folders are those of a ComfyUI installation, so its `models` folder works unchanged.
KNOWN_FILES = (
    KnownFile(
        role="drafter",
        folder="diffusion_models",
        names=("self_forcing_dmd.pt", "self_forcing_dmd.safetensors", "self_forcing_sid.pt"),
        source="gdhe17/Self-Forcing on the Hugging Face Hub, checkpoints/self_forcing_dmd.pt",
        gigabytes=5.7,
    ),
    KnownFile(
        role="target",
        folder="diffusion_models",
        names=("krea-realtime-video-14b.safetensors",),
        source="krea/krea-realtime-video on the Hugging Face Hub (CC-BY-NC-SA-4.0: not for commercial use)",
        gigabytes=28.6,
    ),
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

# Files of roles that no run needs.
OPTIONAL_FILES = (
    KnownFile(
        role="judge_vae",
        folder="vae_approx",
        names=("lighttaew2_1.safetensors", "lighttaew2_1.pth", "taew2_1.safetensors", "taew2_1.pth"),
        source="lightx2v/Autoencoders on the Hugging Face Hub (taew2_1: madebyollin/taehv on GitHub, 0.023 GB)",
        gigabytes=0.045,
        other_folders=("vae",),
    ),
)


def find_models(folder: Path, known_files: Iterable[KnownFile] = KNOWN_FILES) -> Mapping[str, Path | None]:
    """Return the path of every known role found in a models folder, in the role's subfolder or at the top."""
    return {known.role: _first_there(folder, known) for known in known_files}


def _first_there(folder: Path, known: KnownFile) -> Path | None:
    places = (*(folder / name for name in (known.folder, *known.other_folders)), folder)
    candidates = (place / name for place in places for name in known.names)
    return next((path for path in candidates if path.is_file()), None)
