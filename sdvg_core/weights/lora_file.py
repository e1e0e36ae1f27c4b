"""What the file of a LoRA states: the parts of its changes by layer, and their scale.

Trainers state alpha, rank and rsLoRA in tensors, in the header's metadata, or in PEFT's config beside the file;
docs/loras.md says which one does what. All that is stated must agree; if nothing is, the scale is 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput, first_line
from ..files.small_files import parse_json, read_small
from .names import Rename
from .weight_file import PICKLES, SAFETENSORS, WeightFile

TENSOR_ENDING = re.compile(
    r"[._]lora(?:_linear_layer)?[._](?:(?P<lora_a>up|B)|(?P<lora_b>down|A))"
    r"(?:\.default|(?:\.(?P<adapter>[^.]+))?\.(?:weight|(?P<half_bias>bias)))?$"
    r"|\.(?P<magnitude>dora_layer\.weight|lora_magnitude_vector(?:\.(?P<owner>(?!weight$)[^.]+))?(?:\.weight)?)$"
    r"|\.(?P<other>alpha|dora_scale|(?:hada|lokr)_w[12](?:_[ab])?)$"
    r"|\.(?P<diff>diff|w_norm)$|\.(?P<bias>diff_b|b_norm)$"
    r"|\.(?P<unread>lora_mid\.weight|reshape_weight|set_weight|hada_t1|lokr_t2|oft_blocks|a1\.weight)$"
)
"""Matches the end of a tensor's name: the part of a change. `unread`: kinds that only ComfyUI merges."""
UNREAD_ENDING = "unread"
RANKED = ("lora_b", "hada_w1_b", "lokr_w2_b", "lokr_w1_b")
"""Parts whose number of rows is the rank; the first that exists counts."""
DEFAULT_ADAPTER = "default"
"""PEFT's usual name of an adapter, which files leave out."""
RSLORA = "use_rslora_flag"
FLAGS = (RSLORA, "use_dora_flag")
"""Tensors beside the layers, of forks of kohya's trainers; the second says only that there are magnitudes."""

LoraLayers = Mapping[str, Mapping[str, str]]
"""Name of a layer in the file -> part of its change -> name of the tensor."""


def read_parts(file: WeightFile) -> tuple[LoraLayers, tuple[str, ...]]:
    """Return the parts of a LoRA by layer, and the tensors of no known kind.

    A bias counts as a layer, `LAYER.bias`. Raises `BadInput` for several adapters, or a part that comes twice.
    """
    layers: dict[str, dict[str, str]] = {}
    others: list[str] = []
    adapters: set[str] = set()
    for source in file:
        end = TENSOR_ENDING.search(source)
        if end is None:
            others += [source] if source not in FLAGS else []
            continue
        if end["lora_a"] or end["lora_b"] or end["magnitude"]:
            adapters.add(end["adapter"] or end["owner"] or DEFAULT_ADAPTER)
        layer, part = _layer_and_part(source, end)
        add_part(file, layers.setdefault(layer, {}), layer, part, source)
    if len(adapters) > 1:
        listed = ", ".join(sorted(adapters)[:6])
        raise BadInput(f"{file.path.name} holds {len(adapters)} LoRAs ({listed}); save one in a file of its own")
    return layers, tuple(others)


def add_part(file: WeightFile, parts: dict[str, str], name: str, part: str, source: str) -> None:
    """Add a part to those of one change, called `name`. Raises `BadInput` if it has that part already."""
    other = parts.setdefault(part, source)
    if other != source:
        raise BadInput(f"{file.path.name} changes {name} twice ({other}, {source}); convert it to one change")


def _layer_and_part(source: str, end: re.Match[str]) -> tuple[str, str]:
    layer = source[: end.start()]
    if end["half_bias"]:
        return (f"{layer}.bias", "half_bias") if end["lora_a"] else (layer, UNREAD_ENDING)
    if end["bias"]:
        return f"{layer}.bias", "diff"
    groups = ("lora_a", "lora_b", "magnitude", "diff", UNREAD_ENDING)
    return layer, end["other"] or next(group for group in groups if end[group])


def rank_of(file: WeightFile, parts: Mapping[str, str]) -> int:
    """Return the rank of a change, or 0 for one without halves."""
    shapes = (file.info[parts[part]].shape for part in RANKED if part in parts)
    return next((shape[0] for shape in shapes if shape), 0)


# --- the scale

PEFT_CONFIG = "adapter_config.json"
JSON_KEYS = ("lora_adapter_metadata", "lora_config")
"""Keys of the metadata with PEFT's config as JSON: diffusers', finetrainers'."""
ALPHAS = ("lora_alpha", "network_alpha", "alpha")
COMPONENT = re.compile(r"^(transformer|unet)\.")
"""What diffusers puts before the settings of a pipeline's part."""
UNSTATED_VALUES = (None, "None", "")
LITERAL = re.compile(r"\^?[\w.\\-]+\$?")
NEARLY = 0.01
"""Relative difference of equal scales: alpha may be stored in bfloat16."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one place outside the tensors states. `where`: its name in messages. `rank`: 0 if it states none.

    `root`: rsLoRA, alpha over the root of the rank. `alphas`, `ranks`: of single layers, by the end of a flat name.
    """

    where: str
    alpha: float | None
    rank: int = 0
    root: bool = False
    dora: bool = False
    alphas: Mapping[str, float] = field(default_factory=dict)
    ranks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Stated:
    """All that a file states of its scale. `root`: whether the alpha of a tensor is over the root of the rank."""

    file: WeightFile
    flat_name: Rename
    statements: tuple[Statement, ...]
    root: bool

    def scale(self, layer: str, parts: Mapping[str, str]) -> float:
        """Return the scale of a change. `layer`: any spelling of the name of its layer.

        Raises `BadInput` if two places disagree, or a rank is not the tensors'.
        """
        rank = rank_of(self.file, parts)
        if not rank:
            return 1.0
        flat = self.flat_name(layer)
        scales = {}
        if "alpha" in parts:
            source = parts["alpha"]
            scales[source] = _over(_one_number(self.file, source), rank, root=self.root)
        for statement in self.statements:
            alpha = _of_layer(statement.alphas, flat, statement.alpha)
            stated_rank = _of_layer(statement.ranks, flat, statement.rank)
            if stated_rank and stated_rank != rank:
                stated = f"{statement.where} states {stated_rank:g}"
                fault = f"{self.file.path.name} has rank {rank} in {layer}, and {stated}"
                raise BadInput(f"{fault}; give the config that was saved with the file, or none")
            if alpha is not None:
                scales[statement.where] = _over(alpha, rank, root=statement.root)
        (first, scale), *others = [*scales.items()] or [("", 1.0)]
        for where, other in others:
            if not math.isclose(scale, other, rel_tol=NEARLY):
                several = f"{scale:g} by {first}, {other:g} by {where}"
                fault = f"{self.file.path.name} states two scales for {layer}: {several}"
                raise BadInput(f"{fault}; remove the wrong one")
        return scale


def read_stated(file: WeightFile, flat_name: Rename) -> Stated:
    """Return what a LoRA's file and its config state of the scale.

    `flat_name`: maps all spellings of a layer to one.
    Raises `BadInput` for a statement that cannot be read, or if DoRA is stated and no magnitude is there.
    """
    statements = tuple(_statements(file, flat_name))
    flagged = RSLORA in file and bool(_one_number(file, RSLORA))
    for statement in statements:
        if statement.dora and not any(source.endswith("dora_scale") or "magnitude" in source for source in file):
            fault = f"{statement.where} states DoRA, and {file.path.name} has no magnitudes"
            raise BadInput(f"{fault}; save it again, with all its tensors")
    return Stated(file, flat_name, statements, flagged)


def config_beside(path: Path) -> Path | None:
    """Return PEFT's config of a file: beside a file with PEFT's name, or the only weights in its folder."""
    config = path.parent / PEFT_CONFIG
    if not config.is_file():
        return None
    alone = path.stem == "adapter_model" or [
        other.name for other in path.parent.iterdir() if other.suffix.lower() in (*SAFETENSORS, *PICKLES)
    ] == [path.name]
    return config if alone else None


def _statements(file: WeightFile, flat_name: Rename) -> Iterator[Statement]:
    for key in JSON_KEYS:
        if key in file.metadata:
            where = f"{key} in the header"
            yield _statement(where, _json_object(file.metadata[key], where), flat_name)
    yield _statement("the header", file.metadata, flat_name)
    if config := config_beside(file.path):
        try:
            text = read_small(config)
        except (OSError, ValueError) as error:
            raise BadInput(f"{PEFT_CONFIG} is not read ({first_line(error)}); fetch it again") from error
        yield _statement(PEFT_CONFIG, _json_object(text, PEFT_CONFIG), flat_name)


def _json_object(text: str | bytes, where: str) -> Mapping[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise BadInput(f"{where} is no JSON object ({first_line(error)}); fetch the file again") from error
    if not isinstance(value, dict):
        raise BadInput(f"{where} is no JSON object ({value!r:.60}); fetch the file again")
    return value


def _statement(where: str, settings: Mapping[str, Any], flat_name: Rename) -> Statement:
    values = {COMPONENT.sub("", name): value for name, value in settings.items()}
    values = {name: value for name, value in values.items() if value not in UNSTATED_VALUES}
    alpha = next((values[name] for name in ALPHAS if name in values), None)
    return Statement(
        where,
        alpha=None if alpha is None else _number(alpha, where),
        rank=int(_number(values.get("r", 0), where)),
        root=_is_true(values.get("use_rslora")),
        dora=_is_true(values.get("use_dora")),
        alphas=_pattern(values.get("alpha_pattern"), where, flat_name),
        ranks=_pattern(values.get("rank_pattern"), where, flat_name),
    )


def _pattern(value: Any, where: str, flat_name: Rename) -> dict[str, float]:
    """Return numbers by the flat end of a layer's name.

    PEFT takes the keys for regular expressions, which in a stranger's file could take for ever, so that only names
    are read. Raises `BadInput` for others.
    """
    if not value:
        return {}
    numbers = _json_object(value, where) if isinstance(value, str) else value
    if not isinstance(numbers, dict):
        raise BadInput(f"{where} has the pattern {value!r:.60}, no numbers by layer; fetch the file again")
    odd = next((key for key in numbers if not LITERAL.fullmatch(key)), None)
    if odd is not None:
        raise BadInput(
            f"{where} has the pattern {odd[:60]!r}, which is no layer's name; name the layers one by one"
        )
    plain = {key: key.strip("^$").replace("\\", "") for key in numbers}
    return {flat_name(plain[key]): _number(number, where) for key, number in numbers.items()}


def _of_layer(pattern: Mapping[str, float], flat: str, usual: float | None) -> float | None:
    return next((number for end, number in pattern.items() if flat == end or flat.endswith(f".{end}")), usual)


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{where} states {value!r:.60}, no finite number, as alpha or rank; fetch the file again")
    return number


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1")


def _one_number(file: WeightFile, source: str) -> float:
    tensor = file[source]
    if tensor.numel() != 1 or not bool(tensor.isfinite()):
        raise BadInput(f"{source} in {file.path.name} is no finite number; fetch the file again")
    return float(tensor)


def _over(alpha: float, rank: int, *, root: bool) -> float:
    return alpha / (math.sqrt(rank) if root else rank)
