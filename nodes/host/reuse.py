"""Re-use of results by later runs: the store of all samplers, and cache keys of ComfyUI's models.

ComfyUI keeps a model's weights in an object, and gives its patches a uuid that changes with them, so the two identify
the weights. Hashing 28 GB of weights would be exact but slow. Everything else that could change a result is part of
the key, and an unknown object gets a new key each time: in doubt a block is made again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Set
from typing import Any

import torch
from comfy.model_patcher import ModelPatcher
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ...sdvg_core.devices.device import arithmetic_on
from ...sdvg_core.engine.outside import OutsidePart, part_key
from ...sdvg_core.engine.reuse import GIGABYTE, PartKeys, PixelStore, Reuse, Store
from ...sdvg_core.errors import count
from .job import Job
from .model import patcher_dtype
from .sockets import HostScorer
from .vae import kind_of_wire

PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
SET_BY_NODES = ("model_options", "object_patches", "weight_wrapper_patches", "injections", "force_cast_weights")

# Keyed by identity, as tensors have no boolean `==`.
_tokens: WeakIdKeyDictionary = WeakIdKeyDictionary()
_count = itertools.count(1)
STORE = Store(0)
PIXELS = PixelStore()


def host_part_keys(job: Job, compiled: Set[str] = frozenset()) -> PartKeys:
    """Return the cache keys of a run's models, codec and scorer. `compiled`: roles whose layers are compiled."""
    presets = job.presets

    def of_model(role: str, patcher: ModelPatcher) -> str:
        settings = str(patcher_dtype(patcher)), presets[role].key, job.execution.kv_dtype, role in compiled
        return _of_module(patcher.model, patcher, patcher.load_device, *settings)

    keys = {role: of_model(role, patcher) for role, patcher in job.models.items()}
    keys |= {role: keys[role] + of_model(role, control) for role, control in job.controls.items()}
    vae = job.vae
    of_codec = str(vae.vae_dtype), kind_of_wire(vae, job.tae_kind)
    return PartKeys(
        drafter=keys.get("drafter", ""),
        target=keys.get("target", ""),
        codec=_of_module(vae.first_stage_model, vae.patcher, vae.device, *of_codec),
        scorer=_of_scorer(job.router.scorer) if job.router.scorer else "",
    )


def token(value: Any) -> str:
    """Return a name that is unique to an object for the life of the process.

    An object that has no weak references gets a new name at each call.
    """
    if isinstance(value, PLAIN):
        return repr(value)
    try:
        if value not in _tokens:
            _tokens[value] = f"object {next(_count)}"
        name: str = _tokens[value]
        return name
    except TypeError:
        return f"object {next(_count)}"


def _of_scorer(scorer: HostScorer | OutsidePart) -> str:
    if isinstance(scorer, OutsidePart):
        return part_key(scorer.inner)
    settings = json.dumps(scorer.describe(), sort_keys=True, default=str)
    return _of_module(scorer.patcher.model, scorer.patcher, scorer.patcher.load_device, settings)


def _of_module(module: nn.Module, patcher: ModelPatcher, device: torch.device, *settings: object) -> str:
    """Return the cache key of a module: its weights, patches, settings and device."""
    options = [_named(getattr(patcher, name)) for name in SET_BY_NODES]
    return repr((token(module), str(patcher.patches_uuid), options, *settings, arithmetic_on(device)))


def _named(value: Any) -> Any:
    """Return nested dicts and lists with every object replaced by its token."""
    if isinstance(value, Mapping):
        return [(token(name), _named(inner)) for name, inner in value.items()]
    if isinstance(value, list | tuple | set):
        return [_named(inner) for inner in value]
    return token(value)


def begin_reuse(job: Job, compiled: Set[str]) -> Reuse | None:
    """Begin a run in the store, and return its `Reuse`. A limit of 0 bytes empties the store and returns None.

    `compiled`: roles whose layers are compiled. A live session keeps all its blocks, whatever the limit; the next run
    drops what is beyond it.
    """
    STORE.begin_run(math.inf if job.live else job.reuse_bytes)
    PIXELS.shrink(job.reuse_bytes - STORE.bytes)
    if not (job.reuse_bytes or job.live):
        return None
    return Reuse(store=STORE, part_keys=host_part_keys(job, compiled), pixels=PIXELS)


def store_notes() -> tuple[str, ...]:
    """Return notes on results that the newest run evicted from the store, or could not store."""
    limit = f"{STORE.limit / GIGABYTE:g} GB"
    notes = []
    if STORE.forgotten:
        dropped = count(STORE.forgotten, "result")
        notes.append(f"The {limit} for re-use are full: the oldest runs lost {dropped}.")
    if STORE.refused:
        notes.append(
            f"{count(STORE.refused, 'result')} of this run did not fit into the {limit} for re-use; the next run makes "
            "that again."
        )
    return tuple(notes) if STORE.limit else ()
