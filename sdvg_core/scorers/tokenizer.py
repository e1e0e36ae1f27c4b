"""Turn prompts into ImageReward's token ids: bert-base-uncased word pieces, at most 35 tokens.

Built from `vocab.txt` alone, so that no release of transformers can change the meaning of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from torch import Tensor

from ..checkpoints.weights import BEGINNING, what_came_instead
from ..errors import BadInput, why
from ..files.small_files import MEGABYTE, read_small

MAX_TOKENS = 35
LARGEST = 16 * MEGABYTE  # the vocabulary itself has 0.2 MB
REQUIRED = ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
# BLIP appends these to the vocabulary. ImageReward never adds them, but a prompt may contain one.
APPENDED = ("[DEC]", "[ENC]")
SOURCE = "vocab.txt of google-bert/bert-base-uncased"
PLACES = ("bert-base-uncased/vocab.txt", "bert/vocab.txt", "vocab.txt")


@dataclass(frozen=True, slots=True, eq=False)
class PromptTokenizer:
    """Word pieces of a prompt.

    `tokenizer`: truncates and pads to 35 tokens, including [CLS] and [SEP]. `size`: rows the embedding must have.
    """

    tokenizer: Tokenizer
    size: int

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Return token ids and mask (1 for a token, 0 for padding), each `(1, 35)` int64."""
        encoding = self.tokenizer.encode(prompt)
        return torch.tensor([encoding.ids]), torch.tensor([encoding.attention_mask])

    def reads(self, prompt: str) -> str:
        """Return the start of the prompt that fits into 35 tokens; all of it, if it fits."""
        encoding = self.tokenizer.encode(prompt)
        if not encoding.overflowing:
            return prompt
        return prompt[: max(end for _, end in encoding.offsets)]


def load_tokenizer(vocabulary: Path) -> PromptTokenizer:
    """Build the tokenizer from a `vocab.txt`, one token per line. Raises `BadInput` if it is not one."""
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
    """Return token -> id of a `vocab.txt`, one token per line. Raises `BadInput` if it is not one."""
    lines = _text(vocabulary).removesuffix("\n").split("\n")
    ids = {token.rstrip("\r"): number for number, token in enumerate(lines)}
    missing = [token for token in REQUIRED if token not in ids]
    if missing:
        raise BadInput(f"{vocabulary.name} is no vocabulary, as it lacks {', '.join(missing)}; take {SOURCE}")
    if len(ids) < len(lines):
        raise BadInput(f"{vocabulary.name} has {len(ids)} tokens on {len(lines)} lines, some twice; take {SOURCE}")
    return ids


def _text(vocabulary: Path) -> str:
    try:
        content = read_small(vocabulary, LARGEST)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{vocabulary.name} is not UTF-8 text ({why(error)}); fetch it again") from error
    if not text.strip():
        raise BadInput(f"{vocabulary.name} is an empty file; download the file itself: {SOURCE}")
    substitute = what_came_instead(content[:BEGINNING])
    if substitute:
        raise BadInput(f"{vocabulary.name} is {substitute}: {SOURCE}")
    return text


def find_vocabulary(weights: Path, given: str | Path | None = None) -> Path:
    """Return the `vocab.txt` to use: the given file, or the one in the given folder or next to the weights.

    Raises `BadInput` with the folder searched if it is missing.
    """
    if given is not None and Path(given).is_file():
        return Path(given)
    folder = weights.parent if given is None else Path(given)
    for place in PLACES:
        if (folder / place).is_file():
            return folder / place
    raise BadInput(f"ImageReward's vocabulary is not in {folder}; put {SOURCE} (Hugging Face Hub) there")
