"""Read a VACE control module, from its own file or out of a whole VACE checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..checkpoints.quantized import find_quantisation
from ..checkpoints.weights import WeightFile, check_complete
from ..errors import BadInput, see
from .checkpoint import GIVE_PUBLISHED, Checkpoint, fill
from .config import WanConfig, control_shapes
from .modules import ControlTree
from .names import PREFIXES, KeyStyle, unwrapped

EMBEDDING = "vace_patch_embedding."
TELLTALE = EMBEDDING + "weight"
PARTS = (EMBEDDING, "vace_blocks.", "scaled_fp8")
GIVE_VACE = "give Wan 2.1's VACE module in the size of its model (1.3B or 14B)" + see("Models are not found")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlCheckpoint(Checkpoint):
    """The checkpoint of a control module. `blocks`: its number of control blocks."""

    blocks: int


def has_control(file: WeightFile) -> bool:
    """True if a file holds a control module, alone or in a whole VACE checkpoint."""
    return _style(file) is not None


def inspect_control(file: WeightFile) -> tuple[WeightFile, int, int]:
    """Return a control module's tensors under Wan names, its model's width, and its number of blocks.

    Raises `BadInput` if the file has none.
    """
    style = _style(file)
    if style is None:
        raise BadInput(f"{file.path.name} has no control module ({TELLTALE}); {GIVE_VACE}")
    named = style.wan_name
    weights = file.renamed(lambda name: known if (known := named(name)) and known.startswith(PARTS) else None)
    numbers = {known.split(".")[1] for known in weights if known.startswith("vace_blocks.")}
    return weights, max(weights.info[TELLTALE].shape[:1], default=0), len(numbers)


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
    quantisation = find_quantisation(weights, shapes)
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


def _style(file: WeightFile) -> KeyStyle | None:
    """Return the naming scheme of a file's control module; None if it has none."""
    plain = {unwrapped(name) for name in file}
    prefix = next((prefix for prefix in PREFIXES if prefix + TELLTALE in plain), None)
    return None if prefix is None else KeyStyle(prefix=prefix, wrapped=not plain.issuperset(file), diffusers=False)
