"""The UMT5 tokenizer: a SentencePiece model, or the same vocabulary as a `tokenizer.json`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput

END = "</s>"
FILES = ("tokenizer.json", "spiece.model")
# Where releases keep it: beside the weights, in diffusers' folder, in the original release's folder.
FOLDERS = (".", "tokenizer", "../tokenizer", "google/umt5-xxl")
ADVICE = "fetch spiece.model or tokenizer.json of google/umt5-xxl from the Hugging Face Hub"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Text into token ids. `size`: ids are below it; `end`: the id that closes every prompt."""

    size: int
    end: int
    split: Callable[[str], list[int]]

    def ids(self, text: str, limit: int) -> list[int]:
        """Return the ids of `text`, at most `limit` of them, the end token always the last."""
        ids = self.split(text)
        if len(ids) >= limit:
            log.warning("the prompt has %d tokens; the last %d are not read", len(ids) + 1, len(ids) + 1 - limit)
        return [*ids[: limit - 1], self.end]


def find_tokenizer(near: Path) -> Path | None:
    """Return the tokenizer file in or beside a folder of weights, if there is one."""
    folder = near if near.is_dir() else near.parent
    candidates = (folder / place / name for place in FOLDERS for name in FILES)
    return next((path for path in candidates if path.is_file()), None)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from `tokenizer.json`, a SentencePiece `.model`, or a folder with one of them.

    Raises `BadInput` if there is none or if it cannot be read.
    """
    path = Path(path)
    file = find_tokenizer(path) if path.is_dir() else path
    if file is None or not file.is_file():
        raise BadInput(f"expected a tokenizer, but there is none at {path}; {ADVICE}")
    if file.suffix == ".json":
        return _from_json(file)
    if file.suffix == ".model":
        return tokenizer_from_bytes(file.read_bytes(), file.name)
    raise BadInput(f"expected a tokenizer as .json or .model, but got {file.name}; {ADVICE}")


def tokenizer_from_bytes(model: bytes, source: str) -> Tokenizer:
    """Load a SentencePiece model that is already in memory; `source` names it in errors."""
    from sentencepiece import SentencePieceProcessor

    try:
        if not model:
            raise ValueError("no bytes")  # which SentencePiece would take for a model, and then do nothing
        pieces = SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"expected a SentencePiece model in {source}, but it cannot be read; {ADVICE}") from error
    return _checked(Tokenizer(pieces.get_piece_size(), pieces.eos_id(), pieces.encode), source)


def _from_json(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer as FastTokenizer

    try:
        fast = FastTokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers package raises nothing narrower
        raise BadInput(f"expected a tokenizer in {file.name}, but it cannot be read ({error}); {ADVICE}") from error
    fast.no_truncation()
    fast.no_padding()
    end = fast.token_to_id(END)
    size = fast.get_vocab_size()
    # The file's own template would add the end token before the prompt is cut to length.
    return _checked(
        Tokenizer(size, -1 if end is None else end, lambda text: fast.encode(text, add_special_tokens=False).ids),
        file.name,
    )


def _checked(tokenizer: Tokenizer, source: str) -> Tokenizer:
    if tokenizer.end < 0:
        raise BadInput(f"expected the end token {END} in {source}, but it has none; {ADVICE}")
    return tokenizer
