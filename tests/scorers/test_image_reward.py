"""The ImageReward scorer as the router meets it, against the original package, and the files it accepts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import image_reward_cases as cases
import numpy as np
import pytest
import torch
from image_reward_cases import CASES, random_weights, synthetic_frames, vocabulary
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sdvg_core.errors import BadInput
from sdvg_core.scorers import preprocess
from sdvg_core.scorers.blip import ImageRewardConfig, read_config, used_shapes
from sdvg_core.scorers.image_reward import (
    VOCABULARY_PLACES,
    ImageRewardScorer,
    PromptTokenizer,
    find_vocabulary,
    load_image_reward,
    load_prompt_tokenizer,
)
from sdvg_core.weights.weight_file import TensorInfo, WeightFile, open_weights


def case_config(case: str) -> ImageRewardConfig:
    return ImageRewardConfig(**{"vocabulary": len(vocabulary(case)) + 2, **CASES[case]})


def published_shapes(config: ImageRewardConfig) -> dict[str, tuple[int, ...]]:
    """Return all that lies in a checkpoint, with BLIP's contrastive projections, which no score needs."""
    shapes = used_shapes(config)
    for name, width in (("vision", config.vision_width), ("text", config.text_width)):
        shapes |= {f"blip.{name}_proj.weight": (256, width), f"blip.{name}_proj.bias": (256,)}
    return shapes


def case_state(case: str) -> dict[str, Tensor]:
    return {k: torch.from_numpy(w) for k, w in random_weights(published_shapes(case_config(case))).items()}


def write_vocabulary(path: Path, tokens: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


def write_case(folder: Path, case: str, suffix: str = ".safetensors") -> Path:
    """Write the case's weights, with the vocabulary next to them. Only safetensors can tell the heads."""
    path = folder / f"{case}{suffix}"
    if suffix == ".safetensors":
        config = case_config(case)
        heads = {"vision_heads": config.vision_heads, "text_heads": config.text_heads}
        save_file(case_state(case), path, metadata={"config": json.dumps({"image_reward": heads})})
    else:
        torch.save(case_state(case), path)
    write_vocabulary(folder / "vocab.txt", vocabulary(case))
    return path


PROMPT = "a red fox runs over the snow"
LONG = " ".join(["the red fox runs over the old town"] * 6)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("tiny"), "tiny")


@pytest.fixture(scope="module")
def scorer(weights: Path) -> ImageRewardScorer:
    return load_image_reward(weights)


def clip(frames: int = 4, h: int = 60, w: int = 104) -> Tensor:
    return torch.from_numpy(synthetic_frames(frames, h, w))[None]


def rewrite(folder: Path, state: dict[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
    write_vocabulary(folder / "vocab.txt", cases.vocabulary("tiny"))
    save_file(state, folder / "changed.safetensors", metadata=metadata)
    return folder / "changed.safetensors"


# --- scoring


def test_scoring_changes_no_frame_and_no_state(scorer: ImageRewardScorer) -> None:
    frames = clip()
    before = frames.clone()
    state = torch.get_rng_state()
    first = scorer.score(frames, PROMPT)
    assert torch.equal(frames, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(scorer.score(frames, PROMPT), first)


@pytest.mark.parametrize("value, column", [(torch.nan, 0), (torch.inf, 52)], ids=["outside the crop", "inside it"])
def test_only_the_broken_frame_scores_nan(value: float, column: int, scorer: ImageRewardScorer) -> None:
    frames = clip(3)
    good = scorer.score(frames, PROMPT)
    frames[0, 1, 2, 30, column] = value
    scores = scorer.score(frames, PROMPT)
    assert scores[1].isnan()
    assert torch.equal(scores[[0, 2]], good[[0, 2]])


# --- what it says about itself


def test_only_cut_prompts_are_noted(scorer: ImageRewardScorer) -> None:
    assert scorer.prompt_notes(PROMPT) == ()
    assert scorer.tokenizer.reads(PROMPT) == PROMPT
    (note,) = scorer.prompt_notes(LONG)
    assert "first 35 tokens" in note
    assert f"{len(scorer.tokenizer.reads(LONG))} of its {len(LONG)} characters" in note
    assert "fox" not in note, "a report may be private"
    assert torch.equal(scorer.score(clip(2), LONG), scorer.score(clip(2), scorer.tokenizer.reads(LONG)))


# --- the files it accepts


def test_unused_tensors_may_be_missing(tmp_path: Path, scorer: ImageRewardScorer) -> None:
    state = {k: v for k, v in case_state("tiny").items() if "vision_proj" not in k and "text_proj" not in k}
    state["blip.text_encoder.embeddings.position_ids"] = torch.zeros(1, 64, dtype=torch.long)
    other = load_image_reward(rewrite(tmp_path, state))
    assert other.config == case_config("tiny"), "without metadata heads are 64 wide"
    assert torch.equal(other.score(clip(), PROMPT), scorer.score(clip(), PROMPT))


def test_half_precision_weights_run_in_float32(tmp_path: Path, scorer: ImageRewardScorer) -> None:
    path = rewrite(tmp_path, {k: v.half() for k, v in case_state("tiny").items()})
    halved = load_image_reward(path)
    assert {p.dtype for p in halved.model.parameters()} == {torch.float32}
    torch.testing.assert_close(halved.score(clip(), PROMPT), scorer.score(clip(), PROMPT), atol=0.02, rtol=0)


# --- what it refuses


def test_no_used_weight_may_be_missing(weights: Path) -> None:
    """Catches what the original package does: noise in place of a weight that is missing, without a word."""
    file = open_weights(weights)
    for missing in used_shapes(case_config("tiny")):
        rest = file.renamed(lambda name, missing=missing: None if name == missing else name)
        with pytest.raises(BadInput, match="; "):
            read_config(rest)


def test_published_size_is_known() -> None:
    shapes = published_shapes(ImageRewardConfig())
    assert len(shapes) == 624
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 446_665_953


@pytest.mark.parametrize("tower", ["vision", "text"])
def test_tower_without_its_last_layer_is_refused(tower: str) -> None:
    whole = ImageRewardConfig()
    cut = replace(whole, **{f"{tower}_layers": getattr(whole, f"{tower}_layers") - 1})
    info = {name: TensorInfo(shape, torch.float32) for name, shape in used_shapes(cut).items()}
    file = WeightFile(Path("cut.pt"), "", info, lambda name: torch.ones(1), {name: name for name in info})
    with pytest.raises(BadInput, match=r"cut\.pt has (23 of 24|11 of 12) layers"):
        read_config(file)


def tiny_with(**changed: Tensor) -> dict[str, Tensor]:
    return case_state("tiny") | {f"blip.visual_encoder.{name}": tensor for name, tensor in changed.items()}


SPOILED = {
    r"layer\.0\.crossattention.* and 17 more": {k: v for k, v in case_state("tiny").items() if "crossatt" not in k},
    r"not a whole ImageReward, as it lacks blip": {"blocks.0.self_attn.q.weight": torch.zeros(2, 2)},
    r"norm\.weight \(\(7,\), not \(192,\)\)": tiny_with(**{"norm.weight": torch.zeros(7)}),
    r"pos_embed \(\(1, 40, 192\), not": tiny_with(pos_embed=torch.zeros(1, 40, 192)),
    r"lacks mlp\.layers\.7\.bias; fetch it again": {
        k: v for k, v in case_state("tiny").items() if k != "mlp.layers.7.bias"
    },
    "vision_heads": case_state("narrow"),
    r"float8_e4m3fn; use a copy without LoRA and quantisation": {
        k: v.to(torch.float8_e4m3fn) if k == "mlp.layers.0.weight" else v for k, v in case_state("tiny").items()
    },
}


@pytest.mark.parametrize("words", SPOILED)
def test_incomplete_or_foreign_image_reward_is_refused(tmp_path: Path, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        load_image_reward(rewrite(tmp_path, SPOILED[words]))


@pytest.mark.parametrize(
    "stated", ["[]", '{"image_reward": [["vision_heads", 3]]}', '{"image_reward": {"text_heads": true}}']
)
def test_heads_must_be_whole_numbers(tmp_path: Path, stated: str) -> None:
    """Catches: true taken for one head, by which every score is another."""
    path = write_case(tmp_path, "tiny", ".safetensors")
    save_file(case_state("tiny"), path, metadata={"config": stated})
    with pytest.raises(BadInput, match="write whole numbers"):
        load_image_reward(path)


def test_vocabulary_of_another_model_is_refused(weights: Path, tmp_path: Path) -> None:
    """Catches: ids in range that mean other words."""
    other = write_vocabulary(tmp_path / "vocab.txt", cases.vocabulary("tiny")[:-3])
    with pytest.raises(BadInput, match=r"has \d+ tokens, and tiny\.safetensors needs \d+"):
        load_image_reward(weights, vocabulary=other)


# --- parity: the golden scores come from the package itself, through PIL and its own tokenizer (`tests/golden`)

TOLERANCE = 2e-5
GOLDEN = json.loads((Path(cases.__file__).with_name("image_reward.json")).read_text(encoding="utf-8"))["cases"]


@cache
def frames(block: str) -> Tensor:
    return torch.from_numpy(cases.block_frames(block))[None]


def golden_scores(case: str, block: str) -> Tensor:
    return torch.tensor(GOLDEN[case]["scores"][block])


def worst_error(scorer: ImageRewardScorer, case: str) -> float:
    """Return the largest difference from the golden; the prompts take the blocks in turn."""
    errors = []
    for number, (prompt, block) in enumerate(zip(cases.PROMPTS, cycle(cases.BLOCKS), strict=False)):
        expected = golden_scores(case, block)[number]
        errors.append((scorer.score(frames(block), prompt) - expected).abs().max().item())
    return max(errors)


@pytest.mark.parametrize("case, suffix", [("tiny", ".pt"), ("narrow", ".safetensors")])
def test_scores_equal_the_original_packages(case: str, suffix: str, tmp_path: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in case_state(case).items()}
    assert cases.fingerprint(arrays) == GOLDEN[case]["weights"], "made with other weights"
    assert worst_error(load_image_reward(write_case(tmp_path, case, suffix)), case) < TOLERANCE


def test_token_ids_equal_the_original_tokenizers(scorer: ImageRewardScorer) -> None:
    for prompt, expected in zip(cases.PROMPTS, GOLDEN["tiny"]["ids"], strict=True):
        ids, mask = scorer.tokenizer.encode(prompt)
        assert ids.shape == mask.shape == (1, 35)
        assert ids[mask.bool()].tolist() == expected


def test_float16_stays_near_the_original_package(weights: Path) -> None:
    """0.02 is a twentieth of the spread over prompts; bfloat16, refused, misses it."""
    assert worst_error(load_image_reward(weights, dtype=torch.float16), "tiny") < 0.02


@pytest.mark.exhaustive
def test_full_size_scores_equal_the_original_packages(tmp_path: Path) -> None:
    path = write_case(tmp_path, "full", ".pt")
    assert worst_error(load_image_reward(path), "full") < TOLERANCE
    path.unlink()


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
    """Catches: overshoot at edges, beyond 0..255, that is cut once and not after each pass."""
    noise = torch.rand(1, 3, 120, 200, generator=torch.Generator().manual_seed(3)).round()
    assert torch.equal(preprocess.resize(preprocess.to_bytes(noise), 48, 80), pillow(noise, 48, 80))


class Kernels(TorchDispatchMode):
    """Count the operations that compute something, and so are kernels on a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_resizing_takes_few_kernels() -> None:
    """Catches a loop over the taps."""
    frames = torch.rand(1, 3, 480, 832)
    preprocess.preprocess(frames, 224)  # makes what is kept between calls
    with Kernels() as kernels:
        preprocess.preprocess(frames, 224)
    assert 0 < kernels.count <= 24


def test_quantising_truncates_and_clips_in_float32() -> None:
    """Catches: 255 * x in float16, which rounds values near 255 up."""
    values = torch.tensor([-0.5, 0.0, 0.999 / 255, 1 / 255, 254.99 / 255, 1.0, 3.0, torch.nan, torch.inf])
    assert preprocess.to_bytes(values).tolist() == [0, 0, 0, 1, 254, 255, 255, 0, 255]
    assert preprocess.to_bytes(torch.arange(256) / 255).tolist() == list(range(256))
    assert preprocess.to_bytes(torch.tensor([0.9995], dtype=torch.float16)).item() == 254


def test_centre_crop_does_not_see_the_sides() -> None:
    image = torch.zeros(1, 3, 48, 96)
    image[..., :20] = 1
    image[..., 76:] = 1
    assert preprocess.cut_squares(preprocess.to_bytes(image), 48).max() == 0


# --- the prompt

TOKENS = vocabulary("tiny")


@pytest.fixture
def tokenizer(tmp_path: Path) -> PromptTokenizer:
    return load_prompt_tokenizer(write_vocabulary(tmp_path / "vocab.txt", TOKENS))


def test_prompt_is_read_to_its_33rd_piece(tokenizer: PromptTokenizer) -> None:
    prompt = " ".join(["Fóx"] * 31 + ["slowly", "red"])
    assert tokenizer.reads(prompt) == prompt.removesuffix(" red")
    assert tokenizer.reads(prompt.removesuffix(" red")) == prompt.removesuffix(" red")
    ids, mask = tokenizer.encode(prompt)
    assert mask.sum() == 35
    assert ids[0, -1] == TOKENS.index("[SEP]")


def test_vocabulary_may_have_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(TOKENS).encode() + b"\r\n")
    tokenizer = load_prompt_tokenizer(tmp_path / "vocab.txt")
    assert tokenizer.size == len(TOKENS) + 2
    assert tokenizer.encode("fox")[0][0, 1] == TOKENS.index("fox")


def test_token_may_hold_another_line_break(tmp_path: Path) -> None:
    """Catches: a vocabulary split there too, so that all later tokens have other ids."""
    tokens = ["\u2028\x85", *TOKENS]
    tokenizer = load_prompt_tokenizer(write_vocabulary(tmp_path / "vocab.txt", tokens))
    assert tokenizer.size == len(tokens) + 2
    assert tokenizer.encode("fox")[0][0, 1] == tokens.index("fox")


@pytest.mark.parametrize("token", ["[CLS]", "[SEP]", "[PAD]", "[UNK]"])
def test_vocabulary_without_a_needed_token_is_refused(token: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.txt", [t for t in TOKENS if t != token])
    with pytest.raises(BadInput, match=rf"lacks \{token[:-1]}\]; "):
        load_prompt_tokenizer(path)


@pytest.mark.parametrize("content", [b"<!DOCTYPE html>\n<html></html>", b"", b" \r\n\n"])
def test_file_that_is_no_vocabulary_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(BadInput, match=r"^vocab\.txt is no.*; take "):
        load_prompt_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("place", VOCABULARY_PLACES)
def test_vocabulary_is_found_beside_weights_or_stated(place: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / place, TOKENS)
    assert find_vocabulary(tmp_path / "ImageReward.pt") == path
    assert find_vocabulary(Path("elsewhere") / "ImageReward.pt", tmp_path) == path
    assert find_vocabulary(Path("elsewhere") / "ImageReward.pt", path) == path


def test_missing_vocabulary_is_refused_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        find_vocabulary(tmp_path / "ImageReward.pt")
    for part in (str(tmp_path), "google-bert/bert-base-uncased"):
        assert part in str(refusal.value)


def test_stated_vocabulary_that_is_missing_is_refused(tmp_path: Path) -> None:
    """Catches: the one beside the weights, taken in its place."""
    write_vocabulary(tmp_path / "vocab.txt", TOKENS)
    with pytest.raises(BadInput, match="is not in"):
        find_vocabulary(tmp_path / "ImageReward.pt", tmp_path / "typo.txt")


def test_stated_vocabulary_may_have_any_name(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "words" / "words.txt", TOKENS)
    assert find_vocabulary(tmp_path / "ImageReward.pt", path) == path
