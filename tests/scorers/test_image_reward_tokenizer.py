"""The prompt tokenizer: what it reads of a prompt, and where it finds its vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_reward_cases import vocabulary
from reward_files import write_vocabulary

from sdvg_core.errors import BadInput
from sdvg_core.scorers.tokenizer import PLACES, PromptTokenizer, find_vocabulary, load_tokenizer

TOKENS = vocabulary("tiny")


@pytest.fixture
def tokenizer(tmp_path: Path) -> PromptTokenizer:
    return load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", TOKENS))


def test_a_longer_prompt_is_read_up_to_its_33rd_word_piece(tokenizer: PromptTokenizer) -> None:
    prompt = " ".join(["Fóx"] * 31 + ["slowly", "red"])
    assert tokenizer.reads(prompt) == prompt.removesuffix(" red")
    assert tokenizer.reads(prompt.removesuffix(" red")) == prompt.removesuffix(" red")
    ids, mask = tokenizer.encode(prompt)
    assert mask.sum() == 35
    assert ids[0, -1] == TOKENS.index("[SEP]")


def test_lines_may_end_as_windows_writes_them(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(TOKENS).encode() + b"\r\n")
    loaded = load_tokenizer(tmp_path / "vocab.txt")
    assert loaded.size == len(TOKENS) + 2
    assert loaded.encode("fox")[0][0, 1] == TOKENS.index("fox")


@pytest.mark.parametrize("token", ["[CLS]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_vocabulary_without_a_token_we_need_is_refused(token: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.txt", [t for t in TOKENS if t != token])
    with pytest.raises(
        BadInput, match=rf"lacks \[{token[1:-1]}\]; take vocab.txt of google-bert/bert-base-uncased"
    ):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"<!DOCTYPE html>\n<html><head></head></html>", "a web page"),
        (b'{"error": "Repository not found"}', r"a server's error message \(Repository not found\)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 231508\n", "a pointer of Git LFS"),
        (b"", "an empty"),
        (b" \r\n\n", "an empty"),
    ],
    ids=["page", "error", "pointer", "empty", "blank"],
)
def test_what_only_has_a_vocabularys_name_is_called_what_it_is(content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    advice = "download the file itself.*: vocab.txt of google-bert/bert-base-uncased$"
    with pytest.raises(BadInput, match=rf"^vocab.txt is no vocabulary, but {what}.*{advice}"):
        load_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("place", PLACES)
def test_the_vocabulary_is_found_beside_the_weights_and_in_a_given_folder(place: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / place, TOKENS)
    assert find_vocabulary(tmp_path / "ImageReward.pt") == path
    assert find_vocabulary(Path("elsewhere") / "ImageReward.pt", tmp_path) == path
    assert find_vocabulary(Path("elsewhere") / "ImageReward.pt", path) == path


def test_a_missing_vocabulary_is_refused_with_every_place_and_its_source(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        find_vocabulary(tmp_path / "ImageReward.pt")
    for part in (*PLACES, str(tmp_path), "google-bert/bert-base-uncased"):
        assert part in str(refusal.value)
    write_vocabulary(tmp_path / "vocab.txt", TOKENS)
    with pytest.raises(BadInput, match="is not in"):
        find_vocabulary(tmp_path / "ImageReward.pt", tmp_path / "typo.txt")
    given = write_vocabulary(tmp_path / "mine" / "words.txt", TOKENS)
    assert find_vocabulary(tmp_path / "ImageReward.pt", given) == given
