"""Read the sizes of an ImageReward checkpoint off its tensors, and refuse files that hold something else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..checkpoints.weights import WeightFile, check_complete, count_layers, layer_numbers, shape_of
from ..devices.device import dtype_name
from ..errors import BadInput
from ..files.small_files import parse_json
from .blip import HEAD, TEXT, VISION, Shape, used_shapes
from .config import ImageRewardConfig

HEAD_SIZE = 64
WHAT, ADVICE = "ImageReward", "fetch it again, or use the checkpoint as published"
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read_config(file: WeightFile) -> ImageRewardConfig:
    """Read the sizes off the tensors' shapes, and check that every weight the score needs is there.

    Heads are `width / 64`, unless the safetensors metadata `config` is JSON whose member `image_reward` has
    `vision_heads` and `text_heads`. Raises `BadInput` for a file that is not a whole ImageReward.
    """
    _require_image_reward(file)
    tokens, vision_width = _shape(file, f"{VISION}pos_embed", 3)[1:]
    patch = _shape(file, f"{VISION}patch_embed.proj.weight", 4)[-1]
    vocabulary, text_width = _shape(file, f"{TEXT}embeddings.word_embeddings.weight", 2)
    heads = _heads_in_metadata(file)
    config = ImageRewardConfig(
        image_size=math.isqrt(max(tokens - 1, 0)) * patch,
        patch_size=patch,
        vision_width=vision_width,
        vision_layers=count_layers(file, f"{VISION}blocks"),
        vision_mlp=_shape(file, f"{VISION}blocks.0.mlp.fc1.weight", 2)[0],
        vision_heads=heads.get("vision_heads", vision_width // HEAD_SIZE),
        vocabulary=vocabulary,
        positions=_shape(file, f"{TEXT}embeddings.position_embeddings.weight", 2)[0],
        text_width=text_width,
        text_layers=count_layers(file, f"{TEXT}encoder.layer"),
        text_mlp=_shape(file, f"{TEXT}encoder.layer.0.intermediate.dense.weight", 2)[0],
        text_heads=heads.get("text_heads", text_width // HEAD_SIZE),
        head=tuple(
            (n, _shape(file, f"{HEAD}{n}.weight", 2)[0]) for n in layer_numbers(file, HEAD.removesuffix("."))
        ),
    )
    _require_every_layer(file, config)
    _check_every_weight(file, config)
    return config


def _require_every_layer(file: WeightFile, config: ImageRewardConfig) -> None:
    """Refuse a tower of the published width with other layers: it would load as a smaller model."""
    published = ImageRewardConfig()
    for tower, prefix in (("vision", f"{VISION}blocks."), ("text", f"{TEXT}encoder.layer.")):
        layers, wanted = getattr(config, f"{tower}_layers"), getattr(published, f"{tower}_layers")
        width = getattr(config, f"{tower}_width")
        if width == getattr(published, f"{tower}_width") and layers != wanted:
            raise BadInput(f"{file.path.name} has {layers} of {wanted} layers {prefix}*; fetch it again")


def _require_image_reward(file: WeightFile) -> None:
    parts = (VISION, TEXT, HEAD)
    if not any(name.startswith(part) for name in file for part in parts):
        found = ", ".join(sorted(file)[:2]) or "no tensors"
        what = f"{file.path.name} is no ImageReward, but holds {found}"
        raise BadInput(f"{what}; give ImageReward.pt or a safetensors copy")


def _check_every_weight(file: WeightFile, config: ImageRewardConfig) -> None:
    expected = used_shapes(config)
    check_complete(file, expected, WHAT, ADVICE, extra=None)
    adapter = next((name for name in file if "lora" in name.lower()), None)
    if adapter:
        raise BadInput(f"{file.path.name} holds a LoRA ({adapter}), which would not be used; {ADVICE}")
    coarse = next((name for name in expected if file.info[name].dtype not in READABLE), None)
    if coarse:
        kind = dtype_name(file.info[coarse].dtype)
        raise BadInput(f"{coarse} in {file.path.name} is {kind}; use a copy that is not quantised")


def _shape(file: WeightFile, name: str, dims: int) -> Shape:
    return shape_of(file, name, dims, WHAT, ADVICE)


def _heads_in_metadata(file: WeightFile) -> Mapping[str, int]:
    text = file.metadata.get("config")
    if text is None:
        return {}
    try:
        content: Any = parse_json(text)
    except ValueError as error:
        raise BadInput(f"the metadata config of {file.path.name} is not JSON ({error}); write it again") from error
    heads = content.get("image_reward", {}) if isinstance(content, dict) else {}
    if not isinstance(heads, dict) or not all(type(heads.get(k, 1)) is int for k in ("vision_heads", "text_heads")):
        raise BadInput(f"the heads in the metadata of {file.path.name} are {heads!r}; write whole numbers")
    return heads
