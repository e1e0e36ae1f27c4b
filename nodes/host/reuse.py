"""Re-use of results by later runs: the store of all samplers, cache keys of ComfyUI's models, and the page's forecast.

ComfyUI keeps a model's weights in an object, and gives its patches a uuid that changes with them, so the two identify
the weights. Hashing 28 GB of weights would be exact but slow. Everything else that could change a result is part of
the key, and an unknown object gets a new key each time: in doubt a block is made again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher
from torch.utils.weak import WeakIdKeyDictionary

from ...sdvg_core.devices.device import arithmetic_on
from ...sdvg_core.engine.memo import GIGABYTE, Identities, PixelStore, Reuse, Store
from ...sdvg_core.engine.outside import OutsidePart, cache_key
from ...sdvg_core.text.prompts import read_prompt
from ..sockets import HostScorer
from .job import Job
from .live import LiveRun, LiveRuns
from .model import compute_dtype
from .vae import kind_of_wire

PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
SET_BY_NODES = ("model_options", "object_patches", "weight_wrapper_patches", "injections", "force_cast_weights")

# Keyed by identity, as tensors have no boolean `==`.
_tokens: WeakIdKeyDictionary = WeakIdKeyDictionary()
_count = itertools.count(1)
_STORE = Store(0)
_PIXELS = PixelStore()


def part_fingerprints(job: Job, compiled: Set[str] = frozenset()) -> Identities:
    """Return the cache keys of a run's models, codec and scorer. `compiled`: roles whose layers are compiled."""
    presets = job.presets

    def of_model(role: str, patcher: ModelPatcher) -> str:
        settings = str(compute_dtype(patcher)), presets[role].identity, job.execution.kv_dtype, role in compiled
        return _of_module(patcher.model, patcher, patcher.load_device, *settings)

    texts = {role: of_model(role, patcher) for role, patcher in job.models.items()}
    texts |= {role: texts[role] + of_model(role, control) for role, control in job.controls.items()}
    vae = job.vae
    of_codec = str(vae.vae_dtype), kind_of_wire(vae, job.tae_kind)
    return Identities(
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
        return _tokens[value]
    except TypeError:
        return f"object {next(_count)}"


def _of_scorer(scorer: HostScorer | OutsidePart) -> str:
    if isinstance(scorer, OutsidePart):
        return cache_key(scorer.inner)
    settings = json.dumps(scorer.describe(), sort_keys=True, default=str)
    return _of_module(scorer.patcher.model, scorer.patcher, scorer.patcher.load_device, settings)


def _of_module(module: Any, patcher: ModelPatcher, device: torch.device, *settings: Any) -> str:
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
    return Reuse(store=_STORE, identities=part_fingerprints(job, compiled), pixels=_PIXELS)


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


# --- signature of a sampler: hashes of the node and everything upstream of it in the API prompt. Node ids do not count,
# so the same settings have the same signature in every workflow.

PROMPTS = {"SDVGPrompt": "text", "SDVGPocketModels": "prompt"}
"""Class -> input of nodes whose prompt may have several lines."""
OF_BLOCKS = ("blocks", "directions", "takes", "kept_blocks", "until_block")
"""Inputs that the page itself compares block by block."""


def signature(prompt: Any, node_id: str | None) -> dict[str, Any] | None:
    """Return the signature of a sampler in an API prompt, or None if `node_id` is not a valid sampler.

    `all`: hash of everything. `router`: of the router without `tau`; `tau`: None if it is not known. `prompts`: pairs
    of first block, from 1, and hash. `wired`: of the inputs in `OF_BLOCKS` that come over a wire. `rest`: of all else;
    `positive`: of the part of it that is the video's own prompt.
    """
    try:
        if prompt[node_id]["class_type"] != "SDVGSpeculativeSampler":
            return None
        graph = _Graph(prompt)
        inputs = dict(prompt[node_id]["inputs"])
        prompts = [*graph.lines(inputs.get("positive")), *graph.schedule(inputs.pop("prompt_schedule", None))]
        prompts.sort()
        inputs.pop("reuse_gb", None)  # does not change the video
        rest = {name: graph.value(value) for name, value in inputs.items()}
        of_blocks = [rest.pop(name, "") for name in OF_BLOCKS]
        router, tau = graph.gate(rest.pop("router", None), inputs.get("router"))
        wired = [value for value in of_blocks if isinstance(value, list)]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None
    parts = {"rest": _hash(rest), "router": _hash(router), "tau": tau, "wired": _hash(wired), "prompts": prompts}
    return {"all": _hash([of_blocks, parts]), **parts, "positive": _hash(rest.get("positive"))}


class _Graph:
    """Hashes of the nodes of an API prompt, each over everything upstream of it."""

    def __init__(self, prompt: Mapping[str, Any]) -> None:
        self._prompt = prompt
        self._hashes = dict[str, str]()

    def value(self, value: Any) -> Any:
        """Return the hash and output index of the node wired to an input, or its value as ComfyUI normalises it."""
        if isinstance(value, list):
            return [self.node(value[0]), value[1]]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def node(self, name: str) -> str:
        if name not in self._hashes:
            node = self._prompt[name]
            inputs = {key: self.value(value) for key, value in node["inputs"].items()}
            if (key := PROMPTS.get(node["class_type"])) and isinstance(inputs[key], str) and inputs[key].strip():
                inputs[key] = read_prompt(inputs[key]).texts[0]
            self._hashes[name] = _hash([node["class_type"], inputs])
        return self._hashes[name]

    def gate(self, known: Any, wire: Any) -> tuple[Any, float | None]:
        """Return a reward gate's inputs without tau, and tau; for any other router, `known` and None."""
        node = self._prompt[wire[0]] if isinstance(wire, list) else {}
        inputs = dict(node.get("inputs", {}))
        tau = inputs.pop("policy.tau", None)
        plain = isinstance(tau, int | float) and not isinstance(tau, bool)
        if (
            node.get("class_type") != "SDVGQualityRouter"
            or inputs.get("policy") not in ("reward", "hybrid")
            or not plain
        ):
            return known, None
        return {name: self.value(value) for name, value in inputs.items()}, float(tau)

    def lines(self, wire: Any) -> list[tuple[int, str]]:
        """Return pairs of first block, from 1, and hash for the lines of a prompt after the first."""
        node = self._prompt[wire[0]] if isinstance(wire, list) else {}
        inputs = node.get("inputs", {})
        if "positive" in inputs and node["class_type"] not in PROMPTS:
            return self.lines(inputs["positive"])  # WanVaceToVideo and others pass it on
        text = inputs.get(PROMPTS.get(node.get("class_type")))
        if not isinstance(text, str) or not text.strip():
            return []
        read = read_prompt(text)
        starts = sorted({at for at, _ in (*read.entries[1:], *read.strengths)})
        parts = [dict(read.entries), dict(read.strengths)]
        parts += [dict.fromkeys(read.cuts, True)] if read.cuts else []
        return [(at + 1, _hash([part.get(at) for part in parts])) for at in starts]

    def schedule(self, wire: Any) -> list[tuple[int, str]]:
        """Return such pairs for a prompt schedule; an entry whose block is not known counts from block 1."""
        if not wire:
            return []
        name = self.node(wire[0])
        node = self._prompt[wire[0]]
        inputs = node["inputs"]
        if node["class_type"] != "SDVGPromptSchedule" or not isinstance(inputs["from_block"], int):
            return [(1, name)]
        text = [self.value(inputs["conditioning"]), self.value(inputs["text"])]
        here = [(inputs["from_block"], _hash(text)), *self.lines(inputs["conditioning"])]
        return [*self.schedule(inputs.get("schedule")), *here]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def ended(run: LiveRun, patchers: Iterable[Any]) -> None:
    """Record a run's models and store keys for the forecast; no keys if some results did not fit."""
    run.models = tuple(weakref.ref(patcher.model) for patcher in patchers)
    run.keys = () if _STORE.refused else tuple(_STORE.newest)


def blocks_to_decode(keys: Sequence[str]) -> list[int]:
    """Return, for n = 0, 1, 2 ..., how many of the first n blocks are decoded again by a run that changes the next."""
    beginnings = (keys[:count] for count in range(len(keys) + 1))
    return [_PIXELS.count_to_decode(start, to_go_on=len(start) < len(keys)) for start in beginnings]


def forecast(prompt: Any, runs: LiveRuns) -> dict[str, Any]:
    """Return the facts from which the page forecasts a run. Runs nothing.

    `asked`: signature of each sampler of an API prompt, by node, with the earlier runs whose `rest` is equal.
    `loading`: seconds to load the models again, by run whose blocks can still be re-used. `decoding`: by such a run,
    `blocks_to_decode()` by number of unchanged blocks, those of a continued clip included.
    """
    asked = {node: signature(prompt, node) for node in prompt} if isinstance(prompt, dict) else {}
    loaded = {id(entry.model.model) for entry in mm.current_loaded_models if entry.model is not None}
    loading = {
        run.begin["run"]: run.begin["loading"] * any(id(model()) not in loaded for model in run.models)
        for run in runs.now()
        if run.keys and _STORE.has(run.keys) and all(model() is not None for model in run.models)
    }
    begun = [begin | (begin.get("signature") or {"rest": None}) for begin in list(runs.begun)]
    made = {
        node: [begin for begin in begun if begin["rest"] == sampler["rest"]]
        for node, sampler in asked.items()
        if sampler
    }
    known = {run.begin["run"]: run.pixel_keys for run in runs.now()}
    decoding = {run: blocks_to_decode(keys) for run, keys in known.items() if run in loading}
    return {
        "asked": {node: {**asked[node], "made": made[node]} for node in made},
        "loading": loading,
        "decoding": decoding,
    }
