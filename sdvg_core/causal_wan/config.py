"""The sizes of a Wan 2.1 transformer, and its tensors: their shapes, and their names in any checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..engine.inputs import CONTROL_CHANNELS
from ..errors import BadInput
from ..settings.fields import check_fields, setting
from ..weights import LARGEST_SIZE
from ..weights.names import Rename, Table, renamer

HEAD_DIM = 128  # of every published Wan 2.1; it cannot be inferred from a file's shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class WanConfig:
    """Sizes of one transformer, with the names and defaults of Wan 2.1 text-to-video.

    `patch_size`: latent frames, rows and columns per token. `text_len`: tokens of a prompt with padding.
    Raises `BadInput` for invalid sizes.
    """

    dim: int = setting(least=1, most=LARGEST_SIZE)
    ffn_dim: int = setting(least=1, most=LARGEST_SIZE)
    num_layers: int = setting(least=1, most=LARGEST_SIZE)
    num_heads: int = setting(least=1, most=LARGEST_SIZE)
    in_dim: int = setting(16, least=1, most=LARGEST_SIZE)
    out_dim: int = setting(16, least=1, most=LARGEST_SIZE)
    text_dim: int = setting(4096, least=1, most=LARGEST_SIZE)
    freq_dim: int = setting(256, least=1, most=LARGEST_SIZE)
    patch_size: tuple[int, int, int] = (1, 2, 2)
    text_len: int = setting(512, least=1, most=LARGEST_SIZE)
    eps: float = setting(1e-6, least=1e-20, most=1)

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.patch_size) != 3 or not all(0 < size <= LARGEST_SIZE for size in self.patch_size):
            raise BadInput(f"patch_size is {self.patch_size!r:.60}; give three sizes in the config")
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
        """The published size ("1.3B" or "14B"), or the number of parameters for another model."""
        for name, config in PUBLISHED_CONFIGS.items():
            if (self.dim, self.num_layers) == (config.dim, config.num_layers):
                return name
        return f"{self.parameters / 1e9:.2f}B" if self.parameters >= 1e7 else f"{self.parameters / 1e6:.2f}M"


def common_patch(configs: Iterable[WanConfig]) -> int:
    """Return the common multiple of the models' patch sizes, in latent pixels."""
    return math.lcm(*(size for config in configs for size in config.patch_size[1:]))


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


QUANTISED = re.compile(r"(?:vace_)?blocks\.\d+\.((?:self|cross)_attn\.[qkvo]|ffn\.[02])\.weight")
"""The weights that `convert` quantises, and the kind of each."""


def linear_weights(config: WanConfig) -> list[str]:
    """Return the names of the weights of linear layers."""
    return [name for name, shape in wan_shapes(config).items() if name.endswith(".weight") and len(shape) == 2]


def control_shapes(config: WanConfig, blocks: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a VACE module with `blocks` blocks, for a model of this size."""
    dim = config.dim
    shapes: dict[str, tuple[int, ...]] = {
        "vace_patch_embedding.weight": (dim, CONTROL_CHANNELS, *config.patch_size),
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
"""Number of blocks of the published control modules, by model size."""
PUBLISHED_CONFIGS: Mapping[str, WanConfig] = {"1.3B": WAN_1_3B, "14B": WAN_14B}


# --- names of tensors, translated into those of the original files

# Parts of names left by training wrappers.
WRAPPED: Table = dict.fromkeys(("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "module"), "")
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.", "")
# Every Wan transformer has all of these, and no other part of a Wan pipeline has any.
WAN_TELLTALES = ("head.modulation", "blocks.0.self_attn.norm_q.weight", "time_projection.1.weight")
DIFFUSERS_TELLTALES = ("condition_embedder.time_proj.weight", "blocks.0.attn1.norm_q.weight")
# Some exports include rotary tables, which follow from the sizes.
ROTARY: Table = dict.fromkeys(("freqs", "freqs_cos", "freqs_sin", "rope", "rotary_emb"))
WAN_NAMES = ROTARY
# Where diffusers' WanTransformer3DModel uses other names. Its norm2 is the original's norm3.
DIFFUSERS_NAMES: Table = {
    **ROTARY,
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.image_embedder": "img_emb",
    "attn1": "self_attn",
    "attn2": "cross_attn",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "o",
    "norm2": "norm3",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    "proj_out": "head.head",
    "^.scale_shift_table": "head.modulation",
    "scale_shift_table": "modulation",
}
NAMINGS = {"Wan names": (WAN_NAMES, WAN_TELLTALES), "diffusers names": (DIFFUSERS_NAMES, DIFFUSERS_TELLTALES)}

unwrapped = renamer(WRAPPED)
"""Return the name without the parts that FSDP, compilation and data parallelism add."""


def namings_of(file: Iterable[str]) -> dict[str, Rename]:
    """Return the naming of every Wan transformer in a file, which can hold several: its label -> its renamer."""
    names = list(file)
    plain = {unwrapped(name) for name in names}
    end = "" if plain.issuperset(names) else ", training wrappers removed"
    return {
        label + (f" under {prefix.removesuffix('.')}" if prefix else "") + end: names_under(prefix, table)
        for label, (table, telltales) in NAMINGS.items()
        for prefix in PREFIXES
        if any(prefix + telltale in plain for telltale in telltales)
    }


def names_under(prefix: str, table: Table = WAN_NAMES) -> Rename:
    """Return the renamer of a transformer whose names, without training wrappers, begin with `prefix`."""
    rename = renamer(table, prefix=prefix)
    return lambda name: rename(unwrapped(name))


def is_rotary(name: str) -> bool:
    """True for a table of rotary angles."""
    return not ROTARY.keys().isdisjoint(name.split("."))


# --- names of layers in LoRAs, which may have `_` for dots

# How they begin: ComfyUI's, PEFT's, DiffSynth's and diffusers', then kohya's and LyCORIS's.
LORA_START = re.compile(
    r"((base_model\.model|(model\.)?diffusion_model|pipe\.dit|transformer|unet|model)\."
    r"|lora_unet_|lora_transformer_|lycoris_)*"
)


def _flat(name: str) -> str:
    return re.sub(r"[._]+", ".", name).strip(".")


def _flat_renamer(table: Table) -> Rename:
    return renamer({_flat(theirs): _flat(ours) for theirs, ours in table.items() if ours is not None})


_flat_unwrapped = _flat_renamer(WRAPPED)
_flat_from_diffusers = _flat_renamer(DIFFUSERS_NAMES)


def flat_name(name: str) -> str:
    """Return the original name of a layer, with dots for `_`, from a LoRA's name in any known spelling."""
    return _flat_from_diffusers(_flat_unwrapped(_flat(LORA_START.sub("", unwrapped(name), count=1))))
