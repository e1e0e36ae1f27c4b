"""What the scorer is given: frames as Pillow resizes them, what the crop sees, and the tokens of a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from image_reward_cases import vocabulary
from PIL import Image
from reward_files import write_vocabulary
from synthetic_frames import synthetic_frames
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sdvg_core.errors import BadInput
from sdvg_core.scorers import preprocess
from sdvg_core.scorers.image_reward import PLACES, PromptTokenizer, find_vocabulary, load_prompt_tokenizer


def to_images(frames: Tensor) -> list[Image.Image]:
    pixels = (255 * frames.numpy()).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(np.ascontiguousarray(p.transpose(1, 2, 0))) for p in pixels]


def pillow(frames: Tensor, height: int, width: int) -> Tensor:
    resized = [image.resize((width, height), Image.Resampling.BICUBIC) for image in to_images(frames)]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in resized]).int()


def frame(h: int, w: int) -> Tensor:
    return torch.from_numpy(synthetic_frames(1, h, w))


@pytest.mark.parametrize(
    "source, target",
    [
        ((480, 832), (224, 388)),
        ((832, 480), (388, 224)),
        ((101, 57), (48, 27)),
        ((37, 51), (64, 88)),
        ((100, 90), (224, 90)),
        ((64, 64), (64, 64)),
    ],
)
def test_resizing_equals_pillow_on_every_pixel(source: tuple[int, int], target: tuple[int, int]) -> None:
    image = frame(*source)
    assert torch.equal(preprocess.resize(preprocess.to_bytes(image), *target), pillow(image, *target))


def test_resizing_equals_pillow_on_noise_and_hard_edges() -> None:
    """Overshoot at the edges leaves 0..255 and must be cut after each pass, not once."""
    noise = torch.rand(1, 3, 120, 200, generator=torch.Generator().manual_seed(3)).round()
    assert torch.equal(preprocess.resize(preprocess.to_bytes(noise), 48, 80), pillow(noise, 48, 80))


class Kernels(TorchDispatchMode):
    """Counts the operations that compute something, and so are kernels on a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_a_resize_takes_few_kernels() -> None:
    """Catches a loop over the taps."""
    frames = torch.rand(1, 3, 480, 832)
    preprocess.preprocess(frames, 224)  # makes what is kept between calls
    with Kernels() as kernels:
        preprocess.preprocess(frames, 224)
    assert 0 < kernels.count <= 24


def test_quantising_truncates_and_clips_in_float32() -> None:
    """255 * x in float16 would round values near 255 up."""
    values = torch.tensor([-0.5, 0.0, 0.999 / 255, 1 / 255, 254.99 / 255, 1.0, 3.0, torch.nan, torch.inf])
    assert preprocess.to_bytes(values).tolist() == [0, 0, 0, 1, 254, 255, 255, 0, 255]
    assert preprocess.to_bytes(torch.arange(256) / 255).tolist() == list(range(256))
    assert preprocess.to_bytes(torch.tensor([0.9995], dtype=torch.float16)).item() == 254


def test_the_centre_crop_does_not_see_the_sides() -> None:
    image = torch.zeros(1, 3, 48, 96)
    image[..., :20] = 1
    image[..., 76:] = 1
    squares = preprocess.cut_squares(preprocess.to_bytes(image), 48)
    assert squares.max() == 0


# --- the prompt

TOKENS = vocabulary("tiny")


@pytest.fixture
def tokenizer(tmp_path: Path) -> PromptTokenizer:
    return load_prompt_tokenizer(write_vocabulary(tmp_path / "vocab.txt", TOKENS))


def test_a_longer_prompt_is_read_up_to_its_33rd_word_piece(tokenizer: PromptTokenizer) -> None:
    prompt = " ".join(["Fóx"] * 31 + ["slowly", "red"])
    assert tokenizer.reads(prompt) == prompt.removesuffix(" red")
    assert tokenizer.reads(prompt.removesuffix(" red")) == prompt.removesuffix(" red")
    ids, mask = tokenizer.encode(prompt)
    assert mask.sum() == 35
    assert ids[0, -1] == TOKENS.index("[SEP]")


def test_lines_may_end_as_windows_writes_them(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(TOKENS).encode() + b"\r\n")
    loaded = load_prompt_tokenizer(tmp_path / "vocab.txt")
    assert loaded.size == len(TOKENS) + 2
    assert loaded.encode("fox")[0][0, 1] == TOKENS.index("fox")


@pytest.mark.parametrize("token", ["[CLS]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_vocabulary_without_a_token_we_need_is_refused(token: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.txt", [t for t in TOKENS if t != token])
    with pytest.raises(BadInput, match=rf"lacks \{token[:-1]}\]; take vocab.txt of google-bert/bert-base-uncased"):
        load_prompt_tokenizer(path)


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
    with pytest.raises(BadInput, match=rf"^vocab.txt is {what}.*{advice}"):
        load_prompt_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("place", PLACES)
def test_the_vocabulary_is_found_beside_the_weights_and_in_a_given_folder(place: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / place, TOKENS)
    assert find_vocabulary(tmp_path / "ImageReward.pt") == path
    assert find_vocabulary(Path("elsewhere") / "ImageReward.pt", tmp_path) == path
    assert find_vocabulary(Path("elsewhere") / "ImageReward.pt", path) == path


def test_a_missing_vocabulary_is_refused_with_the_folder_and_its_source(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        find_vocabulary(tmp_path / "ImageReward.pt")
    for part in (str(tmp_path), "google-bert/bert-base-uncased"):
        assert part in str(refusal.value)
    write_vocabulary(tmp_path / "vocab.txt", TOKENS)
    with pytest.raises(BadInput, match="is not in"):
        find_vocabulary(tmp_path / "ImageReward.pt", tmp_path / "typo.txt")
    given = write_vocabulary(tmp_path / "mine" / "words.txt", TOKENS)
    assert find_vocabulary(tmp_path / "ImageReward.pt", given) == given
