"""UMT5 encoder weights: three naming styles, and sizes taken from the shapes.

Names: Hugging Face's (ComfyUI's too), and the original Wan release's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoints.weights import WeightFile, is_layer_number, shape_of
from ..errors import BadInput

ADVICE = (
    "give models_t5_umt5-xxl-enc-bf16.pth, umt5_xxl_fp16.safetensors, umt5_xxl_fp8_e4m3fn_scaled.safetensors "
    "or a Wan 2.1 diffusers folder"
)
# Wan 2.1's encoder. A file of its width that lost its last layers would otherwise load as a smaller one.
XXL_WIDTH, XXL_LAYERS = 4096, 24
SPIECE = "spiece_model"  # ComfyUI's files carry their tokenizer under this name
TABLE = "shared.weight"  # token id -> vector
TABLE_COPY = "encoder.embed_tokens.weight"
# Parts of a checkpoint that are not the encoder.
SKIPPED = ("decoder.", "lm_head.", SPIECE)

# original -> Hugging Face
_TOP = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
_BLOCK = {
    "norm1": "layer.0.layer_norm",
    "attn.q": "layer.0.SelfAttention.q",
    "attn.k": "layer.0.SelfAttention.k",
    "attn.v": "layer.0.SelfAttention.v",
    "attn.o": "layer.0.SelfAttention.o",
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "norm2": "layer.1.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Umt5Sizes:
    """The sizes needed to build the encoder."""

    vocabulary: int
    width: int
    ff_width: int
    layers: int
    heads: int
    head_width: int
    buckets: int


def with_hf_names(file: WeightFile) -> WeightFile:
    """Return the encoder's tensors under Hugging Face's names, without anything else in the file."""
    has_table = TABLE in file or "token_embedding.weight" in file

    def rename(name: str) -> str | None:
        if name.startswith(SKIPPED):
            return None
        if name == TABLE_COPY:
            return None if has_table else TABLE
        return from_original(name)

    return file.renamed(rename)


def from_original(name: str) -> str:
    """Return Hugging Face's name for one of the original release; any other stays as it is."""
    layer, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", layer)
    if block and block.group(2) in _BLOCK:
        return f"encoder.block.{block.group(1)}.{_BLOCK[block.group(2)]}.{leaf}"
    return f"{_TOP[layer]}.{leaf}" if layer in _TOP else name


def read_sizes(file: WeightFile) -> Umt5Sizes:
    """Read the sizes from weights with Hugging Face's names. Raises `BadInput` if they are not UMT5's."""
    layers = _count_layers(file)
    if TABLE not in file or layers == 0:
        raise BadInput(f"{file.path.name} is no UMT5; {ADVICE}")
    bias = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    if layers > 1 and not any(bias.format(n) in file for n in range(1, layers)):
        raise BadInput(f"{file.path.name} is a T5, with one position bias, and no UMT5; {ADVICE}")
    vocabulary, width = _shape(file, TABLE)
    if width == XXL_WIDTH and layers != XXL_LAYERS:
        raise BadInput(f"{file.path.name} has {layers} of umt5-xxl's {XXL_LAYERS} layers; {ADVICE}")
    buckets, heads = _shape(file, bias.format(0))
    return Umt5Sizes(
        vocabulary=vocabulary,
        width=width,
        ff_width=_shape(file, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight")[0],
        layers=layers,
        heads=heads,
        head_width=max(_shape(file, "encoder.block.0.layer.0.SelfAttention.q.weight")[0] // heads, 1),
        buckets=buckets,
    )


def _count_layers(file: WeightFile) -> int:
    numbers = (name.split(".")[2] for name in file if name.startswith("encoder.block.") and name.count(".") > 2)
    return max((int(number) + 1 for number in numbers if is_layer_number(number)), default=0)


def _shape(file: WeightFile, name: str) -> tuple[int, ...]:
    return shape_of(file, name, 2, "UMT5 text encoder", ADVICE)


def umt5_to_comfy(weights: Mapping[str, Tensor], spiece: bytes) -> dict[str, Tensor]:
    """Return `UMT5EncoderModel` weights in the form of ComfyUI's text encoder files, with the tokenizer inside."""
    kept = {name: tensor for name, tensor in weights.items() if name != TABLE_COPY}
    return {**kept, SPIECE: torch.frombuffer(bytearray(spiece), dtype=torch.uint8)}
