"""The embedded set, ready for batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import UMT5Config, UMT5EncoderModel

from sdvg_core.causal_wan.checkpoint import load_wan
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.pocket.trained_set import trained_set
from sdvg_core.text.umt5 import SPIECE, TABLE_COPY, TOKEN_TABLE, with_hf_names
from sdvg_core.weights.weight_file import open_weights

CONFIG = UMT5Config(
    vocab_size=256,
    d_model=128,
    d_kv=32,
    d_ff=256,
    num_layers=3,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    dropout_rate=0.0,
)


class Tokens:
    """Prompts as token ids, padded to the longest of a batch."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)

    def __call__(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Return ids `b m` and which of them are real."""
        ids = [[*self._model.encode(prompt), 1] for prompt in prompts]
        longest = max(map(len, ids))
        real = torch.tensor([[i < len(row) for i in range(longest)] for row in ids])
        return torch.tensor([row + [0] * (longest - len(row)) for row in ids]), real


class Shipped:
    """The VAE, both transformers, and the text encoder of the embedded set."""

    def __init__(self) -> None:
        files = trained_set()
        stored = open_weights(files.text_encoder)
        named = with_hf_names(stored)
        weights = {name: named[name].float() for name in named}
        self._encoder = UMT5EncoderModel(CONFIG).eval().requires_grad_(False)
        self._encoder.load_state_dict(weights | {TABLE_COPY: weights[TOKEN_TABLE]})
        self._tokens = Tokens(stored[SPIECE].numpy().tobytes())
        vae = load_vae(files.vae, layers="planes")
        assert isinstance(vae, WanCodec)
        self.vae = vae
        self.models = {role: load_model(getattr(files, role)) for role in ("drafter", "target")}

    @torch.no_grad()
    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the embeddings `n m c` of prompts, and which of their tokens are real."""
        ids, real = self._tokens(list(prompts))
        return self._encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state, real


def load_model(path: Path) -> WanTree:
    """Return a transformer of a file."""
    tree: WanTree = load_wan(path, dtype=torch.float32).tree
    return tree.requires_grad_(False)
