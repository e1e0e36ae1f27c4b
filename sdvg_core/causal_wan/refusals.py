"""What a checkpoint holds if not a causal Wan 2.1 text-to-video transformer, and the error that says so."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..errors import BadInput
from .config import PUBLISHED, WanConfig

GIVE_T2V = "give a causal Wan 2.1 text-to-video model (Self-Forcing, Krea Realtime, ...)"

# First part of a name -> the model that has it.
ADDITIONS = {
    "img_emb": "an image-to-video model",
    "vace_patch_embedding": "a VACE model",
    "vace_blocks": "a VACE model",
    "control_adapter": "a camera-control model",
    "ref_conv": "a Fun control model",
    "casual_audio_encoder": "a speech-to-video model",
    "audio_proj": "an audio-driven model",
    "face_adapter": "an Animate model",
    "patch_embedding_mask": "a pose-control model",
    "patch_embedding_pose": "a pose-control model",
    "patch_embedding_global": "a WanDancer model",
}
INPUT_CHANNELS = {
    36: "an image-to-video model",
    48: "Wan 2.2 5B (48 latent channels)",
}

TRANSFORMER = "causal Wan 2.1 transformer"
OTHER_WAN = "Wan transformer of another kind"
VAE = "Wan 2.1 VAE"
TAEHV = "tiny autoencoder (TAEHV)"
TEXT_ENCODER = "UMT5 text encoder"
IMAGE_REWARD = "ImageReward"
LORA = "LoRA"
CONTROL = "control module (VACE)"
UNKNOWN = "unknown"

LORA_PARTS = ("lora_A", "lora_B", "lora_up", "lora_down", "lora.up", "lora.down", "hada_w1", "lokr_w1")

# kind: sets of names; one complete set is enough. UMT5 has a position bias in the second block, T5 does not.
TELLTALES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("Wan 2.2 VAE", (("decoder.upsamples.0.upsamples.0.residual.0.gamma",),)),
    (VAE, (("decoder.middle.0.residual.0.gamma",), ("decoder.mid_block.resnets.0.norm1.gamma",))),
    (TAEHV, (("decoder.3.conv.0.weight", "decoder.19.conv.weight"),)),
    (
        TEXT_ENCODER,
        (
            ("token_embedding.weight", "blocks.0.attn.q.weight", "blocks.1.pos_embedding.embedding.weight"),
            ("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",),
        ),
    ),
    (
        "T5 text encoder",
        (("token_embedding.weight", "blocks.0.attn.q.weight"), ("encoder.block.0.layer.0.SelfAttention.q.weight",)),
    ),
    (IMAGE_REWARD, (("blip.visual_encoder.cls_token", "mlp.layers.0.weight"),)),
)


def refuse_foreign(file: str, names: Collection[str]) -> BadInput:
    """Return the error for a file without a Wan transformer."""
    kind = other_kind(names)
    if kind == LORA:
        return _unmerged(file, names)
    found = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "") if kind == UNKNOWN else kind
    return BadInput(f"{file} is no Wan 2.1 transformer (found: {found}); {GIVE_T2V}")


def check_no_additions(file: str, names: Iterable[str], every: Collection[str]) -> None:
    """Refuse adapters among `every` name of a file, and the variants of Wan that take more than text."""
    if any(map(is_lora, every)):
        raise _unmerged(file, every)
    for name in names:
        addition = ADDITIONS.get(name.split(".")[0])
        if addition or name.endswith((".k_img.weight", ".add_k_proj.weight")):
            addition = addition or ADDITIONS["img_emb"]
            raise BadInput(f"{file} is {addition} (it has {name}); {GIVE_T2V}")


def check_channels(file: str, config: WanConfig) -> None:
    """Refuse models whose input or output is not Wan 2.1's latents, frame by frame."""
    if config.in_dim != 16:
        other = INPUT_CHANNELS.get(config.in_dim, f"a model with {config.in_dim} input channels")
        raise BadInput(f"{file} is {other}; {GIVE_T2V}")
    if config.out_dim != 16:
        raise BadInput(f"{file} has {config.out_dim} output channels, not 16; {GIVE_T2V}")
    if config.patch_size[0] != 1:
        raise BadInput(f"{file} has tokens of {config.patch_size[0]} latent frames, not 1; {GIVE_T2V}")


def check_layers(file: str, config: WanConfig, stated: bool) -> None:
    """Refuse a published size with another number of blocks, unless the file states it: it lost its last ones.

    A block more or fewer leaves no other trace, and the model would make a worse video unnoticed.
    """
    for published in PUBLISHED.values():
        same = (config.dim, config.ffn_dim) == (published.dim, published.ffn_dim)
        if same and config.num_layers != published.num_layers and not stated:
            found = f"{config.num_layers} of the {published.num_layers} blocks"
            raise BadInput(f"{file} has {found} of its width; fetch it again, or state num_layers in its metadata")


def _unmerged(file: str, names: Collection[str]) -> BadInput:
    adapters = [name for name in names if is_lora(name)]
    some = f"{len(adapters)} tensors such as {adapters[0]}"
    return BadInput(f"{file} holds a LoRA ({some}), not a model; load its base model and apply the LoRA to it")


def other_kind(names: Iterable[str]) -> str:
    """Return what a file with these names is, if not a Wan transformer; `UNKNOWN` if no telltale is found."""
    found = set(names)
    if any(is_lora(name) for name in found):
        return LORA
    for kind, alternatives in TELLTALES:
        if any(found.issuperset(names) for names in alternatives):
            return kind
    return UNKNOWN


def is_lora(name: str) -> bool:
    """Whether the name belongs to a low-rank adapter, in any of the usual spellings."""
    return any(part in name for part in LORA_PARTS)
