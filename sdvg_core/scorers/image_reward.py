"""ImageReward as a scorer of pixel frames, by match with the prompt and by quality.

It uses the published weights without the `image-reward` package, and gives the same scores (tests/golden).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from torch import Tensor

from ..devices.device import begin_upload, dtype_name
from ..errors import BadInput, why
from ..files.small_files import read_small
from ..weights.weight_file import open_weights
from .blip import MAX_TOKENS, ImageRewardConfig, RewardModel, build_model, read_config
from .preprocess import preprocess

# --- the tokenizer: bert-base-uncased's, at most 35 tokens, built from `vocab.txt` so that no release of
# transformers can change it.

REQUIRED = ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
# BLIP appends these to the vocabulary; a prompt may contain one.
APPENDED = ("[DEC]", "[ENC]")
SOURCE = "vocab.txt of google-bert/bert-base-uncased"
VOCABULARY_PLACES = ("bert-base-uncased/vocab.txt", "bert/vocab.txt", "vocab.txt")


@dataclass(frozen=True, slots=True, eq=False)
class PromptTokenizer:
    """Tokenizer of prompts: 35 tokens, [CLS], [SEP] and padding included. `size`: entries of the vocabulary."""

    tokenizer: Tokenizer
    size: int

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Return token ids and mask (1 for a token, 0 for padding), each `(1, 35)` int64."""
        encoding = self.tokenizer.encode(prompt)
        return torch.tensor([encoding.ids]), torch.tensor([encoding.attention_mask])

    def reads(self, prompt: str) -> str:
        """Return the beginning of the prompt that fits into 35 tokens."""
        encoding = self.tokenizer.encode(prompt)
        if not encoding.overflowing:
            return prompt
        return prompt[: max(end for _, end in encoding.offsets)]


def load_prompt_tokenizer(vocabulary: Path) -> PromptTokenizer:
    """Build the tokenizer from a `vocab.txt`. Raises `BadInput` like `read_vocabulary`."""
    ids = read_vocabulary(vocabulary)
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    tokenizer.add_special_tokens([token for token in (*REQUIRED, "[MASK]") if token in ids])
    tokenizer.add_special_tokens(list(APPENDED))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding(length=MAX_TOKENS, pad_id=ids["[PAD]"], pad_token="[PAD]")
    return PromptTokenizer(tokenizer, tokenizer.get_vocab_size(with_added_tokens=True))


def read_vocabulary(vocabulary: Path) -> dict[str, int]:
    """Return token -> id of a `vocab.txt`, with one token per line. Raises `BadInput` for another file."""
    try:
        text = read_small(vocabulary).decode("utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{vocabulary.name} is not UTF-8 text ({why(error)}); take {SOURCE}") from error
    lines = text.removesuffix("\n").split("\n")
    ids = {token.rstrip("\r"): number for number, token in enumerate(lines)}
    missing = [token for token in REQUIRED if token not in ids]
    if missing:
        raise BadInput(f"{vocabulary.name} is no vocabulary, as it lacks {', '.join(missing)}; take {SOURCE}")
    if len(ids) < len(lines):
        raise BadInput(f"{vocabulary.name} has {len(ids)} tokens on {len(lines)} lines, some twice; take {SOURCE}")
    return ids


def find_vocabulary(weights: Path, given: str | Path | None = None) -> Path:
    """Return the `vocab.txt`: the given file, or the one in the given folder or next to the weights.

    Raises `BadInput` with the searched folder if it is missing.
    """
    if given is not None and Path(given).is_file():
        return Path(given)
    folder = weights.parent if given is None else Path(given)
    for place in VOCABULARY_PLACES:
        if (folder / place).is_file():
            return folder / place
    raise BadInput(f"ImageReward's vocabulary is not in {folder}; put {SOURCE} (Hugging Face Hub) there")


# --- the scorer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageRewardScorer:
    """ImageReward as a `Scorer`.

    `file`: name of the weight file. `model`: may be moved between devices.
    """

    file: str
    model: RewardModel
    tokenizer: PromptTokenizer
    config: ImageRewardConfig
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Score frames `b f c h w` in [0, 1] in a batch: `(f,)` float32 on the CPU, NaN if not finite."""
        clip = frames[0].to(self.device)
        squares = preprocess(clip, self.config.image_size)
        ids, mask = _tokens_on(self.tokenizer, prompt, self.device)
        rewards: Tensor = self.model(ids, mask, squares)
        # Checked on whole frames, as the crop may remove such pixels and clamping hides infinity.
        broken = ~clip.isfinite().flatten(1).all(dim=1)
        return rewards.masked_fill(broken, torch.nan).cpu()

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return a note if the scorer does not read the whole prompt."""
        read = self.tokenizer.reads(prompt)
        if read == prompt:
            return ()
        # It does not quote the prompt, as notes go into files that people pass on.
        return (
            f"ImageReward reads only the first {MAX_TOKENS} tokens of this prompt, {len(read)} of its "
            f"{len(prompt)} characters.",
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings for the report."""
        return {
            "name": "ImageReward",
            "file": self.file,
            "dtype": dtype_name(self.dtype),
            "device": str(self.device),
            "image_size": self.config.image_size,
            "prompt_tokens": MAX_TOKENS,
            "notes": (),
        }


@lru_cache(1)  # the newest prompt's
def _tokens_on(tokenizer: PromptTokenizer, prompt: str, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(begin_upload(tokens, device) for tokens in tokenizer.encode(prompt))


def load_image_reward(
    path: str | Path,
    *,
    vocabulary: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> ImageRewardScorer:
    """Load ImageReward from `ImageReward.pt` or a safetensors copy.

    `vocabulary`: bert-base-uncased's `vocab.txt` or its folder; by default next to the weights. `dtype`: float32 or
    float16, of the towers. Raises `BadInput` if the file is not a whole ImageReward, or the vocabulary another one.
    """
    file = open_weights(path)
    config = read_config(file)
    tokenizer = load_prompt_tokenizer(find_vocabulary(file.path, vocabulary))
    if tokenizer.size != config.vocabulary:
        sizes = f"{tokenizer.size - 2} tokens, and {file.path.name} needs {config.vocabulary - 2}"
        raise BadInput(f"the vocabulary has {sizes}; take {SOURCE}")
    return ImageRewardScorer(
        file=file.path.name,
        model=build_model(file, config, torch.device(device), dtype),
        tokenizer=tokenizer,
        config=config,
        dtype=dtype,
    )
