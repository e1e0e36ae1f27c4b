"""Say what a weight file is, and whether it would load as that part of a run, without loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..causal_wan.checkpoint import inspect_weights
from ..causal_wan.config import WanConfig
from ..causal_wan.control_files import has_control, inspect_control
from ..causal_wan.names import key_styles
from ..causal_wan.presets import Preset, notes_by_name, preset_by_name, size_preset
from ..causal_wan.refusals import (
    CONTROL,
    IMAGE_REWARD,
    OTHER_WAN,
    TAEHV,
    TEXT_ENCODER,
    TRANSFORMER,
    UNKNOWN,
    VAE,
    other_kind,
)
from ..checkpoints.known_models import row_of
from ..checkpoints.state_dicts import Choice, note_on
from ..checkpoints.weights import WeightFile, first_not_finite, open_weights
from ..decoders import TAE_KINDS
from ..decoders.open import LIGHT_BASE
from ..decoders.taehv import find_taehv, recognised_kind
from ..decoders.wan_vae import open_wan_vae
from ..devices.execution import AUTO
from ..errors import BadInput, printable
from ..files.footage import count_frames
from ..files.outputs import REPORT
from ..files.pictures import pictures_in
from ..report.run_report import read_report
from ..report.summary import count, summarise
from ..scorers.blip import read_config, used_shapes
from ..text.umt5 import open_umt5
from .latents import KEY, METADATA, load_latents

OF_REPORT = "report of a video"
INDISTINGUISHABLE = (
    "A causal checkpoint has the same names and shapes as plain Wan 2.1, so nothing here proves that this one was "
    "trained to continue block by block; its publisher can tell."
)
# On UCF-101, as published with Flash-VAED (arXiv 2602.19161).
LIGHT_VAE = (
    "The widths are those of LightVAE (lightvaew2_1), a quarter of Wan 2.1's: it loads as a Wan VAE. Its published "
    "quality is 32.61 dB and LPIPS 0.0892, against 40.40 dB and 0.0190."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found in one file.

    `layout`, `key_style`, `quantisation`, `size`: in words, empty if they do not apply. `dtypes`: stored dtype ->
    number of tensors. `dictionary`: the one of `dictionaries` that was inspected, and that is taken by default.
    `model`, `licence`: of the known model with this file name, empty if it is unknown. `config`,
    `preset`: None unless it would load. `reason`: why it would not load. `notes`: what else a reader must know.
    `values`: whether they were read, and what was found.
    """

    file: str
    kind: str
    layout: str = ""
    parameters: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    would_load: bool
    key_style: str = ""
    quantisation: str = ""
    size: str = ""
    config: WanConfig | None = None
    preset: str | None = None
    reason: str = ""
    unused: tuple[str, ...] = ()
    dictionary: str = ""
    dictionaries: tuple[str, ...] = ()
    model: str = ""
    licence: str = ""
    notes: tuple[str, ...] = ()
    values: str = ""

    def __str__(self) -> str:
        """Return it for people, one finding per line."""
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in self.dtypes.items())
        unused = ", ".join(self.unused[:3]) + (f" and {len(self.unused) - 3} more" if self.unused[3:] else "")
        lines = [
            ("file", self.file),
            ("kind", self.kind),
            ("layout", self.layout),
            ("dictionaries", ", ".join(self.dictionaries)),
            ("names", self.key_style),
            ("size", self.size),
            ("numbers", f"{self.parameters:,}" if self.parameters else ""),
            ("tensors", dtypes),
            ("quantised", self.quantisation),
            ("unused", unused),
            ("would load", "yes" if self.would_load else f"no: {self.reason}"),
            ("values", self.values),
            ("preset", f"{self.preset} (by its {'name' if self.model else 'size'})" if self.preset else ""),
            ("model", self.model),
            ("licence", self.licence),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join(f"{label:<13}{value}" for label, value in lines if value)


CLIPS = (".mp4", ".webm", ".mov", ".mkv", ".avi", ".m4v")
"""Videos by their names; a clip to extend may have any other name too."""
NOT_READ = "not read; NaN or infinity in them would be refused when it is loaded (inspect --values looks)"


def inspect_file(path: Path, *, values: bool = False) -> Inspection:
    """Say what a file is. `values`: also read every tensor, and look for NaN and infinity.

    Raises `BadInput` if it cannot be opened as weights at all.
    """
    if written := _written(path):
        return written
    shared: tuple[str, ...] = ()
    try:
        by_name = preset_by_name(path)
    except BadInput as ambiguous:
        by_name, shared = None, (str(ambiguous),)
    choice = Choice(likely=by_name.weights if by_name else AUTO)
    file = open_weights(path, choice)
    found = _inspect_header(file, path, choice, by_name, shared)
    if not found.would_load:
        return found
    if not values:
        return replace(found, values=NOT_READ)
    bad = first_not_finite(file, fp8=True)
    if bad is None:
        return replace(found, values="all finite")
    reason = f"weights must be finite, but {printable(bad)} holds NaN or infinity; fetch the file again"
    return replace(found, would_load=False, reason=reason, values="not all finite")


def _written(path: Path) -> Inspection | None:
    """Return what a file of a finished video is; None for any other. Raises `BadInput` if it is damaged."""
    path = path / REPORT if (path / REPORT).is_file() else path
    ours = partial(Inspection, file=path.name, would_load=True)
    if path.suffix.lower() == ".json" and not path.name.endswith(".index.json"):
        report = read_report(path)
        notes = (*map(printable, summarise(report).splitlines()), f"generate --from {path} makes this video again.")
        return ours(kind=OF_REPORT, notes=notes)
    if pictures_in(path) or (path.suffix.lower() in CLIPS and path.is_file()):
        notes = (f"generate --continue-from {path} extends it, and --restyle {path} makes it anew by a prompt.",)
        size = f"{count(count_frames(path), 'pixel frame')} at 16 a second"
        return ours(kind="video or pictures", size=size, notes=notes)
    if path.suffix.lower() != ".safetensors" or METADATA not in (file := open_weights(path)).metadata:
        return None
    if KEY not in file:
        notes = ("generate --reuse with its folder takes blocks from it.",)
        return ours(kind="blocks of a video", size=f"{len(file)} results", notes=notes)
    saved = load_latents(path)
    _, _, frames, height, width = saved.latents.shape
    noted = ", ".join(f"{name} {saved.metadata[name]}" for name in ("seed", "fps") if name in saved.metadata)
    size = f"{count(frames, 'latent frame')} of {width}x{height}" + (f", {printable(noted):.80}" if noted else "")
    notes = (f"generate --continue-from {path} continues the video.",)
    return ours(kind="latents of a video", size=size, notes=notes)


def _inspect_header(
    file: WeightFile, path: Path, choice: Choice, by_name: Preset | None, shared: tuple[str, ...]
) -> Inspection:
    dtypes = Counter(str(info.dtype).removeprefix("torch.") for info in file.info.values())
    common: dict[str, Any] = {
        "file": file.path.name,
        "layout": file.layout,
        "parameters": sum(math.prod(info.shape) for info in file.info.values()),
        "dtypes": dict(dtypes.most_common()),
        "dictionary": file.state_dict,
        "dictionaries": file.state_dicts,
    }
    kind = _kind(file)
    try:
        if kind in OTHER_PARTS:
            return Inspection(kind=kind, would_load=True, **OTHER_PARTS[kind](file), **common)
        found = inspect_weights(file)
    except BadInput as refusal:
        return Inspection(kind=kind, would_load=False, reason=str(refusal), **common)
    config, known = found.config, row_of(path)
    taken = note_on(file.path.name, file.state_dict, file.state_dicts, choice)
    of_name = (*shared, *notes_by_name(path, config, stated=False))
    return Inspection(
        kind=TRANSFORMER,
        would_load=True,
        key_style=found.key_style,
        quantisation=found.quantisation.label,
        size=f"{config.size}: {config.num_layers} blocks, width {config.dim}, {config.num_heads} heads",
        config=config,
        preset=None if shared else by_name.name if by_name else size_preset(config),
        model=known.name if known else "",
        licence=f"{known.licence} (read {known.read})" if known else "",
        unused=found.unused,
        notes=(INDISTINGUISHABLE, *([taken] if taken else []), *of_name),
        **common,
    )


def _inspect_vae(file: WeightFile) -> dict[str, Any]:
    _, sizes = open_wan_vae(file.path)
    return {"notes": (LIGHT_VAE,) if sizes["base_dim"] == sizes["decoder_base_dim"] == LIGHT_BASE else ()}


def _inspect_taehv(file: WeightFile) -> dict[str, Any]:
    _, net = find_taehv(file)
    kind, why = recognised_kind(file.path)
    widths = ", ".join(map(str, net.widths))
    unknown = f"The kind must be stated, because nothing here tells it: --tae-kind {' or '.join(TAE_KINDS)}."
    return {
        "size": f"widths {widths}; {'with its encoder' if net.encoder else 'the decoder alone'}",
        "notes": (f"It is taken for {kind} by its {why}." if kind else unknown,),
    }


def _inspect_control(file: WeightFile) -> dict[str, Any]:
    weights, width, blocks = inspect_control(file)
    used = set(weights.names.values())
    return {
        "size": f"{count(blocks, 'control block')}, width {width}",
        "unused": tuple(name for name in file if name not in used),
        "notes": ("generate --control obeys with it; --control-modules names it, for the models of its width.",),
    }


def _inspect_text_encoder(file: WeightFile) -> dict[str, Any]:
    open_umt5(file.path)
    return {}


def _inspect_reward(file: WeightFile) -> dict[str, Any]:
    used = used_shapes(read_config(file))
    return {"unused": tuple(name for name in file if name not in used)}


# For each other part, the check its loader makes before it reads a weight, and what else it finds out.
OTHER_PARTS: Mapping[str, Callable[[WeightFile], dict[str, Any]]] = {
    VAE: _inspect_vae,
    TAEHV: _inspect_taehv,
    CONTROL: _inspect_control,
    TEXT_ENCODER: _inspect_text_encoder,
    IMAGE_REWARD: _inspect_reward,
}


def _kind(file: WeightFile) -> str:
    kind = CONTROL if has_control(file) else other_kind(file)
    return OTHER_WAN if kind == UNKNOWN and key_styles(file) else kind
