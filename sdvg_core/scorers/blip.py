"""ImageReward's network on transformers' BLIP classes, with sizes inferred from a checkpoint.

A ViT reads the image, a BERT reads the prompt with cross-attention to the image, and a linear head maps its first
token to the reward.
Source: ImageReward (arXiv 2304.05977), with the constants of its published code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..devices.device import dtype_name
from ..errors import BadInput
from ..files.small_files import parse_json
from ..weights.names import renamer
from ..weights.weight_file import WeightFile, check_complete, count_layers, layer_numbers, shape_of

# Statistics of the head's output over the training set, used to standardise rewards.
REWARD_MEAN = 0.16717362830052426
REWARD_STD = 1.0333394966054072

VISION_EPS = 1e-6
TEXT_EPS = 1e-12

# Prefixes in the checkpoint.
VISION = "blip.visual_encoder."
TEXT_PREFIX = "blip.text_encoder."
HEAD = "mlp.layers."
checkpoint_name = renamer(
    {
        "^.vision": VISION.removesuffix("."),
        "^.text": TEXT_PREFIX.removesuffix("."),
        "^.head": HEAD.removesuffix("."),
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding": "pos_embed",
        "embeddings.patch_embedding": "patch_embed.proj",
        "encoder.layers": "blocks",
        "layer_norm1": "norm1",
        "layer_norm2": "norm2",
        "self_attn.projection": "attn.proj",
        "self_attn": "attn",
        "post_layernorm": "norm",
    }
)
"""Return the checkpoint's name of a weight of `RewardModel`; transformers' vision tower has other names."""

HEAD_SIZE = 64
MAX_TOKENS = 35
"""Tokens of a prompt, with [CLS] and [SEP]."""
REWARD_KIND = "ImageReward"
REWARD_ADVICE = "fetch it again, or use the checkpoint as published"
_shape = partial(shape_of, what=REWARD_KIND, advice=REWARD_ADVICE)
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRewardConfig:
    """Sizes of the network; the defaults are the published checkpoint's.

    `head`: index in the file and output width of each linear layer. Raises `BadInput` for invalid sizes.
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
                key = f'config -> image_reward -> "{tower}_heads"'
                raise BadInput(f"{heads} {tower} heads do not divide {width}; correct {key} in the metadata")
        if self.image_size < 1 or not self.head or self.head[-1][1] != 1 or self.positions < MAX_TOKENS:
            sizes = f"an image of {self.image_size} pixels, {self.positions} tokens and the head {self.head!r:.60}"
            raise BadInput(f"no ImageReward has {sizes}; {REWARD_ADVICE}")


def scorer_parameters(config: ImageRewardConfig) -> tuple[int, int]:
    """Return the number of parameters of both towers together, and of the head."""
    v = config.vision_width
    v_mlp = config.vision_mlp
    patch = config.patch_size
    t = config.text_width
    t_mlp = config.text_mlp
    vision_layer = 4 * v * v + 2 * v * v_mlp + 9 * v + v_mlp
    text_layer = 6 * t * t + 2 * t * v + 2 * t * t_mlp + 15 * t + t_mlp
    vision = v * ((config.image_size // patch) ** 2 + 3 * patch**2 + 5) + config.vision_layers * vision_layer
    text = t * (config.vocabulary + config.positions + 2) + config.text_layers * text_layer
    widths = (t, *(width for _, width in config.head))
    return vision + text, sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


class RewardModel(nn.Module):
    """Computes the reward of images for a prompt. The head is always float32."""

    def __init__(self, vision: nn.Module, text: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.vision = vision
        self.text = text
        self.head = head

    def forward(self, ids: Tensor, mask: Tensor, squares: Tensor) -> Tensor:
        """Return float32 rewards `(b,)`. `ids`, `mask`: `(1, l)`, for all; `squares`: `b c h w`, normalised."""
        images = self.vision(pixel_values=squares, return_dict=True).last_hidden_state
        batch = len(images)
        # With is_decoder, the prompt would be read causally.
        read = self.text(
            input_ids=ids.expand(batch, -1),
            attention_mask=_text_mask(mask.expand(batch, -1), images.dtype),
            encoder_hidden_states=images,
            is_decoder=False,
            return_dict=True,
        ).last_hidden_state
        rewards: Tensor = self.head(read[:, 0].float())
        return (rewards[:, 0] - REWARD_MEAN) / REWARD_STD


def _text_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask `b l` in the form that the text tower uses without waiting for the device.

    transformers 5 reads the values of a mask with two axes; one with four is added to the attention as it is.
    """
    from transformers.models.blip import modeling_blip_text

    if not hasattr(modeling_blip_text, "create_bidirectional_mask"):
        return mask
    return (1 - mask)[:, None, None].to(dtype) * torch.finfo(dtype).min


def build_model(
    file: WeightFile, config: ImageRewardConfig, device: torch.device, dtype: torch.dtype
) -> RewardModel:
    """Build the network, and load the file's weights one by one. `dtype`: of both towers."""
    model = _empty_model(config)
    weights = {}
    for name, stored in {name: checkpoint_name(name) for name in model.state_dict()}.items():
        kept = torch.float32 if name.startswith("head.") else dtype
        weights[name] = file[stored].to(device, kept)
    model.load_state_dict(weights, assign=True)
    # The one buffer that is not in checkpoints; on the meta device it is empty.
    text: Any = model.text
    text.embeddings.position_ids = torch.arange(config.positions, device=device)[None]
    assert not any(tensor.is_meta for tensor in (*text.parameters(), *text.buffers()))
    return model.requires_grad_(False).train(False)


def used_shapes(config: ImageRewardConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that the score depends on, by names in a checkpoint."""
    return {checkpoint_name(name): tuple(w.shape) for name, w in _empty_model(config).state_dict().items()}


# transformers is imported only here: it takes seconds, and its BLIP needs torchvision, which may be broken.
def _empty_model(config: ImageRewardConfig) -> RewardModel:
    from transformers import BlipTextConfig, BlipVisionConfig, BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel  # torch 2.6 cannot import it below

    of_images = BlipVisionConfig(
        hidden_size=config.vision_width,
        intermediate_size=config.vision_mlp,
        num_hidden_layers=config.vision_layers,
        num_attention_heads=config.vision_heads,
        image_size=config.image_size,
        patch_size=config.patch_size,
        hidden_act="gelu",
        layer_norm_eps=VISION_EPS,
        attn_implementation="eager",
    )
    of_text = BlipTextConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.text_width,
        encoder_hidden_size=config.vision_width,
        intermediate_size=config.text_mlp,
        num_hidden_layers=config.text_layers,
        num_attention_heads=config.text_heads,
        max_position_embeddings=config.positions,
        hidden_act="gelu",
        layer_norm_eps=TEXT_EPS,
        is_decoder=True,  # the layers get cross-attention
        use_cache=False,
        attn_implementation="eager",
        # Not used, and the defaults may be outside a small vocabulary.
        bos_token_id=None,
        eos_token_id=None,
        sep_token_id=None,
    )
    with torch.device("meta"):
        # The original has dropout between these layers.
        head = nn.Sequential()
        inputs = config.text_width
        for number, outputs in config.head:
            head.add_module(str(number), nn.Linear(inputs, outputs))
            inputs = outputs
        return RewardModel(BlipVisionModel(of_images), BlipTextModel(of_text, add_pooling_layer=False), head)


def read_config(file: WeightFile) -> ImageRewardConfig:
    """Infer the sizes from the shapes of tensors, and check that all weights are there.

    Heads are `width / 64`, unless stated in the safetensors metadata (`config`, JSON, `image_reward`:
    `vision_heads`, `text_heads`). Raises `BadInput` for a file that is not a whole ImageReward.
    """
    tokens, vision_width = _shape(file, f"{VISION}pos_embed", 3)[1:]
    patch = _shape(file, f"{VISION}patch_embed.proj.weight", 4)[-1]
    vocabulary, text_width = _shape(file, f"{TEXT_PREFIX}embeddings.word_embeddings.weight", 2)
    heads = _heads_in_metadata(file)
    config = ImageRewardConfig(
        image_size=math.isqrt(max(tokens - 1, 0)) * patch,
        patch_size=patch,
        vision_width=vision_width,
        vision_layers=count_layers(file, f"{VISION}blocks"),
        vision_mlp=_shape(file, f"{VISION}blocks.0.mlp.fc1.weight", 2)[0],
        vision_heads=heads.get("vision_heads", vision_width // HEAD_SIZE),
        vocabulary=vocabulary,
        positions=_shape(file, f"{TEXT_PREFIX}embeddings.position_embeddings.weight", 2)[0],
        text_width=text_width,
        text_layers=count_layers(file, f"{TEXT_PREFIX}encoder.layer"),
        text_mlp=_shape(file, f"{TEXT_PREFIX}encoder.layer.0.intermediate.dense.weight", 2)[0],
        text_heads=heads.get("text_heads", text_width // HEAD_SIZE),
        head=tuple(
            (n, _shape(file, f"{HEAD}{n}.weight", 2)[0]) for n in layer_numbers(file, HEAD.removesuffix("."))
        ),
    )
    _check_every_weight(file, config)
    return config


def _check_every_weight(file: WeightFile, config: ImageRewardConfig) -> None:
    published = ImageRewardConfig()
    for tower, prefix in (("vision", f"{VISION}blocks."), ("text", f"{TEXT_PREFIX}encoder.layer.")):
        layers = getattr(config, f"{tower}_layers")
        wanted = getattr(published, f"{tower}_layers")
        width = getattr(config, f"{tower}_width")
        if width == getattr(published, f"{tower}_width") and layers != wanted:
            # It would load as a smaller model.
            raise BadInput(f"{file.path.name} has {layers} of {wanted} layers {prefix}*; fetch it again")
    expected = used_shapes(config)
    check_complete(file, expected, REWARD_KIND, REWARD_ADVICE, extra=None)
    unread = [name for name in expected if file.info[name].dtype not in READABLE]
    unread += [name for name in file if "lora" in name.lower()]
    if unread:
        kind = dtype_name(file.info[unread[0]].dtype)
        raise BadInput(f"{unread[0]} in {file.path.name} is {kind}; use a copy without LoRA and quantisation")


def _heads_in_metadata(file: WeightFile) -> Mapping[str, int]:
    try:
        config = parse_json(file.metadata.get("config", "{}")).get("image_reward", {})
        heads = {name: number for name, number in config.items() if name in ("vision_heads", "text_heads")}
    except (ValueError, AttributeError, TypeError) as error:
        fault = f"the metadata config of {file.path.name} states no heads ({error})"
        raise BadInput(f"{fault}; write whole numbers") from error
    if any(type(number) is not int for number in heads.values()):
        raise BadInput(f"the heads in the metadata of {file.path.name} are {heads!r:.60}; write whole numbers")
    return heads
