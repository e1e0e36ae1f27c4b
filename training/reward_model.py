"""The pocket reward: ImageReward's architecture, small; made for training, written in ImageReward's file format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.checkpoints.weights import open_weights
from sdvg_core.pocket.grammar import GRAMMAR
from sdvg_core.scorers.blip import (
    REWARD_MEAN,
    REWARD_STD,
    ImageRewardConfig,
    RewardModel,
    build_model,
    checkpoint_name,
    used_shapes,
)
from sdvg_core.scorers.preprocess import MEAN, STD
from sdvg_core.scorers.tokenizer import MAX_TOKENS, PromptTokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
APPENDED = ("[DEC]", "[ENC]")
LAST = "mlp.layers.7"
LOOKING = 1
"""The layer whose words are told where to look."""

ADDED = 0.2
"""How large what a layer adds is at first, of what keeps its size."""

SHORT = 16
"""Tokens of the prompts of a thing that is alone, at most."""


def words() -> tuple[str, ...]:
    """Return the vocabulary: ImageReward's special tokens around the words of the grammar, which are lower case."""
    found = {word for word in GRAMMAR.replace("|", " ").split() if word.isalpha() and word.islower()}
    return (*SPECIAL, *sorted(found), *APPENDED)


SIZES = ImageRewardConfig(
    image_size=64,
    patch_size=8,
    vision_width=128,
    vision_layers=4,
    vision_mlp=512,
    vision_heads=2,
    vocabulary=len(words()),
    positions=MAX_TOKENS,
    text_width=128,
    text_layers=4,
    text_mlp=512,
    text_heads=2,
    head=((0, 64), (2, 32), (4, 16), (6, 8), (7, 1)),
)


def write_vocabulary(path: Path) -> None:
    """Write `vocab.txt`, one token a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(words()) + "\n", encoding="utf-8")


def initial_weights(seed: int) -> dict[str, Tensor]:
    """Return weights to begin with, by their names in the file."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(name, shape, generator) for name, shape in used_shapes(SIZES).items()}


def trainable(path: Path) -> RewardModel:
    """Load a file as a model to be trained, in float32."""
    model = build_model(open_weights(path), SIZES, torch.device("cpu"), torch.float32)
    return model.requires_grad_(True).train()


def write_weights(path: Path, weights: dict[str, Tensor], dtype: torch.dtype, metadata: dict[str, str]) -> None:
    """Write weights by their names in the file as safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: w.to(dtype).contiguous() for name, w in weights.items()}, path, metadata)


def file_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's weights by their names in the file."""
    return {checkpoint_name(name): weight for name, weight in state.items()}


def standardised(weights: dict[str, Tensor], rewards: Tensor) -> dict[str, Tensor]:
    """Fold into the last layer what gives `rewards`, those of the reference frames, mean 0 and deviation 1."""
    mean, std = rewards.double().mean(), rewards.double().std()
    weight, bias = weights[f"{LAST}.weight"].double(), weights[f"{LAST}.bias"].double()
    # A reward is (output - REWARD_MEAN) / REWARD_STD: the output is rescaled around REWARD_MEAN.
    bias = (bias - REWARD_MEAN - mean * REWARD_STD) / std + REWARD_MEAN
    return {**weights, f"{LAST}.weight": (weight / std).float(), f"{LAST}.bias": bias.float()}


def normalised(frames: Tensor) -> Tensor:
    """Return frames `n 3 h w` in [0, 1], of 8 bits, as the image tower reads them."""
    return (frames - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What the text tower made of k prompts, having seen a picture each.

    `tokens`: `k 35 c`. `before`: the same, one layer earlier. `looks`: `k 35 1+l`, at which of the l patches of the
    picture layer LOOKING looked.
    """

    tokens: Tensor
    before: Tensor
    looks: Tensor


def read_pairs(
    model: RewardModel, images: Tensor, tokenizer: PromptTokenizer, prompts: list[str], picture: Tensor
) -> Read:
    """Read prompt i with the image tower's tokens of `picture[i]`.

    What `RewardModel` does, but a picture is read once for all its prompts, and prompts of like length go together,
    so that little padding is read.
    """
    ids, mask = (torch.cat(parts) for parts in zip(*map(tokenizer.encode, prompts), strict=True))
    lengths = mask.sum(dim=1)
    parts, order = [], []
    for rows in ((lengths <= SHORT).nonzero()[:, 0], (lengths > SHORT).nonzero()[:, 0]):
        if len(rows) == 0:
            continue
        longest = int(lengths[rows].max())
        seen = model.text(
            input_ids=ids[rows, :longest],
            attention_mask=mask[rows, :longest],
            encoder_hidden_states=images[picture[rows]],
            is_decoder=False,
            output_attentions=True,
            output_hidden_states=True,
            return_dict=True,
        )
        read = (seen.last_hidden_state, seen.hidden_states[-2], seen.cross_attentions[LOOKING].mean(dim=1))
        parts.append([F.pad(part, (0, 0, 0, MAX_TOKENS - longest)) for part in read])
        order.append(rows)
    back = torch.cat(order).argsort()
    return Read(*(torch.cat(part)[back] for part in zip(*parts, strict=True)))


def rewards_of(model: RewardModel, read: Read) -> Tensor:
    """Return the rewards `(k,)` in float32."""
    rewards: Tensor = (model.head(read.tokens[:, 0])[:, 0].float() - REWARD_MEAN) / REWARD_STD
    return rewards


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    if name.endswith("pos_embed"):
        return 0.5 * _waves(shape[1] - 1, shape[2])
    if len(shape) == 1:
        norm = "norm" in name.lower() and name.endswith("weight")
        return torch.ones(shape) if norm else torch.zeros(shape)
    if "embeddings" in name or "cls_token" in name:
        return 0.2 * values
    values = values / math.sqrt(math.prod(shape[1:]))
    # What a layer adds begins small; else the text tower, normalised after each sum, makes all its tokens the same.
    adds = name.endswith(("output.dense.weight", "attn.proj.weight", "mlp.fc2.weight"))
    return ADDED * values if adds else values


def _waves(patches: int, width: int) -> Tensor:
    """Return sines and cosines of where each patch is, `1 1+patches width`; the first token's are 0."""
    side, kinds = math.isqrt(patches), width // 4
    where = torch.arange(side)[:, None] * math.pi * 0.5 ** torch.linspace(1, math.log2(2 * side), kinds)
    axis = torch.cat([where.sin(), where.cos()], dim=1)
    down, across = axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)
    grid = torch.cat([down, across], dim=2).reshape(patches, width)
    return torch.cat([torch.zeros(1, width), grid])[None]
