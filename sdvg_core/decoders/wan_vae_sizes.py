"""Read the sizes of a Wan 2.1 VAE from the shapes of its weights, and refuse files that hold something else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.weights import WeightFile, is_shape_of_weight
from ..errors import BadInput
from ..files.small_files import MEGABYTE, parse_json, read_small
from .wan_vae_keys import count_entries, is_diffusers, is_original, original_to_diffusers, without_wrapper

ADVICE = "give Wan2.1_VAE.pth, wan_2.1_vae.safetensors or the vae folder of a Wan 2.1 diffusers repository"

# Mean and standard deviation of each latent channel, as published with Wan 2.1.
WAN_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
WAN_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)
WAN22_CHANNELS = 48
LARGEST_STATISTIC = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class WanVaeSizes:
    """The sizes needed to build the VAE. Widths are `base * multiplier`, one multiplier per resolution."""

    encoder_base: int
    decoder_base: int
    latent_channels: int
    multipliers: tuple[int, ...]
    res_blocks: int
    temporal_downsample: tuple[bool, ...]

    @property
    def temporal_stride(self) -> int:
        """Pixel frames per latent frame, after the first."""
        return int(2 ** sum(self.temporal_downsample))

    @property
    def spatial_stride(self) -> int:
        """Pixels per latent pixel, along a side."""
        return int(2 ** len(self.temporal_downsample))


def with_diffusers_names(file: WeightFile) -> WeightFile:
    """Return the file's tensors under diffusers' names. Raises `BadInput` if it is not a Wan 2.1 VAE."""
    file = file.renamed(without_wrapper)
    if is_original(file):
        file = file.renamed(original_to_diffusers(file))
    if not is_diffusers(file):
        raise BadInput(f"this must be the Wan 2.1 VAE, but {file.path.name} holds no video VAE; {ADVICE}")
    _refuse_other_vaes(file)
    return file


def _refuse_other_vaes(file: WeightFile) -> None:
    inner = file.info.get("post_quant_conv.weight")
    if inner is not None and inner.shape[:1] == (WAN22_CHANNELS,):
        raise BadInput(
            f"this must be the Wan 2.1 VAE (16 latent channels), but {file.path.name} is the VAE of Wan 2.2 5B "
            f"({WAN22_CHANNELS}); {ADVICE}"
        )
    conv = file.info.get("encoder.conv_in.weight") or file.info.get("decoder.conv_in.weight")
    if conv is not None and len(conv.shape) != 5:
        raise BadInput(f"this must be the Wan 2.1 VAE, but {file.path.name} is an image VAE; {ADVICE}")


def read_sizes(file: WeightFile) -> WanVaeSizes:
    """Read the sizes from weights with diffusers' names. Raises `BadInput` if a weight for it is missing."""
    base = _shape(file, "encoder.conv_in.weight")[0]
    levels, temporal = _encoder_levels(file)
    if not all(levels) or len({len(level) for level in levels}) > 1:
        raise BadInput(f"the Wan 2.1 VAE must be whole, but the encoder in {file.path.name} lacks blocks; {ADVICE}")
    multipliers = tuple(level[-1] // base for level in levels)
    if not all(multipliers):
        raise BadInput(f"this must be the Wan 2.1 VAE, but {file.path.name} narrows towards its middle; {ADVICE}")
    return WanVaeSizes(
        encoder_base=base,
        decoder_base=max(_shape(file, "decoder.conv_out.weight")[1] // multipliers[0], 1),
        latent_channels=_shape(file, "post_quant_conv.weight")[0],
        multipliers=multipliers,
        res_blocks=len(levels[0]),
        temporal_downsample=tuple(temporal),
    )


def _encoder_levels(file: WeightFile) -> tuple[list[list[int]], list[bool]]:
    """The widths of the residual blocks at each resolution, and whether the step after it also halves time."""
    layers = {name.rpartition(".")[0] for name in file}
    levels: list[list[int]] = [[]]
    temporal: list[bool] = []
    for n in range(count_entries(file, "encoder.down_blocks")):
        block = f"encoder.down_blocks.{n}"
        if f"{block}.resample.1" in layers:
            temporal.append(f"{block}.time_conv" in layers)
            levels.append([])
        else:
            levels[-1].append(_shape(file, f"{block}.conv1.weight")[0])
    return levels, temporal


def _shape(file: WeightFile, name: str) -> tuple[int, ...]:
    if name not in file.info:
        raise BadInput(f"the Wan 2.1 VAE must be whole, but {file.path.name} lacks {name}; {ADVICE}")
    shape = file.info[name].shape
    if not is_shape_of_weight(shape, 5):
        raise BadInput(
            f"this must be the Wan 2.1 VAE, but {file.path.name} has {name} with the shape {shape}; {ADVICE}"
        )
    return shape


def latent_statistics(file: WeightFile, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per latent channel, from the config next to the file, or Wan 2.1's."""
    path = file.path.parent / "config.json"
    config = _diffusers_config(path)
    mean = _numbers(config.get("latents_mean", WAN_MEAN), "latents_mean", path)
    std = _numbers(config.get("latents_std", WAN_STD), "latents_std", path)
    if min(std, default=1.0) <= 0:
        raise BadInput(f"latents_std in {path} must be above 0, but is {min(std)}; fetch the file again")
    if len(mean) != channels or len(std) != channels:
        raise BadInput(
            f"{file.path.name} needs mean and std of {channels} latent channels, but {len(mean)} and "
            f"{len(std)} are known; put a config.json with latents_mean and latents_std next to it"
        )
    return mean, std


def _numbers(values: Any, what: str, path: Path) -> tuple[float, ...]:
    kinds = isinstance(values, list | tuple) and all(type(value) in (int, float) for value in values)
    if not kinds or not all(abs(value) < LARGEST_STATISTIC for value in values):
        raise BadInput(f"{what} in {path} must be a list of finite numbers, but is not; fetch it again")
    return tuple(map(float, values))


def _diffusers_config(path: Path) -> dict[str, Any]:
    """Return the VAE's config; empty if there is none or it belongs to another model."""
    if not path.is_file():
        return {}
    try:
        config = parse_json(read_small(path, MEGABYTE))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} must be JSON, but cannot be read ({error}); fetch it again") from error
    ours = isinstance(config, dict) and config.get("_class_name") == "AutoencoderKLWan"
    return config if ours else {}
