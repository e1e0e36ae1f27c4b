"""Inspect a weight file: what it is, and whether it would load, without loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ..causal_wan.checkpoint import has_control, inspect_control, inspect_weights
from ..causal_wan.config import namings_of
from ..causal_wan.presets import notes_by_name, preset_by_name, size_preset
from ..decoders.open import open_vae
from ..errors import BadInput, printable
from ..scorers.blip import read_config, used_shapes
from ..settings.execution import AUTO
from ..text.umt5 import open_umt5, prefix_of
from ..weights.model_files import (
    CONTROL_MODULE,
    IMAGE_REWARD,
    LICENCES_READ,
    TAEHV,
    TEXT_ENCODER,
    VAE,
    family_of,
    known_model,
)
from ..weights.pickles import Choice, choice_note
from ..weights.weight_file import WeightFile, first_not_finite, open_weights

INDISTINGUISHABLE = (
    "A causal checkpoint has the same names and shapes as plain Wan 2.1, so nothing here proves that this one was "
    "trained to continue block by block; its publisher can tell."
)
HEADER_READERS: Mapping[str, Callable[[WeightFile], object]] = {
    VAE: lambda file: open_vae(file.path),
    TAEHV: lambda file: open_vae(file.path),
    CONTROL_MODULE: inspect_control,
    TEXT_ENCODER: lambda file: open_umt5(file.path),
    IMAGE_REWARD: lambda file: used_shapes(read_config(file)),
}
"""Kind -> the check that its loader makes before it reads weights."""


def inspect_file(path: Path, *, values: bool = False) -> dict[str, str]:
    """Return the findings about a file, by name; empty where one does not apply.

    `reason` says why it would not load. `values`: also read every tensor, and look for NaN and infinity. Raises
    `BadInput` if it cannot be opened as weights, or if several models share its name.
    """
    preset = preset_by_name(path)
    choice = Choice(likely=preset.weights if preset else AUTO)
    file = open_weights(path, choice)
    dtypes = Counter(str(info.dtype).removeprefix("torch.") for info in file.info.values())
    kind = CONTROL_MODULE if has_control(file) else family_of(file)
    if kind is None and not namings_of(file) and prefix_of(file):
        kind = TEXT_ENCODER
    findings = {
        "file": file.path.name,
        "kind": kind or ("Wan transformer" if namings_of(file) else "unknown"),
        "layout": file.layout,
        "dictionary": file.state_dict,
        "dictionaries": ", ".join(file.state_dicts),
        "size": "",
        "parameters": f"{sum(math.prod(info.shape) for info in file.info.values()):,}",
        "dtypes": ", ".join(f"{number} {dtype}" for dtype, number in dtypes.most_common()),
        "quantisation": "",
        "would load": "yes",
        "reason": "",
        "values": "all finite" if values else "not read (--values reads them, and looks for NaN and infinity)",
        "preset": "",
        "model": "",
        "notes": "",
    }
    try:
        if set(file.info) == {"latents"}:
            findings["kind"] = "latents of a video"
            raise BadInput("these are no weights; give them to generate --continue-from")
        if kind and kind in HEADER_READERS:
            HEADER_READERS[kind](file)
        else:
            findings |= _of_transformer(file, path, choice)
        bad = first_not_finite(file, fp8=True) if values else None
        if bad is not None:
            raise BadInput(f"{printable(bad)} holds NaN or infinity, which no run takes; fetch the file again")
    except BadInput as refusal:
        findings |= {"would load": "no", "reason": str(refusal), "values": ""}
    return findings


def _of_transformer(file: WeightFile, path: Path, choice: Choice) -> dict[str, str]:
    checkpoint = inspect_weights(file)
    config = checkpoint.config
    known = known_model(path)
    taken = choice_note(file.path.name, file.state_dict, file.state_dicts, choice)
    notes = (INDISTINGUISHABLE, *filter(None, [taken]), *notes_by_name(path, config, stated=False))
    packed = checkpoint.quantisation.layers  # in which a byte may hold two numbers
    return {
        **({"parameters": f"{config.parameters:,}"} if packed else {}),
        "kind": "causal Wan 2.1 transformer",
        "quantisation": checkpoint.quantisation.label,
        "size": f"{config.size}: {config.num_layers} blocks, width {config.dim}, {config.num_heads} heads",
        "preset": (known.preset if known else size_preset(config)) or "",
        "model": f"{known.name}; {known.licence} (read {LICENCES_READ})" if known else "",
        "notes": "\n             ".join(notes),
    }
