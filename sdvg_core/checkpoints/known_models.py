"""Tables of known model files: kinds by the tensors inside, and published models by file name.

`inspect`, `doctor`, error messages, presets and docs/models.md all read these two. A causal checkpoint has the
tensors of plain Wan 2.1, so a published one can be recognised only by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

VAE = "Wan 2.1 VAE"
TAEHV = "tiny autoencoder (TAEHV)"
TEXT_ENCODER = "UMT5 text encoder"
IMAGE_REWARD = "ImageReward"
CONTROL = "control module (VACE)"
LORA = "LoRA"

Telltales = tuple[tuple[str, ...], ...]
"""Sets of names of tensors or modules; one complete set identifies the kind."""

VARIANTS: Mapping[str, Telltales] = {
    CONTROL: (("vace_patch_embedding",), ("vace_blocks",)),
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


READ = "2026-11-22"
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
    "licence": "code: Apache-2.0 (read 2026-11-27); card of the weights not read",
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
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "Self-Forcing DMD": {
        **SELF_FORCING,
        "files": ("self_forcing_dmd.pt", "self_forcing_dmd.safetensors"),
        "path": "checkpoints/self_forcing_dmd.pt",
    },
    "Self-Forcing SiD": {
        **SELF_FORCING,
        "path": "checkpoints/self_forcing_sid.pt",
    },
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
    "RAVEN": {
        **RAVEN,
        "path": "raven_model.pt",
    },
    "RAVEN, CM-GRPO": {
        **RAVEN,
        "path": "cmgrpo_raven_merge.pt",
    },
    "Krea Realtime": {
        "preset": "krea-14b",
        "size": "14B",
        "repository": "krea/krea-realtime-video",
        "path": "krea-realtime-video-14b.safetensors",
        "licence": "card of the weights: Apache-2.0; code repository: CC-BY-NC-SA-4.0, not for commercial use",
        "gigabytes": 28.6,
    },
    "Krea Realtime, fp8": {
        **KREA_FP8,
        "path": "krea-realtime-video-14b-fp8-e4m3fn.safetensors",
    },
    "Krea Realtime, fp8 e5m2": {
        **KREA_FP8,
        "path": "krea-realtime-video-14b-fp8-e5m2.safetensors",
    },
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
    def role(self) -> str:
        """Either `drafter` or `target`."""
        return "target" if self.size == "14B" else "drafter"

    @property
    def source(self) -> str:
        """Its source, for messages."""
        return f"{self.repository} on the Hugging Face Hub, {self.path}"


KNOWN_MODELS = tuple(
    KnownModel(name=name, **{"files": (PurePath(row["path"]).name,), **row}) for name, row in PUBLISHED.items()
)


def known_model(file: Path) -> KnownModel | None:
    """Return the model with a file's name (and folder, if models share the name), or None."""
    return next((model for model in KNOWN_MODELS if any(has_name(file, name) for name in model.files)), None)


def has_name(file: PurePath, name: str) -> bool:
    """Return True if a path ends with a name, which may include a folder, in any letter case."""
    return PurePath(str(file).lower()).match(name.lower())
