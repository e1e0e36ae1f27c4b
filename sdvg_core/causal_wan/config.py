"""The sizes of a Wan 2.1 transformer, its tensors, and how to read the sizes off a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..checkpoints import LARGEST_SIZE
from ..engine.control import CHANNELS
from ..errors import BadInput
from ..files.small_files import parse_json

if TYPE_CHECKING:
    from ..checkpoints.weights import TensorInfo

HEAD_DIM = 128  # of every published Wan 2.1; a file cannot tell, as heads leave no trace in its shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class WanConfig:
    """Sizes of one transformer. Names and defaults are those of Wan 2.1 text-to-video.

    `patch_size`: latent frames, rows and columns per token. `text_len`: tokens of a prompt, padding included.
    Raises `BadInput` for impossible sizes.
    """

    dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    in_dim: int = 16
    out_dim: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    patch_size: tuple[int, int, int] = (1, 2, 2)
    text_len: int = 512
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("patch_size", "eps"):
                _check_count(field.name, getattr(self, field.name))
        if not isinstance(self.patch_size, tuple) or len(self.patch_size) != 3:
            raise BadInput(f"patch_size is {self.patch_size!r}; give three numbers in the config")
        for size in self.patch_size:
            _check_count("patch_size", size)
        if not isinstance(self.eps, float) or not 0 < self.eps < 1:
            raise BadInput(f"eps is {self.eps!r}; give a number between 0 and 1 in the config")
        # RoPE rotates pairs of channels, and each of the three axes needs at least one pair.
        if self.dim % self.num_heads or self.head_dim % 2 or self.head_dim < 6:
            heads = f"{self.num_heads} heads do not share {self.dim} channels"
            raise BadInput(f"{heads} in even parts of at least 6; give num_heads in the file's metadata")

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.num_heads

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for shape in wan_shapes(self).values())

    @property
    def size(self) -> str:
        """The name of the published size ("1.3B" or "14B"), or else the number of parameters, shortened."""
        for name, config in PUBLISHED.items():
            if (self.dim, self.num_layers) == (config.dim, config.num_layers):
                return name
        return f"{self.parameters / 1e9:.2f}B" if self.parameters >= 1e7 else f"{self.parameters / 1e6:.2f}M"


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_SIZE:
        raise BadInput(f"{name} is {value!r}; give a whole number from 1 to {LARGEST_SIZE} in the config")


def wan_shapes(config: WanConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a checkpoint of this size, by its name in the original Wan files."""
    dim = config.dim
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        shapes[f"{name}.bias"] = (rows,)

    shapes["patch_embedding.weight"] = (dim, config.in_dim, *config.patch_size)
    shapes["patch_embedding.bias"] = (dim,)
    linear("text_embedding.0", dim, config.text_dim)
    linear("text_embedding.2", dim, dim)
    linear("time_embedding.0", dim, config.freq_dim)
    linear("time_embedding.2", dim, dim)
    linear("time_projection.1", 6 * dim, dim)
    for block in (f"blocks.{i}" for i in range(config.num_layers)):
        shapes[f"{block}.modulation"] = (1, 6, dim)
        for attention in (f"{block}.self_attn", f"{block}.cross_attn"):
            for part in "qkvo":
                linear(f"{attention}.{part}", dim, dim)
            shapes[f"{attention}.norm_q.weight"] = (dim,)
            shapes[f"{attention}.norm_k.weight"] = (dim,)
        shapes[f"{block}.norm3.weight"] = (dim,)
        shapes[f"{block}.norm3.bias"] = (dim,)
        linear(f"{block}.ffn.0", config.ffn_dim, dim)
        linear(f"{block}.ffn.2", dim, config.ffn_dim)
    shapes["head.modulation"] = (1, 2, dim)
    linear("head.head", math.prod(config.patch_size) * config.out_dim, dim)
    return shapes


def control_shapes(config: WanConfig, blocks: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a VACE module with so many blocks, for a model of this size."""
    dim = config.dim
    shapes: dict[str, tuple[int, ...]] = {
        "vace_patch_embedding.weight": (dim, CHANNELS, *config.patch_size),
        "vace_patch_embedding.bias": (dim,),
    }
    ordinary = wan_shapes(replace(config, num_layers=blocks))
    shapes |= {f"vace_{name}": shape for name, shape in ordinary.items() if name.startswith("blocks.")}
    for name in ("0.before_proj", *(f"{number}.after_proj" for number in range(blocks))):
        shapes |= {f"vace_blocks.{name}.weight": (dim, dim), f"vace_blocks.{name}.bias": (dim,)}
    return shapes


WAN_1_3B = WanConfig(dim=1536, ffn_dim=8960, num_layers=30, num_heads=12)
WAN_14B = WanConfig(dim=5120, ffn_dim=13824, num_layers=40, num_heads=40)
CONTROL_BLOCKS: Mapping[str, int] = {"1.3B": 15, "14B": 8}
"""Of the published control modules, by the size of their model."""
PUBLISHED: Mapping[str, WanConfig] = {"1.3B": WAN_1_3B, "14B": WAN_14B}


def detect_config(info: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> WanConfig:
    """Read the sizes off the tensors' shapes (`info`, in Wan names) and the safetensors metadata.

    A head is assumed to be 128 channels wide. The metadata key `config`, a JSON object with a member `transformer`,
    overrides any size; ComfyUI honours the same key. Raises `BadInput` if tensors needed for this are missing.
    """
    stated = stated_sizes(metadata)
    dim = _axis(info, "head.modulation", 2)
    patch = tuple(_axis(info, "patch_embedding.weight", axis) for axis in (2, 3, 4))
    if dim % HEAD_DIM and "num_heads" not in stated:
        key = '{"config": "{\\"transformer\\": {\\"num_heads\\": ...}}"}'
        raise BadInput(f"the width {dim} is no multiple of {HEAD_DIM}; state its heads in the metadata: {key}")
    config = WanConfig(
        dim=dim,
        ffn_dim=_axis(info, "blocks.0.ffn.0.weight", 0),
        num_layers=_count_blocks(info),
        num_heads=stated.get("num_heads", dim // HEAD_DIM),
        in_dim=_axis(info, "patch_embedding.weight", 1),
        out_dim=_axis(info, "head.head.weight", 0) // max(1, math.prod(patch)),
        text_dim=_axis(info, "text_embedding.0.weight", 1),
        freq_dim=_axis(info, "time_embedding.0.weight", 1),
        patch_size=(patch[0], patch[1], patch[2]),
    )
    return replace(config, **stated)


def stated_sizes(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the sizes given by the metadata key `config`; members that are not our sizes are left out."""
    if "config" not in metadata:
        return {}
    try:
        transformer = parse_json(metadata["config"]).get("transformer", {})
        sizes = {f.name: transformer[f.name] for f in fields(WanConfig) if f.name in transformer}
    except (ValueError, AttributeError, TypeError) as error:
        raise BadInput(f"the metadata key config has no member transformer ({error}); rewrite the file") from error
    if isinstance(sizes.get("patch_size"), list):
        sizes["patch_size"] = tuple(sizes["patch_size"])
    return sizes


def _axis(info: Mapping[str, TensorInfo], name: str, axis: int) -> int:
    if name not in info:
        raise BadInput(f"the checkpoint lacks {name} of a Wan 2.1 transformer; fetch it again")
    shape = info[name].shape
    if axis >= len(shape):
        raise BadInput(f"{name} has the shape {shape}, too few axes; use the file as published")
    return shape[axis]


def _count_blocks(info: Mapping[str, TensorInfo]) -> int:
    """Count the blocks. A gap is refused: stopping there would silently cut the model short."""
    parts = (name.split(".")[1] for name in info if name.startswith("blocks."))
    numbers = {int(part) for part in parts if part.isdecimal() and len(part) < 6}
    count = max(numbers, default=-1) + 1
    if len(numbers) != count:
        gap = next(i for i in range(count) if i not in numbers)
        raise BadInput(f"block {gap} of the checkpoint's {count} is missing; fetch it again")
    return count
