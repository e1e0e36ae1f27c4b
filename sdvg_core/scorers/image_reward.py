"""ImageReward as a scorer: how well a pixel frame matches the prompt, and how good it looks.

Uses the published weights without the `image-reward` package, with the same scores (tests/golden).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.weights import open_weights
from ..devices.device import begin_upload, dtype_name
from ..errors import BadInput
from ..scorers import Crop
from .blip import ImageRewardConfig, RewardModel, build_model, read_config
from .preprocess import preprocess
from .tokenizer import MAX_TOKENS, SOURCE, PromptTokenizer, find_vocabulary, load_tokenizer

TokensOn = Callable[[PromptTokenizer, str, torch.device], tuple[Tensor, ...]]
NOT_ITS_OWN = "is not ImageReward's own: recalibrate tau for it."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageRewardScorer:
    """ImageReward as a `Scorer`.

    `file`: the name of the weight file. `model` may be moved between devices; scoring follows it. `tokens_on`: a
    prompt's ids and mask on a device; only the newest prompt's are kept, as tokens are copied once a prompt.
    """

    file: str
    model: RewardModel
    tokenizer: PromptTokenizer
    config: ImageRewardConfig
    dtype: torch.dtype
    crop: Crop
    tokens_on: TokensOn = field(default_factory=lambda: lru_cache(1)(_tokens_on))

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return float32 scores `(f,)` on the CPU for frames `b f c h w` in [0, 1] with b = 1, in one batch.

        A frame with a pixel that is not finite scores NaN. With tiles, a frame gets the score of its worst tile.
        """
        clip = frames[0].to(self.device)
        squares = preprocess(clip, self.config.image_size, self.crop)
        ids, mask = self.tokens_on(self.tokenizer, prompt, self.device)
        rewards: Tensor = self.model(ids, mask, squares.flatten(0, 1)).unflatten(0, squares.shape[:2])
        # The crop may have cut the broken pixels away, and clamping hides infinite ones.
        broken = ~clip.isfinite().flatten(1).all(dim=1)
        return rewards.amin(dim=1).masked_fill(broken, torch.nan).cpu()

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return a warning if the scorer does not read the whole prompt."""
        read = self.tokenizer.reads(prompt)
        if read == prompt:
            return ()
        # Without the prompt's words: notes go into files that people pass on.
        return (
            f"ImageReward reads only the first {MAX_TOKENS} tokens of this prompt, {len(read)} of its "
            f"{len(prompt)} characters.",
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings for the report. Notes on a prompt are in `prompt_notes`."""
        return {
            "name": "ImageReward",
            "file": self.file,
            "dtype": dtype_name(self.dtype),
            "device": str(self.device),
            "crop": self.crop,
            "image_size": self.config.image_size,
            "prompt_tokens": MAX_TOKENS,
            "notes": () if self.crop == "center" else (f"The crop {self.crop!r} {NOT_ITS_OWN}",),
        }


def _tokens_on(tokenizer: PromptTokenizer, prompt: str, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(begin_upload(tokens, device) for tokens in tokenizer.encode(prompt))


def load_image_reward(
    path: str | Path,
    *,
    vocabulary: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    crop: Crop = "center",
) -> ImageRewardScorer:
    """Load ImageReward from `ImageReward.pt` or a safetensors copy.

    `vocabulary`: bert-base-uncased's `vocab.txt` or its folder; by default it is searched for next to the weights.
    `dtype`: float32 or float16, for the towers. `crop`: `center` is the reference; see `preprocess`.
    Raises `BadInput` if the file is not a whole ImageReward, or the vocabulary not the right one.
    """
    file = open_weights(path)
    config = read_config(file)
    tokenizer = load_tokenizer(find_vocabulary(file.path, vocabulary))
    if tokenizer.size != config.vocabulary:
        sizes = f"{tokenizer.size - 2} tokens, and {file.path.name} needs {config.vocabulary - 2}"
        raise BadInput(f"the vocabulary has {sizes}; take {SOURCE}")
    return ImageRewardScorer(
        file=file.path.name,
        model=build_model(file, config, torch.device(device), dtype),
        tokenizer=tokenizer,
        config=config,
        dtype=dtype,
        crop=crop,
    )
