"""Headers and cache keys of a run's models, and every check of files and options that needs no weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch

from ..causal_wan.attention import choose_attention
from ..causal_wan.checkpoint import (
    GIVE_VACE,
    WanFile,
    WanHeader,
    find_lora,
    inspect_control,
    open_control,
    open_wan,
)
from ..causal_wan.config import linear_weights
from ..causal_wan.presets import choice_of, chosen_preset, notes_by_name
from ..decoders.open import VaeFile, VaeHeader, open_vae
from ..devices.compiling import check_compile
from ..devices.device import DTYPES, arithmetic_on, check_device, side_device
from ..engine.plan import Roles
from ..engine.reuse import PartKeys
from ..errors import BadInput
from ..scorers.image_reward import find_vocabulary
from ..settings.context import Recompute
from ..settings.execution import AUTO
from ..settings.fields import settings_for
from ..settings.load import LoadOptions, ModelOptions
from ..weights.lora import NO_SUCH_LAYER, Lora, OtherModel, note_on_left_out
from ..weights.lora_beside import beside, change_in_steps
from ..weights.model_files import ModelFiles
from ..weights.pickles import choice_note
from ..weights.quantized import FP8
from ..weights.weight_file import open_weights

# Of larger files, which would take seconds, only evenly spread pieces are hashed: further training changes them
# all. Other changes to a transformer or a scorer are found after loading (`weight_digest`).
HASHED_WHOLE = 1 << 29
BYTES_AT_ONCE = 1 << 22
PIECES = 64
PIECE_BYTES = 1 << 16


def file_part_keys(files: ModelFiles, load: LoadOptions, models: Mapping[str, WanFile]) -> PartKeys:
    """Return the keys of a run's parts: files, settings and arithmetic. `models`: the run's, by role."""
    arithmetic = arithmetic_on(check_device(load.device))
    side_arithmetic = arithmetic_on(side_device(load))

    def asked(part: str) -> dict[str, Any]:
        return settings_for(part, load) | settings_for(part, load.execution)

    def model(role: str) -> str:
        path: Path | None = getattr(files, role)
        if path is None or role not in models:
            return ""
        header = models[role]
        stated = repr((header.checkpoint.weights.state_dict, header.preset.key))
        changed: list[Any] = [
            (
                fingerprint(lora.file.path),
                lora.strength,
                sorted({change.scale for change in lora.changes.values()}),
                *(("beside",) if lora.beside else ()),
            )
            for lora in header.loras
        ]
        if control := header.control:
            changed.append((fingerprint(control.weights.path), "control"))
        return repr((fingerprint(path), stated, asked(role), arithmetic, *changed))

    scorer = ""
    if files.reward:
        read = fingerprint(files.reward), fingerprint(find_vocabulary(files.reward, files.vocabulary))
        scorer = repr((*read, asked("scorer") | {"reward_dtype": load.scorer_dtype}, side_arithmetic))
    return PartKeys(
        drafter=model("drafter"),
        target=model("target"),
        codec=repr((fingerprint(files.vae), asked("codec"), side_arithmetic)),
        scorer=scorer,
    )


def fingerprint(path: Path) -> str:
    """Return a hash of a file, or of all files in the folder for a folder or an index."""
    if path.is_file() and not path.name.endswith(".index.json"):
        return _of_file(path)
    folder = path if path.is_dir() else path.parent
    parts = sorted(f"{inner.name} {_of_file(inner)}" for inner in folder.iterdir() if inner.is_file())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    status = path.stat()
    return _of_contents(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=256)
def _of_contents(path: Path, size: int, *written: int) -> str:
    """Return the hash of a file, memoised until its size or `written` (time, inode) changes."""
    piece, step = (BYTES_AT_ONCE, BYTES_AT_ONCE) if size <= HASHED_WHOLE else (PIECE_BYTES, size // PIECES)
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(piece))
    return digest.hexdigest()


def named(path: Path | None) -> str:
    """Return a file's name with the first digits of its fingerprint."""
    if path is None:
        return "none"
    return f"{path.name} {fingerprint(path)[:12] if path.exists() else 'missing'}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Headers:
    """The headers of a run's models, of files or of ComfyUI. `models`: by role, the target first."""

    models: Mapping[str, WanHeader]
    vae: VaeHeader
    scorer: bool = True

    @property
    def one_model(self) -> bool:
        """True if drafter and target have the same weights, loaded once; two state dicts of a file differ."""
        return len({model.weights for model in self.models.values()}) < len(self.models)

    @property
    def swapped_note(self) -> tuple[str, ...]:
        """A note if the drafter has more weights than the target."""
        drafter = self.shape("drafter").config
        target = self.shape("target").config
        fault = f"The drafter ({drafter.size}) has more weights than the target ({target.size})"
        note = f"{fault}, so drafting costs more than it can save; swap the two if that was not meant."
        return (note,) if drafter.parameters > target.parameters else ()

    def restrict_to(self, needed: Roles) -> Self:
        """Return the headers without models that a run does not need."""
        models = {role: model for role, model in self.models.items() if role in needed}
        return replace(self, models=models, scorer=self.scorer and "scorer" in needed)

    def shape(self, role: str) -> WanHeader:
        """Return the header of a role; that of the other model if it is missing."""
        return self.models.get(role, next(iter(self.models.values())))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileHeaders(Headers):
    """The headers of models that are loaded from files."""

    models: Mapping[str, WanFile]
    vae: VaeFile


def check_models(files: ModelFiles, options: LoadOptions) -> FileHeaders:
    """Read the headers of files. Raises `BadInput` if models cannot be loaded with these options."""
    device = check_device(options.device)
    if options.target.draft_steps is not None:
        raise BadInput("draft_steps is for the drafter; leave it out of the target's settings")
    check_compile(options.execution.compile, device)
    options_of = {"target": (files.target, options.target), "drafter": (files.drafter, options.drafter)}
    models = {
        role: _check_wan(role, path, model, options, device)
        for role, (path, model) in options_of.items()
        if path is not None
    }
    models = _with_controls(_with_loras(models, options), files.controls)
    vae = open_vae(files.vae, tae_kind=options.tae_kind)
    return FileHeaders(models=models, vae=vae, scorer=files.reward is not None)


def check_encoder(headers: Headers, *needs: str) -> None:
    """Raise `BadInput` if a run must encode pixels and its VAE has no encoder.

    `headers`: of the run's models. `needs`: inputs to encode, in addition to contexts, such as "the start image".
    """
    contexts = [
        f"the {role}'s context" for role, m in headers.models.items() if isinstance(m.preset.context, Recompute)
    ]
    if not headers.vae.encodes and (needs or contexts):
        need = (*needs, *contexts)[0]
        raise BadInput(f"the VAE has no encoder, which {need} needs; give the Wan 2.1 VAE, or a whole TAEHV")


def _check_wan(role: str, path: Path, model: ModelOptions, options: LoadOptions, device: torch.device) -> WanFile:
    choice = choice_of(model, path)
    checkpoint = open_wan(path, choice)
    if role == "target" and options.weight_dtype != "default" and checkpoint.quantisation.layers:
        fault = f"{path.name} is {checkpoint.quantisation.label} already"
        raise BadInput(f"{fault}, which {options.weight_dtype} does not round; leave --weight-dtype out")
    if options.dtype:
        checkpoint = replace(checkpoint, dtype=DTYPES[options.dtype])
    file = checkpoint.weights
    notes = [choice_note(file.path.name, file.state_dict, file.state_dicts, choice)]
    if unused := ", ".join(checkpoint.unused[:3]):
        notes.append(f"Beside the transformer, {file.path.name} has tensors that are not used: {unused}.")
    notes += notes_by_name(file.path, checkpoint.config, stated=model.preset != AUTO)
    return WanFile(
        name=role,
        config=checkpoint.config,
        preset=chosen_preset(model, file.path, checkpoint.config, options.schedule),
        weights=(file.path.resolve(), file.state_dict),
        notes=tuple(filter(None, notes)),
        checkpoint=checkpoint,
        attention=choose_attention(
            options.execution.attention,
            device=device,
            dtype=checkpoint.dtype,
            head_dim=checkpoint.config.head_dim,
        ),
    )


def _with_controls(models: Mapping[str, WanFile], files: Iterable[Path]) -> dict[str, WanFile]:
    """Add each control module to the models of its width. Raises `BadInput` if no module fits."""
    changed = dict(models)
    unfit = []
    for path in files:
        file = open_weights(path)
        _, width, _ = inspect_control(file)
        fitting = [role for role, model in models.items() if model.config.dim == width]
        for role in fitting:
            control = open_control(file, models[role].config, role)
            changed[role] = replace(changed[role], control=control, control_blocks=control.blocks)
        unfit += [] if fitting else [f"{path.name} is for a width of {width}, which no model has"]
    if unfit and not any(model.control for model in changed.values()):
        raise BadInput(f"{unfit[0]}; {GIVE_VACE}")
    return changed


def _with_loras(models: Mapping[str, WanFile], options: LoadOptions) -> dict[str, WanFile]:
    """Add each LoRA to the models that it fits, and notes to those that lack it or ignore a part of it.

    Raises `BadInput` for a LoRA that fits no model.
    """
    changed = dict(models)
    for text in options.loras:
        fitting: dict[str, Lora] = {}
        problems: list[OtherModel] = []
        for role, model in models.items():
            try:
                lora = find_lora(text, model.checkpoint)
                fitting[role] = (
                    beside(lora, linear_weights(model.config)) if options.lora_mode == "beside" else lora
                )
            except OtherModel as problem:
                problems.append(problem)
        if not fitting:
            raise problems[0]
        fewest = min(len(lora.unused) for lora in fitting.values())
        fitting = {role: lora for role, lora in fitting.items() if len(lora.unused) == fewest}
        for role, model in changed.items():
            if role in fitting:
                lora = fitting[role]
                notes = (*model.notes, *_notes_on_lora(role, model, lora))
                changed[role] = replace(model, loras=(*model.loras, lora), notes=notes)
            else:
                only, lora = next(iter(fitting.items()))
                note = f"The LoRA {lora} fits only the {only}: what the {role} makes lacks it."
                changed[role] = replace(model, notes=(*model.notes, note))
    return changed


def _notes_on_lora(role: str, model: WanFile, lora: Lora) -> Iterator[str]:
    if lora.unused:
        yield note_on_left_out(role, str(lora), lora.unused, NO_SUCH_LAYER)
    if lora.inert:
        yield f"The LoRA {lora} changes nothing in the {role}: its numbers or its strength are zero."
    layers = model.checkpoint.quantisation.layers
    if (steps := change_in_steps(lora, layers, model.checkpoint.weights)) is not None:
        form = model.checkpoint.quantisation.label
        change = (
            f"The LoRA {lora} changes the {role}'s {form} weights by {steps:.2g} of a step, which are rounded by"
        )
        yield f"{change} chance again; below 1 that is mostly noise, and --lora-mode beside adds none."
    if any(model.checkpoint.weights.info[name].dtype in FP8 for name in lora.changes.keys() - lora.beside):
        yield f"The {role}'s weights are in fp8: those that the LoRA {lora} changes are rounded to fp8 again."
