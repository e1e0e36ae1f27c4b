"""What later runs may use again: one store for all samplers, and what the results of ComfyUI's models depend on.

ComfyUI keeps a model's weights in an object, and names the set of its patches by a uuid that every change renews. So the
object and the uuid identify the weights for as long as both live. Whatever else could change a result is named too, and
anything unknown gets a name of its own, which nothing earlier has: in doubt a block is made again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from comfy.model_patcher import ModelPatcher
from comfy.sd import VAE
from torch.utils.weak import WeakIdKeyDictionary

from ...sdvg_core.decoders import StatedKind
from ...sdvg_core.devices.device import arithmetic_on
from ...sdvg_core.engine.keys import Identities
from ...sdvg_core.engine.outside import OutsidePart, identity_of
from ...sdvg_core.engine.reuse import Reuse
from ...sdvg_core.engine.store import GIGABYTE, PixelStore, Store
from .job import Job
from .model import compute_dtype
from .scorer import HostScorer
from .vae import kind_of_wire

PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
SET_BY_NODES = ("model_options", "object_patches", "weight_wrapper_patches", "injections", "force_cast_weights")

# By identity: two tensors cannot be compared with one `==`.
_tokens: WeakIdKeyDictionary = WeakIdKeyDictionary()
_count = itertools.count(1)
_STORE, _PIXELS = Store(0), PixelStore()


def identify(job: Job) -> Identities:
    """Return the identities of the parts of a run."""
    presets = job.presets

    def of_model(role: str, patcher: ModelPatcher) -> str:
        settings = str(compute_dtype(patcher)), presets[role].identity, job.execution.kv_dtype
        return _of_module(patcher.model, patcher, patcher.load_device, *settings)

    texts = {role: of_model(role, patcher) for role, patcher in job.models.items()}
    texts |= {role: texts[role] + of_model(role, control) for role, control in job.controls.items()}
    decoders = {role: _of_decoder(vae, job.tae_kind) for role, vae in job.decoders.items()}
    return Identities(
        drafter=texts.get("drafter", ""),
        target=texts.get("target", ""),
        codec=decoders["vae"],
        judge=decoders.get("judge", ""),
        scorer=_of_scorer(job.router.scorer) if job.router.scorer else "",
    )


def token(value: Any) -> str:
    """Return a name for an object that no other object has had or will have. One that cannot be named is always new."""
    if isinstance(value, PLAIN):
        return repr(value)
    try:
        if value not in _tokens:
            _tokens[value] = f"object {next(_count)}"
        return _tokens[value]
    except TypeError:
        return f"object {next(_count)}"


def _of_decoder(vae: VAE, tae_kind: StatedKind) -> str:
    kind = kind_of_wire(vae, tae_kind)
    return _of_module(vae.first_stage_model, vae.patcher, vae.device, str(vae.vae_dtype), kind)


def _of_scorer(scorer: HostScorer | OutsidePart) -> str:
    if isinstance(scorer, OutsidePart):
        return identity_of(scorer.inner)
    settings = json.dumps(scorer.describe(), sort_keys=True, default=str)
    return _of_module(scorer.patcher.model, scorer.patcher, scorer.patcher.load_device, settings)


def _of_module(module: Any, patcher: ModelPatcher, device: torch.device, *settings: Any) -> str:
    """Return what the results of a module depend on: its weights, its patches, and how and where it runs."""
    # All else that an artist's nodes set on a MODEL.
    options = [_named(getattr(patcher, name)) for name in SET_BY_NODES]
    return repr((token(module), str(patcher.patches_uuid), options, *settings, arithmetic_on(device)))


def _named(value: Any) -> Any:
    """Return nested dicts and lists with a token for every object in them."""
    if isinstance(value, Mapping):
        return [(token(name), _named(inner)) for name, inner in value.items()]
    if isinstance(value, list | tuple | set):
        return [_named(inner) for inner in value]
    return token(value)


def begin_reuse(job: Job) -> Reuse | None:
    """Return what a run may use again; None if its limit is 0 bytes, which also forgets everything."""
    _STORE.begin_run(job.reuse_bytes)
    _PIXELS.shrink(job.reuse_bytes - _STORE.bytes)
    return Reuse(store=_STORE, identities=identify(job), pixels=_PIXELS) if job.reuse_bytes else None


def newest_keys() -> tuple[str, ...]:
    """Return the names of what the newest run left in the store; none if not all of it found room."""
    return () if _STORE.refused else tuple(_STORE.newest)


def still_kept(keys: Collection[str]) -> bool:
    """Whether the store has all of that, and it is something."""
    return bool(keys) and _STORE.has(keys)


def blocks_to_decode(keys: Sequence[str]) -> list[int]:
    """Return, for the first 0, 1, 2 ... of some blocks, how many of them a run that goes on from there decodes again."""
    kept = (keys[:count] for count in range(len(keys) + 1))
    return [len(few) - _PIXELS.first_to_decode(few, to_go_on=len(few) < len(keys)) for few in kept]


def store_notes() -> tuple[str, ...]:
    """Say what the newest run pushed out of the store, and what of its own found no room there."""
    limit = f"{_STORE.limit / GIGABYTE:g} GB"
    notes = []
    if _STORE.forgotten:
        notes.append(
            f"The {limit} for re-use are full: {_STORE.forgotten} results of the oldest runs were dropped."
        )
    if _STORE.refused:
        notes.append(
            f"{_STORE.refused} results of this run did not fit into the {limit} for re-use; the next run makes them "
            "again."
        )
    return tuple(notes) if _STORE.limit else ()
