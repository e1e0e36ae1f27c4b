"""Models with random weights, created on the device they run on, of the published sizes or tiny.

They use the same trees, codec and scorer as loaded ones: no file, no download, never a second copy. Their output is
noise, but finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sdvg_core.causal_wan.checkpoint import PUBLISHED_DRAFTER, PUBLISHED_TARGET
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.decoders.open import LIGHT_BASE
from sdvg_core.decoders.taehv import Taehv, TaehvCodec
from sdvg_core.decoders.wan_vae import WanCodec, empty_wan_vae
from sdvg_core.devices.compiling import Backend
from sdvg_core.devices.device import DTYPES
from sdvg_core.engine.types import Condition
from sdvg_core.errors import BadInput
from sdvg_core.memory.sizes import PUBLISHED_BASE, PlanRequest
from sdvg_core.pocket.trained_set import WEIGHTS_FOLDER
from sdvg_core.scorers.blip import ImageRewardConfig, build_model, used_shapes
from sdvg_core.scorers.image_reward import ImageRewardScorer, load_prompt_tokenizer
from sdvg_core.settings.execution import VaeLayers
from sdvg_core.settings.load import DecoderName
from sdvg_core.weights.quantized import Fp8Linear, multiply_in_fp8
from sdvg_core.weights.weight_file import WeightFile

Net = TypeVar("Net", bound=nn.Module)
PROMPT = "a red fox runs through deep snow at dawn"
PROMPT_TOKENS = 40
TAE_WIDTHS = (256, 128, 64, 64)
TAE_SEED = 2

# The tiny scale. The text's width is the trained set's, so that each may read the other's text.
TEXT_WIDTH = 128
VAE_BASE = 8
WORDS = 128
DRAFTER = WanConfig(dim=128, ffn_dim=256, num_layers=2, num_heads=1, text_dim=TEXT_WIDTH)
TARGET = WanConfig(dim=256, ffn_dim=512, num_layers=3, num_heads=2, text_dim=TEXT_WIDTH)
REWARD = ImageRewardConfig(
    image_size=32,
    patch_size=8,
    vision_width=64,
    vision_layers=2,
    vision_mlp=128,
    vision_heads=1,
    positions=64,
    text_width=64,
    text_layers=2,
    text_mlp=128,
    text_heads=1,
    head=((0, 32), (2, 16), (4, 8), (6, 4), (7, 1)),
)
TINY = PlanRequest(
    width=32,
    height=16,
    drafter=replace(PUBLISHED_DRAFTER, config=replace(DRAFTER, text_len=64)),
    target=replace(PUBLISHED_TARGET, config=replace(TARGET, text_len=64)),
    dtype="float32",
    vae_base=VAE_BASE,
    vae_dtype="float32",
    reward=replace(REWARD, vocabulary=WORDS),
    reward_dtype="float32",
)
SCALES: Mapping[str, PlanRequest] = {"full": PlanRequest(), "tiny": TINY}
"""The models' sizes, dtypes and presets, and the video's size and blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Models:
    """The models of a benchmark, and the device they are on."""

    drafter: WanTree
    target: WanTree
    vae: nn.Module
    scorer: ImageRewardScorer
    condition: Condition
    device: torch.device

    @property
    def parts(self) -> tuple[tuple[str, nn.Module], ...]:
        return ("target", self.target), ("drafter", self.drafter), ("vae", self.vae), ("scorer", self.scorer.model)


def random_models(request: PlanRequest, device: torch.device, *, fp8: str | None = None) -> Models:
    """Make the models of a request.

    `fp8`: "stored" keeps the target's linear weights in fp8; "fast" multiplies in it. Raises `BadInput` for others.
    """
    if fp8 not in (None, "stored", "fast"):
        raise BadInput(f"fp8 is {fp8!r}; give stored, fast or None")
    random = Random(device, 0)
    aside = Random(device, 1)
    dtype = DTYPES[request.dtype]
    drafter = random_wan(request.drafter.config, dtype, random)
    target = random_wan(request.target.config, dtype, random, fp8=fp8 == "stored")
    target = multiply_in_fp8(target, device) if fp8 == "fast" else target
    vae = _filled(empty_wan_vae(base_dim=request.vae_base), DTYPES[request.vae_dtype], aside)
    scorer = _random_scorer(request.reward, DTYPES[request.reward_dtype], aside)
    embedding = random.normal((1, request.target.config.text_len, request.target.config.text_dim))
    embedding[:, PROMPT_TOKENS:] = 0
    return Models(
        drafter=drafter,
        target=target,
        vae=vae,
        scorer=scorer,
        condition=Condition(embedding, PROMPT),
        device=device,
    )


def codec_of(vae: nn.Module, layers: VaeLayers = "diffusers", compiler: Backend | None = None) -> WanCodec:
    """Return the codec of a random VAE, with Wan 2.1's own strides."""
    return WanCodec(vae, temporal_stride=4, spatial_stride=8, layers=layers, compiler=compiler)


def fast_codec(
    name: DecoderName, request: PlanRequest, device: torch.device, layers: VaeLayers, compiler: Backend | None
) -> WanCodec | TaehvCodec:
    """Return a fast decoder of random weights, as narrow against the published one as the request's VAE is."""
    random = Random(device, TAE_SEED)
    dtype = DTYPES[request.vae_dtype]
    share = request.vae_base / PUBLISHED_BASE
    if name == "lightvae":
        vae = empty_wan_vae(base_dim=max(1, round(LIGHT_BASE * share)))
        return codec_of(_filled(vae, dtype, random), layers, compiler)
    first, second, third, last = (max(1, round(width * share)) for width in TAE_WIDTHS)
    with torch.device("meta"):
        net = Taehv(16, (first, second, third, last), (last,) * 4)
    net = _filled(net, dtype, random)
    return TaehvCodec(net, kind="taew2_1", channels_last=layers == "planes", compiler=compiler)


class Random:
    """Draws weights on a device. They preserve the scale of activations, so that nothing overflows."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device)

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the weight of that name: a gain near 1, a small bias, or a matrix that preserves lengths."""
        values = self.normal(shape)
        if name.endswith("gamma") or ("norm" in name.lower() and name.endswith("weight")):
            return values.mul_(0.05).add_(1)
        if len(shape) < 2 or "modulation" in name or "pos" in name:
            return values.mul_(0.1)
        return values.div_(math.sqrt(math.prod(shape[1:])))


def random_wan(config: WanConfig, dtype: torch.dtype, random: Random, *, fp8: bool = False) -> WanTree:
    """Return a transformer of this size; its weights are drawn one by one on their device."""
    with torch.device("meta"):
        tree = WanTree(config)
    _filled(tree, dtype, random)
    for name, module in list(tree.named_modules()) if fp8 else ():
        if isinstance(module, nn.Linear):
            parent, _, leaf = name.rpartition(".")
            kept = Fp8Linear(module.weight.data.to(torch.float8_e4m3fn), None, module.bias)
            tree.get_submodule(parent).register_module(leaf, kept)
    return tree


def _filled(module: Net, dtype: torch.dtype, random: Random) -> Net:
    for name, owner in module.named_modules():
        for leaf, parameter in list(owner.named_parameters(recurse=False)):
            value = random.weight(f"{name}.{leaf}", tuple(parameter.shape)).to(dtype)
            owner.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    return module.eval()


def _random_scorer(config: ImageRewardConfig, dtype: torch.dtype, random: Random) -> ImageRewardScorer:
    shapes = used_shapes(config)
    file = WeightFile(
        path=Path("random"),
        layout="random numbers",
        info={},
        read=lambda name: random.weight(name, shapes[name]),
        names={name: name for name in shapes},
    )
    return ImageRewardScorer(
        file="random",
        model=build_model(file, config, random.device, dtype),
        tokenizer=load_prompt_tokenizer(
            WEIGHTS_FOLDER / "vocab.txt"
        ),  # fewer words than a real one, and all of its forms
        config=config,
        dtype=dtype,
    )


def tensor_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and of its fp8 weights."""
    kept: list[Any] = [*module.parameters()]
    kept += [layer.weight for layer in module.modules() if isinstance(layer, Fp8Linear)]
    return sum(tensor.nbytes for tensor in kept)
