"""Read a Wan 2.1 checkpoint, in any published layout, into our own module tree.

`open_wan` checks names and shapes before any weight is read. `load_wan` then builds the tree on the meta device and
loads the tensors one by one, so that there is never a second copy of the model, as `load_state_dict` would make.
Tensors that stay on the CPU in their stored dtype stay memory-mapped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..devices.streaming import LayerStream
from ..errors import BadInput, see
from ..files.small_files import parse_json
from ..settings.context import Preset, get_preset
from ..weights.comfy_quant import check_foreign
from ..weights.kitchen import KitchenLinear, find_layers, seed_of, unpacked
from ..weights.lora import Lora, open_lora
from ..weights.lora_beside import add_beside, merged_only
from ..weights.model_files import VARIANTS, family_of, is_lora
from ..weights.pickles import NO_CHOICE, Choice
from ..weights.quantized import FP8, Fp8Linear, Quantisation, dequantized, find_quantisation, quantized
from ..weights.weight_file import WeightFile, check_complete, count_layers, open_weights, shape_of
from .attention import SDPA, AttentionBackend, TorchOps
from .config import (
    HEAD_DIM,
    PREFIXES,
    PUBLISHED_CONFIGS,
    WAN_1_3B,
    WAN_14B,
    WanConfig,
    control_shapes,
    flat_name,
    is_rotary,
    names_under,
    namings_of,
    unwrapped,
    wan_shapes,
)
from .context import Wan
from .modules import ControlTree, WanTree

TRANSFORMER_KIND = "Wan 2.1 transformer"
GIVE_PUBLISHED = "use the file as its authors published it"
GIVE_T2V = "give a causal Wan 2.1 text-to-video model (Self-Forcing, Krea Realtime, ...)"
_Tree = TypeVar("_Tree", bound=nn.Module)
COMPUTE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A checkpoint that was checked and not read yet.

    `weights`: its tensors under Wan names. `config`: of the transformer, or of the one that it controls.
    """

    weights: WeightFile
    config: WanConfig
    quantisation: Quantisation

    def plain(self, name: str) -> Tensor:
        """Read a weight as plain numbers, float32 if it is quantised."""
        if name in self.quantisation.layers:
            layer = self.quantisation.layers[name]
            return layer.dequantised(layer.read(self.weights, torch.device("cpu")))
        key = self.quantisation.scales.get(name)
        weight = self.weights[name]
        return weight if key is None else dequantized(weight, self.weights[key], torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WanCheckpoint(Checkpoint):
    """The checkpoint of a transformer.

    `naming`: label of how the file names its tensors. `dtype`: to compute in. `unused`: other tensors in the file.
    """

    naming: str
    dtype: torch.dtype
    unused: tuple[str, ...]


def load_wan(
    source: str | Path | WanCheckpoint,
    *,
    preset: Preset | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    loras: Sequence[Lora] = (),
    fp8: bool = False,
    streamed: Collection[int] = (),
    attention: AttentionBackend = SDPA,
) -> Wan:
    """Load a checkpoint, opened or not, onto a device, with its LoRAs; fp8 weights are cast to `dtype` on use.

    `preset`: None for `custom`. `dtype`: bfloat16, float16 or float32; None for the file's, or bfloat16 if that is
    fp8. `fp8`: round the weights of linear layers to fp8. `streamed`: indices of layers that stay in main memory
    and are copied in every pass. Raises `BadInput` if the file cannot be used.
    """
    checkpoint = source if isinstance(source, WanCheckpoint) else open_wan(source)
    dtype = dtype or checkpoint.dtype
    device = torch.device(device)
    ops = TorchOps(dtype, attention)
    with torch.device("meta"):
        tree = WanTree(checkpoint.config)
    names = wan_shapes(checkpoint.config)
    tree = fill(tree, checkpoint, names, device, dtype, merged_only(loras), fp8=fp8, streamed=streamed)
    add_beside(tree, loras, dtype)
    stream = LayerStream([tree.blocks[number] for number in sorted(streamed)], device) if streamed else None
    return Wan(
        tree=tree,
        ops=ops,
        preset=preset or get_preset("custom"),
        device=device,
        copied=stream.bytes if stream else 0,
    )


def open_wan(path: str | Path, choice: Choice = NO_CHOICE) -> WanCheckpoint:
    """Open and check a checkpoint. `choice`: which state dict. Raises `BadInput` if it cannot be loaded."""
    return inspect_weights(open_weights(path, choice))


def inspect_weights(file: WeightFile) -> WanCheckpoint:
    """Check an opened checkpoint. Raises `BadInput` if it cannot be loaded."""
    name = file.path.name
    check_foreign(name, file.names)
    namings = namings_of(file)
    adapters = [tensor for tensor in file.names if is_lora(tensor)]
    if adapters:
        tensors = f"{len(adapters)} tensors such as {adapters[0]}"
        raise BadInput(
            f"{name} holds a LoRA ({tensors}), not a model; load its base model and apply the LoRA to it"
        )
    if not namings:
        raise foreign(name, family_of(file.names) or ", ".join(sorted(file.names)[:3]))
    if len(namings) > 1:
        several = ", ".join(namings)
        raise BadInput(f"{name} holds several transformers ({several}); save the one to use in its own file")
    (label, rename), *_ = namings.items()
    weights = file.renamed(rename)
    if kind := family_of(weights.names, VARIANTS):  # models with inputs other than text
        raise foreign(name, kind)
    layers = find_layers(weights)
    weights = unpacked(weights, layers)
    stated = _stated_sizes(file)
    config = detect_config(weights, stated)
    check_sizes(name, config, stated)
    if config.num_layers > len(weights.names):  # metadata can claim any number, and the names below follow it
        raise BadInput(f"{name} lacks most of the {config.num_layers} blocks that it states; fetch it again")
    expected = wan_shapes(config)
    quantisation = find_quantisation(weights, expected, layers)
    check_complete(weights, expected, TRANSFORMER_KIND, GIVE_PUBLISHED, extra=quantisation.side)
    needed = {*expected, *quantisation.side}
    return WanCheckpoint(
        weights=weights,
        config=config,
        naming=label,
        quantisation=quantisation,
        dtype=compute_dtype(weights, expected),
        unused=tuple(name for name in file.names if rename(name) not in needed and not is_rotary(name)),
    )


def detect_config(weights: WeightFile, stated: Mapping[str, Any]) -> WanConfig:
    """Infer the sizes from the shapes of tensors under Wan names; `stated` ones override them.

    Heads are assumed to have 128 channels. Raises `BadInput` if tensors needed for this are missing.
    """
    shape = partial(shape_of, weights, what=TRANSFORMER_KIND, advice=GIVE_PUBLISHED)
    dim = shape("head.modulation", 3)[2]
    patch = shape("patch_embedding.weight", 5)
    if dim % HEAD_DIM and "num_heads" not in stated:
        key = '{"config": "{\\"transformer\\": {\\"num_heads\\": ...}}"}'
        raise BadInput(f"the width {dim} is no multiple of {HEAD_DIM}; state its heads in the metadata: {key}")
    sizes: dict[str, Any] = {
        "dim": dim,
        "ffn_dim": shape("blocks.0.ffn.0.weight", 2)[0],
        "num_layers": count_layers(weights.names, "blocks"),
        "num_heads": dim // HEAD_DIM,
        "in_dim": patch[1],
        "out_dim": shape("head.head.weight", 2)[0] // math.prod(patch[2:]),
        "text_dim": shape("text_embedding.0.weight", 2)[1],
        "freq_dim": shape("time_embedding.0.weight", 2)[1],
        "patch_size": patch[2:],
    }
    return WanConfig(**{**sizes, **stated})


def _stated_sizes(file: WeightFile) -> dict[str, Any]:
    """Return the sizes stated in a file's metadata, under `config`, `transformer`, as ComfyUI reads them too.

    Raises `BadInput` if that is no JSON object.
    """
    try:
        transformer = parse_json(file.metadata.get("config", "{}")).get("transformer", {})
        return {f.name: transformer[f.name] for f in fields(WanConfig) if f.name in transformer}
    except (ValueError, AttributeError, TypeError) as error:
        raise BadInput(f"the metadata key config has no member transformer ({error}); rewrite the file") from error


def compute_dtype(weights: WeightFile, expected: Mapping[str, tuple[int, ...]]) -> torch.dtype:
    """Return the dtype of most parameters; fp8 counts as bfloat16, in which Wan was trained."""
    numbers: Counter[torch.dtype] = Counter()
    for name, shape in expected.items():
        numbers[weights.info[name].dtype] += torch.Size(shape).numel()
    most = numbers.most_common(1)[0][0]
    if most in FP8:
        return torch.bfloat16
    return most if most in COMPUTE_DTYPES else torch.float32


def find_lora(text: str, checkpoint: WanCheckpoint) -> Lora:
    """Open the LoRA `FILE` or `FILE:STRENGTH` for a checkpoint.

    Raises `OtherModel` if it is for another model, and `BadInput` for other files and for values that are not
    finite or too large.
    """
    lora = open_lora(text, wan_shapes(checkpoint.config), flat_name)
    return lora.checked(checkpoint.plain, checkpoint.dtype)


def fill(
    tree: _Tree,
    checkpoint: Checkpoint,
    names: Iterable[str],
    device: torch.device,
    dtype: torch.dtype,
    loras: Sequence[Lora] = (),
    *,
    fp8: bool = False,
    streamed: Collection[int] = (),
) -> _Tree:
    """Load the weights called `names` into a tree on the meta device. Other arguments are those of `load_wan`."""
    weights = checkpoint.weights
    layers = checkpoint.quantisation.layers
    linear = {f"{name}.weight" for name, module in tree.named_modules() if isinstance(module, nn.Linear)}
    stored = {name for name in linear if weights.info[name].dtype in FP8}
    streamed_layers = tuple(f"blocks.{number}." for number in streamed)

    def scale_of(name: str, home: torch.device) -> Tensor | None:
        key = checkpoint.quantisation.scales.get(name)
        return None if key is None else weights[key].to(home)

    made: dict[str, Callable[[nn.Parameter], nn.Module]] = {}
    # One by one, so that only finished weights stay in memory.
    for name in names:
        home = torch.device("cpu") if name.startswith(streamed_layers) else device
        changed = any(name in lora.changes for lora in loras)
        if name in layers:
            parts = _changed_parts(name, checkpoint, loras if changed else (), home)
            made[name] = partial(KitchenLinear, layers[name], parts)
            continue
        weight = weights[name]
        stored_dtype = weight.dtype
        if name in stored and not changed:
            made[name] = partial(Fp8Linear, weight.to(home), scale_of(name, home))
            continue
        wide = torch.float32 if name in stored else dtype
        if stored_dtype in FP8:
            weight = dequantized(weight.to(home), scale_of(name, home), wide)
        weight = weight.to(device=home, dtype=wide)
        for lora in loras:
            weight = lora.applied(name, weight)
        if name in stored:
            made[name] = partial(Fp8Linear, *quantized(weight, stored_dtype, scale_of(name, home)))
        elif fp8 and name in linear:
            made[name] = partial(Fp8Linear, *quantized(weight, FP8[0]))
        else:
            layer, _, leaf = name.rpartition(".")
            tree.get_submodule(layer).register_parameter(leaf, nn.Parameter(weight, requires_grad=False))
    for name, make in made.items():
        layer = name.removesuffix(".weight")
        parent, _, leaf = layer.rpartition(".")
        tree.get_submodule(parent).register_module(leaf, make(tree.get_parameter(f"{layer}.bias")))
    return tree.train(False)


def _changed_parts(
    name: str, checkpoint: Checkpoint, loras: Sequence[Lora], home: torch.device
) -> dict[str, Tensor]:
    """Return the parts of a weight in int8 or 4 bits, rounded again if LoRAs change it, by ComfyUI's seed."""
    layer = checkpoint.quantisation.layers[name]
    parts = layer.read(checkpoint.weights, home)
    if not loras:
        return parts
    weight = layer.dequantised(parts)
    for lora in loras:
        weight = lora.applied(name, weight)
    return layer.requantised(parts, weight, seed_of(name))


# --- files that hold something else


def foreign(what: str, kind: str) -> BadInput:
    """Return the error for a file or MODEL, `what`, of another kind."""
    return BadInput(f"{what} is no Wan 2.1 transformer (found: {kind}); {GIVE_T2V}")


def check_sizes(file: str, config: WanConfig, stated: Collection[str]) -> None:
    """Reject a truncated checkpoint (right width, missing layers), and other latents than Wan 2.1's.

    A model without its last blocks would run and make a worse video. `stated`: names of sizes stated in the file.
    Raises `BadInput`.
    """
    if (config.in_dim, config.out_dim) != (16, 16):
        raise foreign(file, f"{config.in_dim} input and {config.out_dim} output channels, not 16")
    if config.patch_size[0] != 1:
        raise foreign(file, f"tokens of {config.patch_size[0]} latent frames, not 1")
    for published in PUBLISHED_CONFIGS.values():
        same = (config.dim, config.ffn_dim) == (published.dim, published.ffn_dim)
        if same and config.num_layers != published.num_layers and "num_layers" not in stated:
            blocks = f"{config.num_layers} of the {published.num_layers} blocks"
            raise BadInput(f"{file} has {blocks} of its width; fetch it again, or state num_layers in its metadata")


# --- VACE control modules, from their own file or out of a whole VACE checkpoint

EMBEDDING = "vace_patch_embedding."
CONTROL_TELLTALE = EMBEDDING + "weight"
CONTROL_TENSORS = (EMBEDDING, "vace_blocks.", "scaled_fp8")
GIVE_VACE = "give Wan 2.1's VACE module in the size of its model (1.3B or 14B)" + see("Models are not found")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlCheckpoint(Checkpoint):
    """The checkpoint of a control module. `blocks`: its number of control blocks."""

    blocks: int


def has_control(file: WeightFile) -> bool:
    """True if a file holds a control module, alone or in a whole VACE checkpoint."""
    return _prefix(file) is not None


def inspect_control(file: WeightFile) -> tuple[WeightFile, int, int]:
    """Return a control module's tensors under Wan names, its width and number of blocks, or raise `BadInput`."""
    prefix = _prefix(file)
    if prefix is None:
        raise BadInput(f"{file.path.name} has no control module ({CONTROL_TELLTALE}); {GIVE_VACE}")
    rename = names_under(prefix)
    weights = file.renamed(lambda name: known if (known := rename(name)).startswith(CONTROL_TENSORS) else "")
    numbers = {known.split(".")[1] for known in weights if known.startswith("vace_blocks.")}
    return weights, max(weights.info[CONTROL_TELLTALE].shape[:1], default=0), len(numbers)


def open_control(file: WeightFile, config: WanConfig, role: str) -> ControlCheckpoint:
    """Open the control module for a model of these sizes, without reading weights.

    `role`: the model's name in errors. Raises `BadInput` if the file holds no module that fits.
    """
    weights, width, blocks = inspect_control(file)
    name = file.path.name
    if width != config.dim:
        raise BadInput(f"{name} is for a width of {width}, and the {role} has {config.dim}; {GIVE_VACE}")
    if not blocks or config.num_layers % blocks:
        count = f"{blocks} control blocks for the {config.num_layers} of the {role}"
        raise BadInput(f"{name} has {count}; {GIVE_VACE}")
    shapes = control_shapes(config, blocks)
    layers = find_layers(weights)
    weights = unpacked(weights, layers)
    quantisation = find_quantisation(weights, shapes, layers)
    check_complete(weights, shapes, "control module", GIVE_PUBLISHED, extra=quantisation.side)
    return ControlCheckpoint(weights=weights, config=config, blocks=blocks, quantisation=quantisation)


def load_control(checkpoint: ControlCheckpoint, *, device: torch.device, dtype: torch.dtype) -> ControlTree:
    """Load a control module in its model's dtype. Raises `BadInput` if its weights are all zeros."""
    with torch.device("meta"):
        tree = ControlTree(checkpoint.config, checkpoint.blocks)
    tree = fill(tree, checkpoint, control_shapes(checkpoint.config, checkpoint.blocks), device, dtype)
    if not bool(tree.vace_patch_embedding.weight.any()):
        raise BadInput(f"the control module in {checkpoint.weights.path.name} is all zeros; fetch it again")
    return tree


def _prefix(file: WeightFile) -> str | None:
    """Return what the names of a control module begin with, or None if there is none."""
    plain = {unwrapped(name) for name in file}
    return next((prefix for prefix in PREFIXES if prefix + CONTROL_TELLTALE in plain), None)


# --- headers


@dataclass(frozen=True, slots=True, kw_only=True)
class WanHeader:
    """A transformer, of a file or of ComfyUI: an engine's `ModelShape`. Equal headers have equal costs.

    `control_blocks`: of its control module, 0 without a control. `weights`: identifies the weights. `notes`:
    warnings about its file.
    """

    config: WanConfig
    preset: Preset
    control_blocks: int = 0
    weights: object = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    name: str = field(default="", compare=False)

    block_frames: int = field(init=False, compare=False)
    latent_channels: int = field(init=False, compare=False)
    timesteps: tuple[float, ...] = field(init=False, compare=False)
    first_timesteps: tuple[float, ...] = field(init=False, compare=False)
    draft_steps: int | None = field(init=False, compare=False)
    anchor_horizon: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        preset = self.preset
        shape = {
            "block_frames": preset.block_frames,
            "latent_channels": self.config.out_dim,
            "timesteps": tuple(step.timestep for step in preset.steps),
            "first_timesteps": tuple(step.timestep for step in preset.first_steps),
            "draft_steps": preset.draft_steps,
            "anchor_horizon": preset.context.anchor_horizon,
        }
        for name, value in shape.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class WanFile(WanHeader):
    """The header of a file whose weights are not read yet, with what is loaded beside them."""

    checkpoint: WanCheckpoint = field(compare=False)
    attention: AttentionBackend = field(default=SDPA, compare=False)
    loras: tuple[Lora, ...] = field(default=(), compare=False)
    control: ControlCheckpoint | None = field(default=None, compare=False)


PUBLISHED_DRAFTER = WanHeader(config=WAN_1_3B, preset=get_preset("self-forcing-1.3b"))
PUBLISHED_TARGET = WanHeader(config=WAN_14B, preset=get_preset("krea-14b"))
