"""Wan 2.1's UMT5 text encoder and tokenizer: a prompt to one vector per token.

The layers are transformers' `UMT5EncoderModel`. Weights have Hugging Face's names (ComfyUI's too) or those of the
original release; sizes are inferred from shapes. The tokenizer is the SentencePiece model that every release has;
no other format is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..devices.streaming import LayerStream
from ..errors import BadInput, first_line
from ..files.small_files import read_small
from ..weights.names import Table, renamer
from ..weights.quantized import dequantized, find_quantisation
from ..weights.weight_file import WeightFile, check_complete, count_layers, open_weights, shape_of
from .prompts import clean_prompt

log = logging.getLogger(__name__)

UMT5_ADVICE = "give umt5_xxl_fp16.safetensors (doctor lists others)"
_shape = partial(shape_of, dims=2, what="UMT5 text encoder", advice=UMT5_ADVICE)
# Wan 2.1's encoder; to reject a truncated file of its width, which would load as a smaller model.
XXL_WIDTH = 4096
XXL_LAYERS = 24
SPIECE = "spiece_model"  # ComfyUI's files carry their tokenizer under this name
TOKEN_TABLE = "shared.weight"  # token id -> vector
TABLE_COPY = "encoder.embed_tokens.weight"
# What precedes these names is the encoder's prefix, in saved pipelines and files with all models.
FIRST_LAYER = ("encoder.block.0.layer.0.SelfAttention.q.weight", "blocks.0.attn.q.weight")

UMT5_NAMES: Table = {
    "^.token_embedding": "shared",
    "^.norm": "encoder.final_layer_norm",
    "^.blocks": "encoder.block",
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
    # Parts of a checkpoint that are not the encoder.
    "^.decoder": None,
    "^.lm_head": None,
    f"^.{SPIECE}": None,
}
"""original -> Hugging Face."""


def prefix_of(file: WeightFile) -> str:
    """Return what the encoder's names begin with; empty if there is none. Raises `BadInput` for two encoders."""
    prefixes = {name.removesuffix(layer) for name in file for layer in FIRST_LAYER if name.endswith(layer)}
    prefixes = {prefix for prefix in prefixes if prefix.endswith(".") or not prefix}
    if len(prefixes) > 1:
        raise BadInput(
            f"{file.path.name} holds several text encoders ({', '.join(sorted(prefixes))}); {UMT5_ADVICE}"
        )
    return next(iter(prefixes), "")


def with_hf_names(file: WeightFile) -> WeightFile:
    """Return only the encoder's tensors, under Hugging Face's names."""
    prefix = prefix_of(file)
    has_table = prefix + TOKEN_TABLE in file or f"{prefix}token_embedding.weight" in file
    copy = {f"^.{TABLE_COPY}": None if has_table else TOKEN_TABLE}
    return file.renamed(renamer({**UMT5_NAMES, **copy}, prefix=prefix))


def read_umt5_sizes(file: WeightFile) -> dict[str, int]:
    """Return the arguments of transformers' `UMT5Config` for weights with its names, or raise `BadInput`."""
    layers = count_layers(file, "encoder.block")
    bias = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    is_t5 = layers > 1 and not any(bias.format(n) in file for n in range(1, layers))
    if TOKEN_TABLE not in file or layers == 0 or is_t5:
        raise BadInput(f"{file.path.name} is no UMT5, with a position bias in every layer; {UMT5_ADVICE}")
    vocabulary, width = _shape(file, TOKEN_TABLE)
    if width == XXL_WIDTH and layers != XXL_LAYERS:
        raise BadInput(f"{file.path.name} has {layers} of umt5-xxl's {XXL_LAYERS} layers; {UMT5_ADVICE}")
    buckets, heads = _shape(file, bias.format(0))
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_ff": _shape(file, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight")[0],
        "num_layers": layers,
        "num_heads": heads,
        "d_kv": max(_shape(file, "encoder.block.0.layer.0.SelfAttention.q.weight")[0] // heads, 1),
        "relative_attention_num_buckets": buckets,
    }


# --- the tokenizer

TOKENIZER = "spiece.model"
# Folders of the tokenizer: next to the weights, diffusers', the original release's.
FOLDERS = (".", "tokenizer", "../tokenizer", "google/umt5-xxl")
TOKENIZER_ADVICE = "fetch spiece.model of google/umt5-xxl from Hugging Face"


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Maps text to token ids. `pieces`: a `SentencePieceProcessor`. `source`: name of its file."""

    pieces: Any
    source: str

    def ids(self, text: str, limit: int) -> list[int]:
        """Return at most `limit` ids of `text`, with the end token. Raises `BadInput` for a damaged tokenizer."""
        with _refused(self.source):
            ids: list[int] = self.pieces.encode(text)
        if len(ids) >= limit:
            log.warning("the prompt has %d tokens; the last %d are ignored", len(ids) + 1, len(ids) + 1 - limit)
        return [*ids[: limit - 1], self.pieces.eos_id()]


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a SentencePiece `.model`, or the one in or next to a folder. Raises `BadInput` if it cannot be read."""
    path = Path(path)
    places = [path / place / TOKENIZER for place in FOLDERS] if path.is_dir() else [path]
    file = next(filter(Path.is_file, places), None)
    if file is None:
        raise BadInput(f"there is no tokenizer at {path}; {TOKENIZER_ADVICE}")
    with _refused(file.name):
        model = read_small(file)
    return tokenizer_from_bytes(model, file.name)


def tokenizer_from_bytes(model: bytes, source: str) -> Tokenizer:
    """Load a SentencePiece model from bytes. `source`: its name in errors. Raises `BadInput` if it is damaged."""
    from sentencepiece import SentencePieceProcessor

    with _refused(source):
        if not model:
            raise ValueError("no bytes")  # SentencePiece would accept an empty model and then do nothing
        pieces = SentencePieceProcessor(model_proto=model)
    if pieces.eos_id() < 0:
        raise BadInput(f"{source} has no end token; {TOKENIZER_ADVICE}")
    return Tokenizer(pieces, source)


@contextmanager
def _refused(source: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"the tokenizer in {source} is damaged ({first_line(error)}); {TOKENIZER_ADVICE}") from error


# --- the encoder

WAN_TEXT_LEN = 512
# UMT5's embedding has 384 unused rows; a larger difference means another model's tokenizer.
SPARE_ROWS = 512
SLACK = 1.02
"""Memory for weights and activations, relative to the weights."""
LAYERS = "encoder.block"


class TextEncoder:
    """UMT5 with its tokenizer."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._model: Any = model
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def encode(self, prompt: str) -> Tensor:
        """Return the embedding of a prompt, `(1, 512, channels)`, zero after its end.

        A longer prompt is cut, with a warning in the log. Raises `BadInput` if it is empty.
        """
        ids = self._tokenizer.ids(clean_prompt(prompt), WAN_TEXT_LEN)
        tokens = torch.zeros(1, WAN_TEXT_LEN, dtype=torch.long, device=self._device)
        tokens[0, : len(ids)] = torch.tensor(ids, device=self._device)
        real = torch.arange(WAN_TEXT_LEN, device=self._device)[None] < len(ids)
        # Padding is masked and not left out, as attention over fewer rows would round differently.
        hidden: Tensor = self._model(input_ids=tokens, attention_mask=real.long()).last_hidden_state
        return hidden.masked_fill(~real[..., None], 0)


def load_umt5(
    path: str | Path,
    *,
    tokenizer: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    room: float | None = None,
) -> TextEncoder:
    """Load the UMT5 encoder from ComfyUI's file, the original release's, or a diffusers folder.

    `tokenizer`: file or folder; by default in the weights or next to them. `dtype`: for weights and computation.
    `room`: bytes on the device; if they do not suffice, layers are streamed from main memory.
    Raises `BadInput` if a file is missing, unreadable, incomplete or another model's.
    """
    stored, file, model, scales = open_umt5(path)
    inside = [name for name in stored if name.rpartition(".")[2] == SPIECE]
    if tokenizer is None and inside:
        pieces = tokenizer_from_bytes(stored[inside[0]].to(torch.uint8).numpy().tobytes(), stored.path.name)
    else:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        pieces = load_tokenizer(tokenizer or folder)
    rows = model.get_input_embeddings().num_embeddings
    entries = pieces.pieces.get_piece_size()
    if not rows - SPARE_ROWS <= entries <= rows:
        size = f"has {entries} entries, not the {rows} of {stored.path.name}"
        raise BadInput(f"the tokenizer {size}; {TOKENIZER_ADVICE}")
    wanted = _wanted(model)
    needed = SLACK * dtype.itemsize * sum(tensor.numel() for tensor in wanted.values())
    streamed = room is not None and needed > room
    weights = {}
    # One by one, so that only finished weights stay in memory.
    for name in wanted:
        home = "cpu" if streamed and name.startswith(f"{LAYERS}.") else device
        scale = file[scales[name]].to(home) if name in scales else None
        weights[name] = dequantized(file[name].to(home), scale, dtype)
    weights[TABLE_COPY] = weights[TOKEN_TABLE]
    model.load_state_dict(weights, assign=True)
    if streamed:
        LayerStream([*model.get_submodule(LAYERS).children()], torch.device(device))
    return TextEncoder(model, pieces)


def open_umt5(path: str | Path) -> tuple[WeightFile, WeightFile, Any, Mapping[str, str]]:
    """Return a file, its tensors under Hugging Face's names, an empty `UMT5EncoderModel`, and names of scales.

    The model is on the meta device. The scales are those of fp8 weights, by the weight's name. Raises `BadInput`
    if the encoder cannot be loaded. Does not look for a tokenizer.
    """
    from transformers import UMT5Config, UMT5EncoderModel

    path = Path(path)
    stored = open_weights(path / "text_encoder" if (path / "text_encoder").is_dir() else path)
    file = with_hf_names(stored)
    with torch.device("meta"):
        model = UMT5EncoderModel(UMT5Config(**read_umt5_sizes(file), feed_forward_proj="gated-gelu"))
    wanted = _wanted(model)
    quantisation = find_quantisation(file, wanted)
    check_complete(file, wanted, "UMT5 text encoder", UMT5_ADVICE, extra=quantisation.side)
    return stored, file, model.train(False).requires_grad_(False), quantisation.scales


def _wanted(model: nn.Module) -> dict[str, Tensor]:
    wanted = model.state_dict()
    wanted.pop(TABLE_COPY, None)
    return wanted
