"""The UMT5 tokenizer: a SentencePiece model, or the same vocabulary as a `tokenizer.json`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, first_line
from ..files.small_files import MEGABYTE, read_small

END = "</s>"
FILES = ("tokenizer.json", "spiece.model")
# Where releases keep it: next to the weights, in diffusers' folder, in the original release's folder.
FOLDERS = (".", "tokenizer", "../tokenizer", "google/umt5-xxl")
# umt5-xxl's own are 4.5 and 16.8 MB.
LARGEST = 64 * MEGABYTE
ADVICE = "fetch spiece.model or tokenizer.json of google/umt5-xxl from Hugging Face"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Turns text into token ids. `size`: ids are below it; `end`: the id after every prompt; `source`: its file."""

    size: int
    end: int
    split: Callable[[str], list[int]]
    source: str

    def ids(self, text: str, limit: int) -> list[int]:
        """Return the ids of `text`, at most `limit` of them; the last is always the end token.

        Raises `BadInput` if the tokenizer turns out to be damaged.
        """
        with _refused(self.source):
            ids = self.split(text)
        if not all(0 <= number < self.size for number in ids):
            raise BadInput(f"{self.source} gave the id {max(ids)}, over {self.size - 1}; {ADVICE}")
        if len(ids) >= limit:
            log.warning("the prompt has %d tokens; the last %d are ignored", len(ids) + 1, len(ids) + 1 - limit)
        return [*ids[: limit - 1], self.end]


def find_tokenizer(near: Path) -> Path | None:
    """Return the tokenizer file in or next to a folder of weights, if there is one."""
    folder = near if near.is_dir() else near.parent
    candidates = (folder / place / name for place in FOLDERS for name in FILES)
    return next((path for path in candidates if path.is_file()), None)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from `tokenizer.json`, a SentencePiece `.model`, or a folder with one of them.

    Raises `BadInput` if it is missing or cannot be read.
    """
    path = Path(path)
    file = find_tokenizer(path) if path.is_dir() else path
    if file is None or not file.is_file():
        raise BadInput(f"there is no tokenizer at {path}; {ADVICE}")
    if file.suffix == ".json":
        return _from_json(file)
    if file.suffix == ".model":
        with _refused(file.name):
            return tokenizer_from_bytes(read_small(file, LARGEST), file.name)
    raise BadInput(f"{file.name} is no .json or .model file; {ADVICE}")


def tokenizer_from_bytes(model: bytes, source: str) -> Tokenizer:
    """Load a SentencePiece model from memory; `source` names it in errors."""
    from sentencepiece import SentencePieceProcessor

    with _refused(source):
        if not model:
            raise ValueError("no bytes")  # SentencePiece would accept an empty model and then do nothing
        pieces = SentencePieceProcessor(model_proto=model)
        return _checked(Tokenizer(pieces.get_piece_size(), pieces.eos_id(), pieces.encode, source))


def _from_json(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer as FastTokenizer

    with _refused(file.name):
        text = read_small(file, LARGEST)
        fast = FastTokenizer.from_buffer(text)
        fast.no_truncation()
        fast.no_padding()
        end = fast.token_to_id(END)
        size = fast.get_vocab_size()
    # The file's own template would add the end token before the prompt is cut to length.
    split = lambda prompt: fast.encode(prompt, add_special_tokens=False).ids  # noqa: E731
    return _checked(Tokenizer(size, -1 if end is None else end, split, file.name))


def _checked(tokenizer: Tokenizer) -> Tokenizer:
    if not 0 <= tokenizer.end < tokenizer.size:
        raise BadInput(f"{tokenizer.source} has no end token {END}; {ADVICE}")
    return tokenizer


@contextmanager
def _refused(source: str) -> Iterator[None]:
    """Turn every error of a damaged tokenizer, when read or when used, into `BadInput`."""
    try:
        yield
    except BadInput:
        raise
    except BaseException as error:
        # The tokenizers package raises plain Exceptions. A panic of its Rust code is not even an Exception, and its
        # class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadInput(f"the tokenizer in {source} is damaged ({first_line(error)}); {ADVICE}") from error
