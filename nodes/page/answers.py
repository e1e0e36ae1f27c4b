"""What the page is answered about the next run: forecasts, and how much of earlier runs the store still has."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import comfy.model_management as mm
from comfy.model_patcher import ModelPatcher

from ...sdvg_core.engine.reuse import GIGABYTE
from ...sdvg_core.errors import BadInput
from ..host import reuse
from .asked import Trace, asked_next
from .forecast import ABSENT, AT_HAND, PERHAPS, EarlierRuns, forecast_film, seconds_of
from .live import RUNS, LiveRun, LiveRuns
from .signature import SAMPLER, UNREADABLE, check_lines, check_starts, signature

Check = Callable[..., object]
"""The sampler's `validate_inputs`."""


def ended(run: LiveRun, patchers: Iterable[ModelPatcher]) -> None:
    """Record a run's models and store keys for the forecast; no keys if some results did not fit."""
    run.models = tuple(weakref.ref(patcher.model) for patcher in patchers)
    run.keys = () if reuse.STORE.refused else tuple(reuse.STORE.newest)
    if run.trace is not None:
        run.trace.models = run.models
        run.trace.keys = None if reuse.STORE.refused else run.keys
        run.trace.digests = run.digests
        RUNS.traces.append(run.trace)


def blocks_to_decode(keys: Sequence[str]) -> list[int]:
    """Return, for n = 0, 1, 2 ..., how many of the first n blocks are decoded again by a run that changes the next."""
    beginnings = (keys[:count] for count in range(len(keys) + 1))
    return [reuse.PIXELS.count_to_decode(start, to_go_on=len(start) < len(keys)) for start in beginnings]


def forecast(prompt: Any, runs: LiveRuns) -> dict[str, Any]:
    """Return what the page tells of the next run. Runs nothing.

    `asked`: signature of each sampler of an API prompt, by node. `forecast`: by node and remembered run of it, one
    letter per block (see `STAYS`), the blocks that are `old`, and the `seconds` that it takes. `loading`: seconds
    to load the models again, by run whose blocks can still be re-used. `decoding`: by such a run,
    `blocks_to_decode()` by number of unchanged blocks, those of a continued clip included.
    """
    asked = {node: signature(prompt, node) for node in prompt} if isinstance(prompt, dict) else {}
    asked = {node: sampler for node, sampler in asked.items() if sampler}
    loaded = {id(entry.model.model) for entry in mm.current_loaded_models if entry.model is not None}
    loading = {
        run.begin["run"]: run.begin["loading"] * any(id(model()) not in loaded for model in run.models)
        for run in runs.now()
        if run.keys and reuse.STORE.has(run.keys) and all(model() is not None for model in run.models)
    }
    known = {run.begin["run"]: run.pixel_keys for run in runs.now()}
    decoding = {run: blocks_to_decode(keys) for run, keys in known.items() if run in loading}
    forecasts = {node: _by_run(prompt, node, runs, loading, decoding) for node in asked}
    return {"asked": asked, "forecast": forecasts, "loading": loading, "decoding": decoding}


def refusals(prompt: Any, check: Check) -> dict[str, str]:
    """Return why the samplers of an API prompt would be refused as it is queued, by node."""
    named = inspect.signature(check).parameters
    sentences = {}
    for name, node in prompt.items() if isinstance(prompt, dict) else ():
        try:
            if node["class_type"] == SAMPLER:
                inputs = {key: value for key, value in node["inputs"].items() if key in named}
                check(**{key: None if isinstance(value, list) else value for key, value in inputs.items()})
                check_lines(prompt, name)
                check_starts(prompt, name)
        except BadInput as problem:
            sentences[name] = str(problem)
        except UNREADABLE:
            continue
    return sentences


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
        if asked is None or (
            run.begin["node"] != node and asked[0].signature["all"] != made.asked[0].signature["all"]
        ):
            continue
        guess = forecast_film(asked, made, memory)
        name = run.begin["run"]
        seconds = seconds_of(guess, asked, made.asked, run.events, loading.get(name), decoding.get(name, []))
        forecasts[name] = {"blocks": guess.answers, "old": list(guess.old), "seconds": seconds}
    return forecasts


def _at_hand(trace: Trace) -> int:
    """Return how surely the store has what a run made."""
    if any(model() is None for model in trace.models):
        return ABSENT
    if trace.keys is None:
        return PERHAPS
    stored = [reuse.STORE.has([key]) for key in trace.keys]
    return AT_HAND if stored and all(stored) else PERHAPS if any(stored) else ABSENT


def _kept_by(limit: Any) -> int:
    """Return how surely a run with this many gigabytes for re-use leaves the store as it is."""
    if not isinstance(limit, int | float):
        return PERHAPS
    return ABSENT if not limit else AT_HAND if limit * GIGABYTE >= reuse.STORE.bytes else PERHAPS
