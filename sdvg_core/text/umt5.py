"""The UMT5 text encoder of Wan 2.1: a prompt becomes one vector per token.

The layers are transformers' `UMT5EncoderModel`; tiny and full-size encoders use the same code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoints.quantized import dequantized, find_quantisation
from ..checkpoints.weights import WeightFile, check_complete, open_weights
from ..devices.streaming import LayerStream
from ..errors import BadInput
from .prompts import clean_prompt
from .tokenizer import ADVICE as TOKENIZER_ADVICE
from .tokenizer import Tokenizer, find_tokenizer, load_tokenizer, tokenizer_from_bytes
from .umt5_weights import (
    ADVICE,
    SPIECE,
    TABLE,
    TABLE_COPY,
    Umt5Sizes,
    from_original,
    read_sizes,
    with_hf_names,
)

WAN_TEXT_LEN = 512
# UMT5 rounds its vocabulary up and adds unused entries (384 in all); a larger gap means another model's tokenizer.
SPARE_ROWS = 512
SLACK = 1.02
"""Activations are small next to the weights."""
LAYERS = ("encoder.block.",)


class TextEncoder:
    """Turns prompts into text embeddings."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, text_len: int = WAN_TEXT_LEN) -> None:
        self.text_len = text_len
        self._tokenizer = tokenizer
        self._model: Any = model
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def encode(self, prompt: str) -> Tensor:
        """Return the embedding of a prompt, `(1, text_len, channels)`, zero after the prompt's end.

        A prompt of more tokens is cut, with a warning in the log. Raises `BadInput` if the prompt is empty.
        """
        ids = self._tokenizer.ids(clean_prompt(prompt), self.text_len)
        tokens = torch.zeros(1, self.text_len, dtype=torch.long, device=self._device)
        tokens[0, : len(ids)] = torch.tensor(ids, device=self._device)
        real = torch.arange(self.text_len, device=self._device)[None] < len(ids)
        # Padding goes through the layers too, masked: attention over fewer rows would round differently.
        hidden: Tensor = self._model(input_ids=tokens, attention_mask=real.long()).last_hidden_state
        return hidden.masked_fill(~real[..., None], 0)


def load_umt5(
    path: str | Path,
    *,
    tokenizer: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    text_len: int = WAN_TEXT_LEN,
    room: float | None = None,
) -> TextEncoder:
    """Load the UMT5 encoder from ComfyUI's file, the original release's, or a diffusers folder.

    `tokenizer`: a file or folder; by default the one inside the weights, or one found next to them.
    `dtype`: the encoder computes in it; fp8 and fp16 files are converted while they are read. `room`: bytes on the
    device; without enough for all layers, these stay in main memory and are copied over one by one.
    Raises `BadInput` if a file is missing, unreadable, incomplete or another model's, or if `dtype` is float16.
    """
    check_text_dtype(dtype)
    stored, sizes, model = open_umt5(path)
    words = _find_words(stored, tokenizer, Path(path))
    _check_vocabulary(words, sizes, stored)
    device = torch.device(device)
    needed = SLACK * dtype.itemsize * sum(tensor.numel() for tensor in _wanted(model).values())
    streamed = room is not None and needed > room
    _read_weights(model, with_hf_names(stored), device, dtype, aside=LAYERS if streamed else ())
    if streamed:
        LayerStream([*model.get_submodule(LAYERS[0][:-1]).children()], device)
    return TextEncoder(model, words, text_len=text_len)


def check_text_dtype(dtype: torch.dtype) -> None:
    """Raise `BadInput` for a dtype that UMT5 does not run in."""
    if dtype not in (torch.bfloat16, torch.float32):
        raise BadInput(f"UMT5 overflows in {dtype}; choose bfloat16 or float32")


def open_umt5(path: str | Path) -> tuple[WeightFile, Umt5Sizes, nn.Module]:
    """Return the file, the encoder's sizes, and the still empty module for its tensors.

    Raises `BadInput` if the encoder could not be loaded; does not check whether there is a tokenizer.
    """
    path = Path(path)
    stored = open_weights(path / "text_encoder" if (path / "text_encoder").is_dir() else path)
    file = with_hf_names(stored)
    sizes = read_sizes(file)
    model = _build_on_meta(sizes)
    wanted = _wanted(model)
    side = find_quantisation(file, wanted, from_original).side
    check_complete(file, wanted, "UMT5 text encoder", ADVICE, extra=side)
    return stored, sizes, model


def _find_words(stored: WeightFile, given: str | Path | None, path: Path) -> Tokenizer:
    if given is not None:
        return load_tokenizer(given)
    if SPIECE in stored:
        return tokenizer_from_bytes(stored[SPIECE].to(torch.uint8).numpy().tobytes(), stored.path.name)
    found = find_tokenizer(path)
    if found is None:
        raise BadInput(f"there is no tokenizer in or next to {path}; {TOKENIZER_ADVICE}")
    return load_tokenizer(found)


def _check_vocabulary(words: Tokenizer, sizes: Umt5Sizes, stored: WeightFile) -> None:
    if not sizes.vocabulary - SPARE_ROWS <= words.size <= sizes.vocabulary:
        size = f"has {words.size} entries, not the {sizes.vocabulary} of {stored.path.name}"
        raise BadInput(f"the tokenizer {size}; {TOKENIZER_ADVICE}")


def _wanted(model: nn.Module) -> dict[str, Tensor]:
    wanted = model.state_dict()
    wanted.pop(TABLE_COPY, None)
    return wanted


def _read_weights(
    model: nn.Module, file: WeightFile, there: torch.device, dtype: torch.dtype, aside: tuple[str, ...]
) -> None:
    """Read the weights onto a device, and those whose names begin as one of `aside` into main memory."""
    # One tensor at a time, so nothing but the finished weights stays in memory.
    weights, wanted = {}, _wanted(model)
    scales = find_quantisation(file, wanted, from_original).scales
    for name in wanted:
        device = torch.device("cpu") if name.startswith(aside) else there
        scale = file[scales[name]].to(device) if name in scales else None
        weights[name] = dequantized(file[name].to(device), scale, dtype)
    weights[TABLE_COPY] = weights[TABLE]
    model.load_state_dict(weights, assign=True)


def _build_on_meta(sizes: Umt5Sizes) -> nn.Module:
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        d_kv=sizes.head_width,
        d_ff=sizes.ff_width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        relative_attention_num_buckets=sizes.buckets,
        feed_forward_proj="gated-gelu",
    )
    with torch.device("meta"):
        model: nn.Module = UMT5EncoderModel(config)
    return model.train(False).requires_grad_(False)
