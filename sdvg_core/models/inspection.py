"""Inspect a weight file: what it is, and whether it would load, without loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..causal_wan.checkpoint import has_control, inspect_control, inspect_weights
from ..causal_wan.config import WanConfig, key_styles
from ..causal_wan.presets import notes_by_name, preset_by_name, size_preset
from ..checkpoints.model_files import CONTROL, IMAGE_REWARD, READ, TAEHV, TEXT_ENCODER, VAE, family_of, known_model
from ..checkpoints.pickles import Choice, note_on
from ..checkpoints.weights import WeightFile, first_not_finite, open_weights
from ..decoders.open import open_vae
from ..devices.execution import AUTO
from ..errors import BadInput, printable
from ..scorers.blip import read_config, used_shapes
from ..text.umt5 import open_umt5

INDISTINGUISHABLE = (
    "A causal checkpoint has the same names and shapes as plain Wan 2.1, so nothing here proves that this one was "
    "trained to continue block by block; its publisher can tell."
)
LOADERS: Mapping[str, Callable[[WeightFile], object]] = {
    VAE: lambda file: open_vae(file.path),
    TAEHV: lambda file: open_vae(file.path),
    CONTROL: inspect_control,
    TEXT_ENCODER: lambda file: open_umt5(file.path),
    IMAGE_REWARD: lambda file: used_shapes(read_config(file)),
}
"""Kind -> the check that its loader makes before it reads weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The findings about one file; fields that do not apply are empty.

    `dtypes`: stored dtype -> number of tensors. `dictionary`: the inspected one of `dictionaries`, taken by
    default. `config`, `preset`: None unless it would load. `reason`: why it would not load. `values`: whether
    values were read, and the result. `model`: the known model with this file name, and its licence.
    """

    file: str
    kind: str
    layout: str = ""
    dictionary: str = ""
    dictionaries: tuple[str, ...] = ()
    size: str = ""
    parameters: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    quantisation: str = ""
    would_load: bool
    reason: str = ""
    values: str = ""
    config: WanConfig | None = None
    preset: str | None = None
    model: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one finding per line."""
        shown = {
            **asdict(self),
            "dictionaries": ", ".join(self.dictionaries),
            "parameters": f"{self.parameters:,}" if self.parameters else "",
            "dtypes": ", ".join(f"{number} {dtype}" for dtype, number in self.dtypes.items()),
            "would_load": "yes" if self.would_load else "no",
            "notes": "\n             ".join(self.notes),
        }
        del shown["config"], shown["dictionary"]
        return "\n".join(f"{name.replace('_', ' '):<13}{value}" for name, value in shown.items() if value)


def inspect_file(path: Path, *, values: bool = False) -> Inspection:
    """Inspect a file. `values`: also read every tensor, and look for NaN and infinity.

    Raises `BadInput` if it cannot be opened as weights, or if several models share its name.
    """
    preset = preset_by_name(path)
    choice = Choice(likely=preset.weights if preset else AUTO)
    file = open_weights(path, choice)
    dtypes = Counter(str(info.dtype).removeprefix("torch.") for info in file.info.values())
    kind = CONTROL if has_control(file) else family_of(file)
    result = Inspection(
        file=file.path.name,
        kind=kind or ("Wan transformer" if key_styles(file) else "unknown"),
        layout=file.layout,
        dictionary=file.state_dict,
        dictionaries=file.state_dicts,
        parameters=sum(math.prod(info.shape) for info in file.info.values()),
        dtypes=dict(dtypes.most_common()),
        would_load=True,
        values="all finite" if values else "not read (--values reads them, and looks for NaN and infinity)",
    )
    try:
        if set(file.info) == {"latents"}:
            result = replace(result, kind="latents of a video")
            raise BadInput("these are no weights; give them to generate --continue-from")
        if kind and kind in LOADERS:
            LOADERS[kind](file)
        else:
            result = replace(result, **_of_transformer(file, path, choice))
        bad = first_not_finite(file, fp8=True) if values else None
        if bad is not None:
            raise BadInput(f"{printable(bad)} holds NaN or infinity, which no run takes; fetch the file again")
    except BadInput as refusal:
        return replace(result, would_load=False, reason=str(refusal), values="")
    return result


def _of_transformer(file: WeightFile, path: Path, choice: Choice) -> dict[str, Any]:
    """Return the findings about a transformer. Raises `BadInput` if it would not load."""
    checkpoint = inspect_weights(file)
    config = checkpoint.config
    known = known_model(path)
    taken = note_on(file.path.name, file.state_dict, file.state_dicts, choice)
    return {
        "kind": "causal Wan 2.1 transformer",
        "quantisation": checkpoint.quantisation.label,
        "size": f"{config.size}: {config.num_layers} blocks, width {config.dim}, {config.num_heads} heads",
        "config": config,
        "preset": known.preset if known else size_preset(config),
        "model": f"{known.name}; {known.licence} (read {READ})" if known else "",
        "notes": (INDISTINGUISHABLE, *filter(None, [taken]), *notes_by_name(path, config, stated=False)),
    }
