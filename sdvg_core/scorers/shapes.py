"""The sizes of an ImageReward checkpoint: its tensors from the sizes, and the sizes from its tensors.

Knows the names in `ImageReward.pt`; knows nothing of the modules that run it. One code path serves the
published checkpoint and any small one of the same layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..checkpoints.weights import WeightFile, is_layer_number, is_shape_of_weight
from ..errors import BadInput
from ..files.small_files import parse_json
from .tokenizer import MAX_TOKENS

Shape = tuple[int, ...]

VISION = "blip.visual_encoder."
TEXT = "blip.text_encoder."
HEAD = "mlp.layers."
HEAD_SIZE = 64
# In the checkpoint, but no part of the score: BLIP's contrastive projections, and a buffer of 0, 1, 2...
UNUSED = ("blip.vision_proj.", "blip.text_proj.", f"{TEXT}embeddings.position_ids")
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRewardConfig:
    """Sizes of the three parts; the defaults are those of the published checkpoint.

    `head`: the linear layers of the reward head, each as its number in the file and its output width.
    """

    image_size: int = 224
    patch_size: int = 16
    vision_width: int = 1024
    vision_layers: int = 24
    vision_mlp: int = 4096
    vision_heads: int = 16
    vocabulary: int = 30524
    positions: int = 512
    text_width: int = 768
    text_layers: int = 12
    text_mlp: int = 3072
    text_heads: int = 12
    head: tuple[tuple[int, int], ...] = ((0, 1024), (2, 128), (4, 64), (6, 16), (7, 1))

    def __post_init__(self) -> None:
        for tower, width, heads in (
            ("vision", self.vision_width, self.vision_heads),
            ("text", self.text_width, self.text_heads),
        ):
            if heads < 1 or width % heads:
                raise BadInput(
                    f"expected a number of {tower} heads that divides the width {width}, but got {heads}; "
                    f'put the right one into the metadata, config -> image_reward -> "{tower}_heads"'
                )
        if self.image_size < 1 or not self.head or self.head[-1][1] != 1:
            raise BadInput(
                f"expected an image of pixels and a head that ends in one number, but got {self.image_size} pixels "
                f"and {self.head[-1][1] if self.head else 'none'}; use the checkpoint as published"
            )
        if self.positions < MAX_TOKENS:
            raise BadInput(
                f"expected text positions for {MAX_TOKENS} tokens, but there are {self.positions}; "
                "use the checkpoint as published"
            )


def image_reward_shapes(config: ImageRewardConfig | None = None) -> dict[str, Shape]:
    """Return the name and shape of every weight in a checkpoint; by default, in the published one."""
    config = config or ImageRewardConfig()
    return {
        **_vision_shapes(config),
        **_text_shapes(config),
        **_linear("blip.vision_proj", 256, config.vision_width),
        **_linear("blip.text_proj", 256, config.text_width),
        **_head_shapes(config),
    }


def used_shapes(config: ImageRewardConfig) -> dict[str, Shape]:
    """Return the name and shape of every weight the score depends on."""
    return {name: shape for name, shape in image_reward_shapes(config).items() if not name.startswith(UNUSED)}


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _vision_shapes(config: ImageRewardConfig) -> dict[str, Shape]:
    width, patch = config.vision_width, config.patch_size
    patches = (config.image_size // patch) ** 2
    shapes: dict[str, Shape] = {
        f"{VISION}cls_token": (1, 1, width),
        f"{VISION}pos_embed": (1, 1 + patches, width),
        f"{VISION}patch_embed.proj.weight": (width, 3, patch, patch),
        f"{VISION}patch_embed.proj.bias": (width,),
    }
    for layer in range(config.vision_layers):
        block = f"{VISION}blocks.{layer}."
        shapes |= _norm(f"{block}norm1", width) | _norm(f"{block}norm2", width)
        shapes |= _linear(f"{block}attn.qkv", 3 * width, width) | _linear(f"{block}attn.proj", width, width)
        shapes |= _linear(f"{block}mlp.fc1", config.vision_mlp, width)
        shapes |= _linear(f"{block}mlp.fc2", width, config.vision_mlp)
    return shapes | _norm(f"{VISION}norm", width)


def _text_shapes(config: ImageRewardConfig) -> dict[str, Shape]:
    width = config.text_width
    shapes: dict[str, Shape] = {
        f"{TEXT}embeddings.word_embeddings.weight": (config.vocabulary, width),
        f"{TEXT}embeddings.position_embeddings.weight": (config.positions, width),
        **_norm(f"{TEXT}embeddings.LayerNorm", width),
    }
    for layer in range(config.text_layers):
        block = f"{TEXT}encoder.layer.{layer}."
        shapes |= _attention_shapes(f"{block}attention", width, width)
        shapes |= _attention_shapes(f"{block}crossattention", width, config.vision_width)
        shapes |= _linear(f"{block}intermediate.dense", config.text_mlp, width)
        shapes |= _linear(f"{block}output.dense", width, config.text_mlp)
        shapes |= _norm(f"{block}output.LayerNorm", width)
    return shapes


def _attention_shapes(name: str, width: int, source_width: int) -> dict[str, Shape]:
    return {
        **_linear(f"{name}.self.query", width, width),
        **_linear(f"{name}.self.key", width, source_width),
        **_linear(f"{name}.self.value", width, source_width),
        **_linear(f"{name}.output.dense", width, width),
        **_norm(f"{name}.output.LayerNorm", width),
    }


def _head_shapes(config: ImageRewardConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    inputs = config.text_width
    for number, outputs in config.head:
        shapes |= _linear(f"{HEAD}{number}", outputs, inputs)
        inputs = outputs
    return shapes


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
        vision_layers=_count(file, f"{VISION}blocks."),
        vision_mlp=_shape(file, f"{VISION}blocks.0.mlp.fc1.weight", 2)[0],
        vision_heads=heads.get("vision_heads", vision_width // HEAD_SIZE),
        vocabulary=vocabulary,
        positions=_shape(file, f"{TEXT}embeddings.position_embeddings.weight", 2)[0],
        text_width=text_width,
        text_layers=_count(file, f"{TEXT}encoder.layer."),
        text_mlp=_shape(file, f"{TEXT}encoder.layer.0.intermediate.dense.weight", 2)[0],
        text_heads=heads.get("text_heads", text_width // HEAD_SIZE),
        head=tuple((n, _shape(file, f"{HEAD}{n}.weight", 2)[0]) for n in _numbers(file, HEAD)),
    )
    _require_every_weight(file, config)
    return config


def _require_image_reward(file: WeightFile) -> None:
    parts = (VISION, TEXT, HEAD)
    if not any(name.startswith(part) for name in file for part in parts):
        found = ", ".join(sorted(file)[:2]) or "no tensors"
        raise BadInput(
            f"expected ImageReward, with tensors named {VISION}*, {TEXT}* and {HEAD}*, but {file.path.name} "
            f"holds {found}; give ImageReward.pt or a safetensors copy with the same names"
        )


def _require_every_weight(file: WeightFile, config: ImageRewardConfig) -> None:
    expected = used_shapes(config)
    _refuse_missing(file, [name for name in expected if name not in file])
    for name, shape in expected.items():
        found = file.info[name]
        if found.shape != shape:
            raise BadInput(
                f"expected {name} of shape {shape}, as the other tensors imply, but in {file.path.name} it "
                f"has {found.shape}; use the checkpoint as published"
            )
        if found.dtype not in READABLE:
            raise BadInput(
                f"expected float weights, but {name} in {file.path.name} is {_plain(found.dtype)}; "
                "use a copy that is not quantised"
            )


def _refuse_missing(file: WeightFile, missing: list[str]) -> None:
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BadInput(
            f"expected every weight of ImageReward, but {file.path.name} lacks "
            f"{', '.join(missing[:3])}{more}; fetch it again"
        )


def _shape(file: WeightFile, name: str, dims: int) -> Shape:
    if name not in file:
        _refuse_missing(file, [name])
    shape = file.info[name].shape
    if not is_shape_of_weight(shape, dims):
        raise BadInput(
            f"expected {name} with {dims} dimensions, but in {file.path.name} it has the shape {shape}; "
            "use the checkpoint as published"
        )
    return shape


def _numbers(file: WeightFile, prefix: str) -> list[int]:
    found = (name.removeprefix(prefix).partition(".")[0] for name in file if name.startswith(prefix))
    return sorted({int(number) for number in found if is_layer_number(number)})


def _count(file: WeightFile, prefix: str) -> int:
    """Count up to the last one there, so that a gap shows as missing weights."""
    return max(_numbers(file, prefix), default=-1) + 1


def _heads_in_metadata(file: WeightFile) -> Mapping[str, int]:
    text = file.metadata.get("config")
    if text is None:
        return {}
    try:
        content: Any = parse_json(text)
    except ValueError as error:
        raise BadInput(
            f"expected JSON in the metadata config of {file.path.name}, but it does not parse ({error}); "
            "write it again"
        ) from error
    heads = content.get("image_reward", {}) if isinstance(content, dict) else {}
    if not isinstance(heads, dict) or not all(type(heads.get(k, 1)) is int for k in ("vision_heads", "text_heads")):
        raise BadInput(
            f"expected whole numbers vision_heads and text_heads in the metadata of {file.path.name}, but "
            f"found {heads!r}; write it again"
        )
    return heads


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
