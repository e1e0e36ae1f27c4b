"""Our scorer against the original `image-reward` package: frames and prompts in, scores out.

The golden scores come from the package itself, through PIL and its own tokenizer (`tests/golden`).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import image_reward_cases as cases
import pytest
import torch
import torch.nn.functional as F
from reward_files import case_state, write_case
from torch import Tensor

from sdvg_core.scorers import blip, preprocess, tokenizer
from sdvg_core.scorers.image_reward import ImageRewardScorer, load_image_reward

TOLERANCE = 2e-5
GOLDEN = json.loads((Path(cases.__file__).with_name("image_reward.json")).read_text(encoding="utf-8"))["cases"]


@cache
def frames(block: str) -> Tensor:
    return torch.from_numpy(cases.block_frames(block))[None]


def golden_scores(case: str, block: str) -> Tensor:
    return torch.tensor(GOLDEN[case]["scores"][block])


def worst_error(scorer: ImageRewardScorer, case: str, prompts: int = len(cases.PROMPTS)) -> float:
    errors = []
    for block in cases.BLOCKS:
        scores = torch.stack([scorer.score(frames(block), prompt) for prompt in cases.PROMPTS[:prompts]])
        errors.append((scores - golden_scores(case, block)[:prompts]).abs().max().item())
    return max(errors)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("image_reward")
    (folder / "narrow").mkdir()
    return {"tiny": write_case(folder, "tiny", ".pt"), "narrow": write_case(folder / "narrow", "narrow")}


@pytest.mark.parametrize("case", ["tiny", "narrow"])
def test_scores_equal_those_of_the_original_package(case: str, weights: dict[str, Path]) -> None:
    arrays = {name: tensor.numpy() for name, tensor in case_state(case).items()}
    assert cases.fingerprint(arrays) == GOLDEN[case]["weights"], "made with other weights"
    assert worst_error(load_image_reward(weights[case]), case) < TOLERANCE


def test_token_ids_equal_those_of_the_original_tokenizer(weights: dict[str, Path]) -> None:
    tokenizer = load_image_reward(weights["tiny"]).tokenizer
    for prompt, expected in zip(cases.PROMPTS, GOLDEN["tiny"]["ids"], strict=True):
        ids, mask = tokenizer.encode(prompt)
        assert ids.shape == mask.shape == (1, 35)
        assert ids[mask.bool()].tolist() == expected


def by_torch(pixels: Tensor, height: int, width: int, antialias: bool) -> Tensor:
    floats = F.interpolate(pixels.float(), size=(height, width), mode="bicubic", antialias=antialias)
    return (floats + 0.5).floor().clamp(0, 255).int()


def attend_to_padding(self: tokenizer.PromptTokenizer, prompt: str) -> tuple[Tensor, Tensor]:
    ids = self.tokenizer.encode(prompt).ids
    return torch.tensor([ids + [0] * (35 - len(ids))]), torch.ones(1, 35, dtype=torch.long)


def left_of_the_middle(pixels: Tensor, size: int) -> tuple[int, int]:
    return (pixels.shape[-2] - size) // 2, (pixels.shape[-1] - size) // 2


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "BLIP's default epsilon in the image tower": (blip, "VISION_EPS", 1e-5),
    "another epsilon in the text tower": (blip, "TEXT_EPS", 1e-6),
    "frames rounded to 8 bits, not truncated": (preprocess, "to_bytes", lambda f: (f * 255).round().int()),
    "no antialiasing": (preprocess, "resize", lambda p, h, w: by_torch(p, h, w, antialias=False)),
    "one pass, not rounded in the middle": (
        preprocess,
        "resize",
        lambda p, h, w: by_torch(p, h, w, antialias=True),
    ),
    "height before width": (preprocess, "resize", lambda p, h, w, right=preprocess.resize: right(p.mT, w, h).mT),
    "the crop half a pixel off": (preprocess, "_middle", left_of_the_middle),
    "another normalisation": (preprocess, "MEAN", (0.485, 0.456, 0.406)),
    "no mask over the padding": (tokenizer.PromptTokenizer, "encode", attend_to_padding),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_golden_catches(mistake: str, weights: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that cannot fail proves nothing: each known mistake must exceed the tolerance by far."""
    monkeypatch.setattr(*MISTAKES[mistake])
    assert worst_error(load_image_reward(weights["tiny"]), "tiny", prompts=1) > 20 * TOLERANCE


def test_the_golden_catches_a_prompt_read_causally(
    weights: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token, which is the one that is scored, would see itself alone."""
    scorer = load_image_reward(weights["tiny"])
    right = scorer.model.text.forward
    monkeypatch.setattr(scorer.model.text, "forward", lambda **kw: right(**{**kw, "is_decoder": True}))
    assert worst_error(scorer, "tiny", prompts=1) > 20 * TOLERANCE


def test_float16_stays_near_the_original_package(weights: dict[str, Path]) -> None:
    """0.02 is a twentieth of the spread over prompts; bfloat16, refused, misses it."""
    assert worst_error(load_image_reward(weights["tiny"], dtype=torch.float16), "tiny") < 0.02


@pytest.mark.exhaustive
def test_full_size_scores_equal_those_of_the_original_package(tmp_path: Path) -> None:
    path = write_case(tmp_path, "full", ".pt")
    assert worst_error(load_image_reward(path), "full") < TOLERANCE
    path.unlink()
