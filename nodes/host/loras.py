"""Notes on LoRAs of ComfyUI's own loaders: what their files state and ComfyUI does not read.

ComfyUI takes alpha from tensors alone, neither from the header nor from a config beside the file, and knows fewer
spellings of names. The loaders upstream of a sampler are found in the prompt in API form, which holds no bypassed
ones. What the loaders of other packs do is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import comfy.lora
import comfy.lora_convert
import folder_paths
import torch
from comfy.model_patcher import ModelPatcher

import nodes as host_nodes

from ...sdvg_core.causal_wan.config import flat_name, wan_shapes
from ...sdvg_core.engine.types import NotFinite
from ...sdvg_core.errors import BadInput, count
from ...sdvg_core.weights.lora import NO_SUCH_LAYER, Reach, note_on_left_out, reach_of, why_inert
from ...sdvg_core.weights.lora_file import LoraLayers, rank_of, read_parts, read_stated
from ...sdvg_core.weights.weight_file import WeightFile, first_not_finite, open_weights
from .model import config_of, form_of

LOADERS = ("LoraLoader", "LoraLoaderModelOnly", "LoraLoaderBypass", "LoraLoaderBypassModelOnly")
NOT_READ = "ComfyUI does not read"


@dataclass(frozen=True, slots=True)
class Loader:
    """A LoRA loader upstream. `strength`: None if it comes over a wire. `bypass`: it adds beside the weights."""

    name: str
    strength: float | None
    bypass: bool = False


def notes_on_loras(
    prompt: Any, node_id: str | None, patchers: Mapping[str, ModelPatcher]
) -> dict[str, tuple[str, ...]]:
    """Return notes on the LoRAs of each MODEL, and on a MODEL that lacks those of the other.

    `prompt`: in API form; `node_id`: of the sampler; `patchers`: by its inputs.
    """
    notes: dict[str, list[str]] = {role: [] for role in patchers}
    active: dict[str, list[Loader]] = {role: [] for role in patchers}
    for role, patcher in patchers.items():
        for loader in _loaders_of(prompt, node_id, role):
            inert, unread = _examine(role, loader, patcher)
            if inert:
                notes[role].append(f"The LoRA {loader.name} changes nothing in the {role}: {inert}.")
            else:
                active[role].append(loader)
            notes[role] += unread
        notes[role] += _note_on_rounding(role, patcher, active[role])
    for role, other in permutations(patchers, 2):
        if active[other] and not active[role]:
            names = ", ".join(loader.name for loader in active[other])
            notes[role].append(f"LoRAs are on the {other} alone ({names}): what the {role} makes lacks them.")
    return {role: tuple(sentences) for role, sentences in notes.items()}


def _note_on_rounding(role: str, patcher: ModelPatcher, loaders: Sequence[Loader]) -> Iterator[str]:
    """Yield a note if LoRAs are merged into weights of 8 or 4 bits."""
    forms = {form for weight in patcher.model.parameters() if (form := form_of(weight))}
    if forms and not all(loader.bypass for loader in loaders):
        fault = f"The {role} is {' and '.join(sorted(forms))}: ComfyUI rounds what a LoRA changes by chance"
        yield f"{fault}, but not in layers that are copied over; its bypass loader adds beside the weights."


def _loaders_of(prompt: Any, node_id: str | None, role: str) -> list[Loader]:
    """Return the loaders upstream of an input of the sampler, without those of strength 0."""
    try:
        loaders = list(loaders_upstream(prompt, prompt[node_id]["inputs"].get(role)))
    except (KeyError, TypeError, AttributeError):
        return []  # nobody's prompt: a node that another one expanded into
    return [loader for loader in loaders if loader.strength != 0]


@contextmanager
def naming_loras(prompt: Any, node_id: str | None) -> Iterator[None]:
    """Have a refusal for NaN name the LoRAs on the model that made it, and a tensor of theirs that has NaN.

    Their tensors are read only then.
    """
    try:
        yield
    except NotFinite as problem:
        loaders = _loaders_of(prompt, node_id, problem.model)
        if not loaders:
            raise
        for loader in loaders:
            if bad := _first_bad_tensor(loader):
                raise BadInput(
                    f"{problem.fault}, as has {bad} in {loader.name}; fetch that LoRA again"
                ) from problem
        names = ", ".join(loader.name for loader in loaders)
        remedy = f"check that model's file and its LoRAs ({names}), or try bfloat16 or float32"
        raise BadInput(f"{problem.fault}; {remedy}") from problem


def _first_bad_tensor(loader: Loader) -> str | None:
    """Return the first tensor of a LoRA's file with NaN or infinity, if the file can be read."""
    path = folder_paths.get_full_path("loras", loader.name)
    try:
        return first_not_finite(open_weights(path), fp8=True) if path else None
    except BadInput:
        return None


def loaders_upstream(prompt: Mapping[str, Any], wire: Any) -> Iterator[Loader]:
    """Yield the core LoRA loaders whose MODEL reaches a wire, the nearest first."""
    waiting = [wire]
    seen = set()
    while waiting:
        wire = waiting.pop(0)
        if not _is_model(prompt, wire) or wire[0] in seen:
            continue
        seen.add(wire[0])
        node = prompt[wire[0]]
        inputs = node["inputs"]
        if node["class_type"] in LOADERS and isinstance(inputs.get("lora_name"), str):
            strength = inputs.get("strength_model")
            stated = float(strength) if isinstance(strength, int | float) else None
            yield Loader(inputs["lora_name"], stated, "Bypass" in node["class_type"])
        waiting += inputs.values()


def _is_model(prompt: Mapping[str, Any], wire: Any) -> bool:
    if not isinstance(wire, list) or len(wire) != 2 or wire[0] not in prompt:
        return False
    node_class = host_nodes.NODE_CLASS_MAPPINGS.get(prompt[wire[0]]["class_type"])
    return node_class is None or node_class.RETURN_TYPES[wire[1]] in ("MODEL", "*")


def _examine(role: str, loader: Loader, patcher: ModelPatcher) -> tuple[str, tuple[str, ...]]:
    """Return why a LoRA changes nothing in a MODEL, or nothing, and notes on what ComfyUI does not read of it."""
    path = folder_paths.get_full_path("loras", loader.name)
    if path is None:
        return "", ()
    try:
        file = open_weights(path)
        layers, _ = read_parts(file)
        reach = reach_of(file, layers, wan_shapes(config_of(patcher.model.diffusion_model)), flat_name)
        patched = _patched_by(file, reach, patcher)
        if not patched and not reach.incomplete:
            return "ComfyUI knows none of its names", ()
        unknown = [
            source for name, parts in reach.changes.items() if name not in patched for source in parts.values()
        ]
        reach = replace(reach, changes={name: reach.changes[name] for name in reach.changes if name in patched})
        if inert := why_inert(file, reach):
            return inert, ()
        notes = tuple(_notes_on_reach(role, loader, reach, unknown))
        notes += tuple(_note_on_scale(loader, file, layers))
        if any("magnitude" in parts for parts in layers.values()):
            notes += (
                f"The LoRA {loader.name} is a DoRA with magnitudes that {NOT_READ}: it is merged without them.",
            )
        return "", notes
    except BadInput as problem:
        return "", (f"The LoRA {loader.name} states what {NOT_READ}, or cannot be read: {problem}.",)


def _patched_by(file: WeightFile, reach: Reach, patcher: ModelPatcher) -> frozenset[str]:
    """Return the names of a MODEL's weights that ComfyUI patches by a LoRA, as it says itself.

    It is asked with names and shapes alone, and without what is incomplete, at some of which its loader fails.
    """
    incomplete = {source for parts in reach.incomplete.values() for source in parts.values()}
    zero = torch.zeros(())
    tensors = {name: zero.expand(info.shape) for name, info in file.info.items() if name not in incomplete}
    known = comfy.lora.model_lora_keys_unet(patcher.model, {})
    patches = comfy.lora.load_lora(comfy.lora_convert.convert_lora(tensors), known, log_missing=False)
    return frozenset(name.removeprefix("diffusion_model.") for name in patches)


def _notes_on_reach(role: str, loader: Loader, reach: Reach, unknown: Sequence[str]) -> Iterator[str]:
    """Yield notes on parts of a LoRA without effect. `unknown`: tensors whose names ComfyUI does not know."""
    if left_out := (*reach.absent, *reach.misfits):
        yield note_on_left_out(role, loader.name, left_out, NO_SUCH_LAYER)
    if unknown:
        yield note_on_left_out(role, loader.name, unknown, "ComfyUI does not know their names")
    if reach.incomplete:
        layers = f"{count(len(reach.incomplete), 'layer')} of the LoRA {loader.name}"
        fault = f"a half is missing, the first beside {reach.lone_part:.80}"
        yield f"The {role} takes nothing from {layers}: {fault}; fetch the file again."


def _note_on_scale(loader: Loader, file: WeightFile, layers: LoraLayers) -> Iterator[str]:
    """Yield a note if a file means another scale than that of its tensors, by which ComfyUI merges."""
    stated = read_stated(file, flat_name)
    of_tensors = replace(stated, statements=(), root=False)
    factors = set()
    for layer, parts in layers.items():
        merged = of_tensors.scale(layer, parts)
        if rank_of(file, parts) and merged:
            factors.add(stated.scale(layer, parts) / merged)
    if not factors or max(abs(factor - 1) for factor in factors) < 1e-3:
        return
    places = " and ".join(part.where for part in stated.statements if part.alpha is not None) or "rsLoRA"
    least = min(factors)
    most = max(factors)
    if most - least > 1e-3:
        meant = f"{least:.4g} to {most:.4g} times"
        remedy = "no strength_model gives that, as it differs by layer"
    else:
        meant = f"{most:.4g} times"
        remedy = f"strength_model {most:.4g} is the file's 1"
        if most and loader.strength is not None:
            remedy += f", and the {loader.strength:.4g} set here is its {loader.strength / most:.4g}"
    fault = f"The LoRA {loader.name} is meant {meant} as strong as it is merged"
    yield f"{fault}, by {places}, which {NOT_READ}: {remedy}."
