"""Make an int8 or a 4-bit file of a transformer or a control module, one tensor at a time.

Attention and feed-forward weights are quantised; the rest is stored in bfloat16.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ..causal_wan.checkpoint import (
    EMBEDDING,
    GIVE_VACE,
    Checkpoint,
    has_control,
    inspect_control,
    open_control,
    open_wan,
)
from ..causal_wan.config import QUANTISED, WanConfig
from ..causal_wan.presets import choice_of
from ..devices.device import package_version
from ..errors import BadInput
from ..files.digest import sha256_of
from ..files.small_files import parse_json
from ..settings.load import ModelOptions
from ..weights.growing_file import Group, group_bytes, growing_file
from ..weights.kitchen import (
    NUMBERS_AT_ONCE,
    Format,
    QuantisedLayer,
    layer_of,
    layout_of,
    mark_of,
    quantise,
    stored_shapes,
)
from ..weights.weight_file import TensorInfo, open_weights, shape_of

SOURCE_KEY = "sdvg_source"
"""Metadata key: JSON with the name and the SHA-256 of each file that a file was made of."""
WORST_LAYERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file to convert, checked and not read yet."""

    checkpoint: Checkpoint
    path: Path

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in the order of the model."""
        side = self.checkpoint.quantisation.side
        return [name for name in self.checkpoint.weights if name not in side]

    def layer(self, name: str, form: Format) -> QuantisedLayer | None:
        """Return what a weight becomes, or None for one that stays."""
        if not QUANTISED.fullmatch(name):
            return None
        rows, columns = self.checkpoint.weights.info[name].shape
        return layer_of((rows, columns), name, form)


@dataclass(slots=True)
class Errors:
    """The squared errors and sizes of the quantised weights, by name."""

    squares: dict[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, *names: str) -> float:
        """Return the relative error of some weights together."""
        errors = sum(self.squares[name][0] for name in names)
        sizes = sum(self.squares[name][1] for name in names)
        return math.sqrt(errors / sizes) if sizes else 0.0

    @property
    def by_kind(self) -> dict[str, float]:
        """Relative errors by kind of layer, such as `ffn.0`, and of all."""
        kinds: dict[str, list[str]] = defaultdict(list)
        for name in self.squares:
            if match := QUANTISED.fullmatch(name):
                kinds[match[1]].append(name)
        return {**{kind: self.of(*names) for kind, names in kinds.items()}, "all": self.of(*self.squares)}

    @property
    def worst(self) -> list[tuple[str, float]]:
        """The layers with the largest errors."""
        errors = [(name.removesuffix(".weight"), self.of(name)) for name in self.squares]
        return sorted(errors, key=lambda error: -error[1])[:WORST_LAYERS]


def open_source(path: Path) -> Source:
    """Open and check a file to convert. Raises `BadInput` unless it is a plain transformer or control module."""
    file = open_weights(path, choice_of(ModelOptions(), path))
    checkpoint: Checkpoint
    if has_control(file):
        weights, width, blocks = inspect_control(file)
        inner, _ = shape_of(weights, "vace_blocks.0.ffn.0.weight", 2, "control module", GIVE_VACE)
        _, _, time, height, wide = shape_of(weights, f"{EMBEDDING}weight", 5, "control module", GIVE_VACE)
        patch = (time, height, wide)
        sizes = WanConfig(dim=width, ffn_dim=inner, num_layers=blocks, num_heads=1, patch_size=patch)
        checkpoint = open_control(file, sizes, "model")
    else:
        checkpoint = open_wan(path, choice_of(ModelOptions(), path))
    label = checkpoint.quantisation.label
    if label != "none":
        raise BadInput(f"{path.name} is quantised already ({label}); give the file in bf16, fp16 or float32")
    return Source(checkpoint=checkpoint, path=path)


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversion:
    """A source and what becomes of it in a format. `device`: where it is computed."""

    source: Source
    form: Format
    device: torch.device

    def __post_init__(self) -> None:
        layout_of(self.form)

    @cached_property
    def groups(self) -> list[Group]:
        """The tensors that each tensor of the source becomes, in order."""
        return [self._becomes(name) for name in self.source.names]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(map(group_bytes, self.groups))

    @property
    def numbers(self) -> int:
        """Numbers in the source."""
        info = self.source.checkpoint.weights.info
        return sum(math.prod(info[name].shape) for name in self.source.names)

    def _becomes(self, name: str) -> Group:
        layer = self.source.layer(name, self.form)
        if layer is None:
            return {name: TensorInfo(self.source.checkpoint.weights.info[name].shape, torch.bfloat16)}
        stored = {layer.names[part]: info for part, info in stored_shapes(layer).items()}
        return stored | {_mark(name): TensorInfo((len(mark_of(layer)),), torch.uint8)}

    def write(self, path: Path, watch: Callable[[int], object]) -> Errors:
        """Write the file and return its errors; an unfinished part of the same is completed.

        `watch`: called with the numbers of each tensor that is done. Raises `BadInput` as `growing_file` does.
        """
        weights = self.source.checkpoint.weights
        errors = Errors()
        with growing_file(path, self.groups, self._metadata()) as file:
            reused = file.done
            for number, name in enumerate(self.source.names):
                layer = self.source.layer(name, self.form)
                if layer is None and number >= reused:
                    file.add({name: self._checked(name).to(torch.bfloat16)})
                elif layer is not None:
                    parts = file.read(number) if number < reused else None
                    made = self._measured(name, errors, parts and {p: parts[n] for p, n in layer.names.items()})
                    if parts is None:
                        mark = torch.tensor(list(mark_of(layer)), dtype=torch.uint8)
                        file.add({layer.names[part]: tensor for part, tensor in made.items()} | {_mark(name): mark})
                watch(math.prod(weights.info[name].shape))
        return errors

    def measure(self, watch: Callable[[int], object]) -> Errors:
        """Return the errors without writing anything."""
        errors = Errors()
        for name in self.source.names:
            if self.source.layer(name, self.form):
                self._measured(name, errors)
            watch(math.prod(self.source.checkpoint.weights.info[name].shape))
        return errors

    def _measured(
        self, name: str, errors: Errors, parts: Mapping[str, Tensor] | None = None
    ) -> Mapping[str, Tensor]:
        """Quantise a weight, unless its `parts` are there, and add its error."""
        weight = self._checked(name).to(self.device)
        layer = self.source.layer(name, self.form)
        assert layer is not None
        if parts is None:
            _, parts = quantise(weight, name, self.form)
        parts = {part: tensor.to(self.device) for part, tensor in parts.items()}
        error = size = 0.0
        rows = max(1, NUMBERS_AT_ONCE // layer.shape[1])
        for first in range(0, layer.shape[0], rows):
            some, parts_of_some = layer.rows(parts, first, rows)
            plain = weight[first : first + rows].float()
            size += float(torch.linalg.vector_norm(plain, dtype=torch.float64) ** 2)
            plain -= some.dequantised(parts_of_some)
            error += float(torch.linalg.vector_norm(plain, dtype=torch.float64) ** 2)
        errors.squares[name] = (error, size)
        return parts

    def _checked(self, name: str) -> Tensor:
        weight = self.source.checkpoint.weights[name]
        if not bool(weight.isfinite().all()):
            raise BadInput(f"{name} in {self.source.path.name} holds NaN or infinity; fetch the file again")
        return weight

    def _metadata(self) -> dict[str, str]:
        weights = self.source.checkpoint.weights
        made_of = {}
        for path in _files_of(weights.path):
            with path.open("rb") as file:
                made_of[path.name] = sha256_of(file)
        stated = {
            "files": made_of,
            "state_dict": weights.state_dict,
            "comfy_kitchen": package_version("comfy-kitchen"),
        }
        return {**weights.metadata, "format": "pt", SOURCE_KEY: json.dumps(stated)}


def _mark(name: str) -> str:
    return f"{name.removesuffix('.weight')}.comfy_quant"


def _files_of(path: Path) -> Sequence[Path]:
    """Return a file, or an index and its shards, which `open_weights` has checked."""
    if path.suffix != ".json":
        return (path,)
    shards = set(parse_json(path.read_bytes())["weight_map"].values())
    return (path, *(path.with_name(shard) for shard in sorted(shards)))
