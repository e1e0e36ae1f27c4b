"""Re-use of results by later runs: the store of all samplers, cache keys of ComfyUI's models, and the page's forecast.

ComfyUI keeps a model's weights in an object, and gives its patches a uuid that changes with them, so the two identify
the weights. Hashing 28 GB of weights would be exact but slow. Everything else that could change a result is part of
the key, and an unknown object gets a new key each time: in doubt a block is made again.
"""

from __future__ import annotations

import itertools
import json
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ...sdvg_core.devices.device import arithmetic_on
from ...sdvg_core.engine.outside import OutsidePart, part_key
from ...sdvg_core.engine.reuse import GIGABYTE, PartKeys, PixelStore, Reuse, Store
from ..sockets import HostScorer
from .forecast import ABSENT, AT_HAND, PERHAPS, EarlierRuns, Trace, asked_next, forecast_run, seconds_of
from .job import Job
from .live import RUNS, LiveRun, LiveRuns
from .model import patcher_dtype
from .signature import signature
from .vae import kind_of_wire

PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
SET_BY_NODES = ("model_options", "object_patches", "weight_wrapper_patches", "injections", "force_cast_weights")

# Keyed by identity, as tensors have no boolean `==`.
_tokens: WeakIdKeyDictionary = WeakIdKeyDictionary()
_count = itertools.count(1)
_STORE = Store(0)
_PIXELS = PixelStore()


def part_fingerprints(job: Job, compiled: Set[str] = frozenset()) -> PartKeys:
    """Return the cache keys of a run's models, codec and scorer. `compiled`: roles whose layers are compiled."""
    presets = job.presets

    def of_model(role: str, patcher: ModelPatcher) -> str:
        settings = str(patcher_dtype(patcher)), presets[role].key, job.execution.kv_dtype, role in compiled
        return _of_module(patcher.model, patcher, patcher.load_device, *settings)

    texts = {role: of_model(role, patcher) for role, patcher in job.models.items()}
    texts |= {role: texts[role] + of_model(role, control) for role, control in job.controls.items()}
    vae = job.vae
    of_codec = str(vae.vae_dtype), kind_of_wire(vae, job.tae_kind)
    return PartKeys(
        drafter=texts.get("drafter", ""),
        target=texts.get("target", ""),
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

    `compiled`: roles whose layers are compiled.
    """
    _STORE.begin_run(job.reuse_bytes)
    _PIXELS.shrink(job.reuse_bytes - _STORE.bytes)
    if not job.reuse_bytes:
        return None
    return Reuse(store=_STORE, part_keys=part_fingerprints(job, compiled), pixels=_PIXELS)


def store_notes() -> tuple[str, ...]:
    """Return notes on results that the newest run evicted from the store, or could not store."""
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


# --- what the page is told


def ended(run: LiveRun, patchers: Iterable[ModelPatcher]) -> None:
    """Record a run's models and store keys for the forecast; no keys if some results did not fit."""
    run.models = tuple(weakref.ref(patcher.model) for patcher in patchers)
    run.keys = () if _STORE.refused else tuple(_STORE.newest)
    if run.trace is not None:
        run.trace.models = run.models
        run.trace.keys = None if _STORE.refused else run.keys
        run.trace.digests = list(run.beginnings)
        RUNS.traces.append(run.trace)


def blocks_to_decode(keys: Sequence[str]) -> list[int]:
    """Return, for n = 0, 1, 2 ..., how many of the first n blocks are decoded again by a run that changes the next."""
    beginnings = (keys[:count] for count in range(len(keys) + 1))
    return [_PIXELS.count_to_decode(start, to_go_on=len(start) < len(keys)) for start in beginnings]


def forecast(prompt: Any, runs: LiveRuns) -> dict[str, Any]:
    """Return what the page tells of the next run. Runs nothing.

    `asked`: signature of each sampler of an API prompt, by node. `forecast`: by node and remembered run of it, one
    letter per block (see `STAYS`), the first block that is `old`, and the `seconds` that it takes. `loading`: seconds
    to load the models again, by run whose blocks can still be re-used. `decoding`: by such a run,
    `blocks_to_decode()` by number of unchanged blocks, those of a continued clip included.
    """
    asked = {node: signature(prompt, node) for node in prompt} if isinstance(prompt, dict) else {}
    asked = {node: sampler for node, sampler in asked.items() if sampler}
    loaded = {id(entry.model.model) for entry in mm.current_loaded_models if entry.model is not None}
    loading = {
        run.begin["run"]: run.begin["loading"] * any(id(model()) not in loaded for model in run.models)
        for run in runs.now()
        if run.keys and _STORE.has(run.keys) and all(model() is not None for model in run.models)
    }
    known = {run.begin["run"]: run.pixel_keys for run in runs.now()}
    decoding = {run: blocks_to_decode(keys) for run, keys in known.items() if run in loading}
    forecasts = {node: _by_run(prompt, node, runs, loading, decoding) for node in asked}
    return {"asked": asked, "forecast": forecasts, "loading": loading, "decoding": decoding}


def _by_run(
    prompt: Any, node: str, runs: LiveRuns, loading: Mapping[str, float], decoding: Mapping[str, list[int]]
) -> dict[str, Any]:
    """Return the forecast of a sampler beside each remembered run of it."""
    memory = EarlierRuns()
    limit = prompt[node]["inputs"].get("reuse_gb", math.inf)
    for trace in list(runs.traces):
        memory.learn(trace, min(_at_hand(trace), _kept_by(limit)))
    forecasts = {}
    for run in runs.now():
        made = run.trace
        if run.begin.get("until") or made is None or made.run not in memory.courses:
            continue
        asked = asked_next(prompt, node, made.asked, run.begin)
        # A copy of a sampler shows a run of the one that it was copied from.
        if asked is None or (run.begin["node"] != node and asked.signature["all"] != made.asked.signature["all"]):
            continue
        guess = forecast_run(asked, made, memory)
        name = run.begin["run"]
        seconds = seconds_of(guess, asked, made.asked, run.events, loading.get(name), decoding.get(name, []))
        forecasts[name] = {"blocks": guess.answers, "old": guess.old, "seconds": seconds}
    return forecasts


def _at_hand(trace: Trace) -> int:
    """Return how surely the store has what a run made."""
    if any(model() is None for model in trace.models):
        return ABSENT
    if trace.keys is None:
        return PERHAPS
    stored = [_STORE.has([key]) for key in trace.keys]
    return AT_HAND if stored and all(stored) else PERHAPS if any(stored) else ABSENT


def _kept_by(limit: Any) -> int:
    """Return how surely a run with this many gigabytes for re-use leaves the store as it is."""
    if not isinstance(limit, int | float):
        return PERHAPS
    return ABSENT if not limit else AT_HAND if limit * GIGABYTE >= _STORE.bytes else PERHAPS
