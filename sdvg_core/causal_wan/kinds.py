"""Recognise a checkpoint by a few telltale names, so that an error can say what a wrong file is."""

from __future__ import annotations

from collections.abc import Iterable

TRANSFORMER = "causal Wan 2.1 transformer"
OTHER_WAN = "Wan transformer of another kind"
VAE = "Wan 2.1 VAE"
TAEHV = "tiny autoencoder (TAEHV)"
TEXT_ENCODER = "UMT5 text encoder"
IMAGE_REWARD = "ImageReward"
LORA = "LoRA"
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
        (
            ("token_embedding.weight", "blocks.0.attn.q.weight"),
            ("encoder.block.0.layer.0.SelfAttention.q.weight",),
        ),
    ),
    (IMAGE_REWARD, (("blip.visual_encoder.cls_token", "mlp.layers.0.weight"),)),
)


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
