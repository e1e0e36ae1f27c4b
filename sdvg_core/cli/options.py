"""Turn parsed options into the values of a run: request, router, load options, files, worker devices.

Options that would have no effect are rejected here, where the spelling of the user's option is known.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..devices.device import check_device, pick_device
from ..errors import BadInput
from ..files.footage import count_frames
from ..settings.execution import Execution
from ..settings.fields import check_needs, settings_of
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest, blocks_in
from ..settings.route import (
    DEFAULT_PRESET,
    POLICIES,
    ROUTE_PRESETS,
    Aggregation,
    At,
    Budget,
    First,
    Gate,
    Mean,
    NamedPolicy,
    Quantile,
    Refine,
    Route,
    Stride,
    WorstFrame,
    policy_name,
)
from ..videos.chosen_files import choose_files
from ..weights.model_files import KNOWN_FILES, ModelFiles

CHOOSING: Mapping[str, type[NamedPolicy]] = {
    "tau": Gate,
    "cascade": Gate,
    "target_at": At,
    "stride": Stride,
    "refine": Refine,
}
"""Option -> the policy that it chooses where no other option does."""
ROUTE_SETTINGS = (Route, Gate, WorstFrame, First, At, Stride, Refine)
AROUND = tuple(name for name in settings_of(Route) if name != "policy")
"""Settings of a route under every policy but refine."""


def stated(options: argparse.Namespace, config: type) -> dict[str, Any]:
    """Return the fields of a settings dataclass that the user gave."""
    known = settings_of(config)
    return {name: getattr(options, of.dest) for name, of in known.items() if hasattr(options, of.dest)}


def video_request(options: argparse.Namespace, base: Mapping[str, Any], route: Route | None = None) -> VideoRequest:
    """Return the requested video. Raises `BadInput` for invalid values and for options without effect.

    `base`: values of fields that the user did not give. `route`: overridden by options; None for the default one.
    """
    values = stated(options, VideoRequest)
    check_needs(VideoRequest, {**base, **values}, values)
    clip = values.get("restyle") or (None if values.get("continue_from") else values.get("control"))
    if clip and "blocks" not in base:
        values = {"blocks": blocks_in(count_frames(clip)), **values}
    chosen = chosen_route(options, route)
    if (
        isinstance(chosen, Route)
        and isinstance(chosen.policy, Refine)
        and values.get("drafter_context") == "committed"
    ):
        raise BadInput("refine continues the drafter's own drafts; leave --drafter-context out")
    return VideoRequest(**{**base, **values, "route": chosen})


def chosen_route(options: argparse.Namespace, base: Route | None = None) -> Route | Budget:
    """Return the route of --preset, --policy or --budget, else `base`, with the values of the other options.

    Without any of these, --gate, --cascade, --target-at, --stride and --refine choose their policy. Raises
    `BadInput` for an option that the policy does not have.
    """
    # `First.n` has no help text, as its option is --forced-blocks, which the gate describes.
    flags = {of.dest: of.flags[0] for kind in ROUTE_SETTINGS for of in settings_of(kind).values() if of.help}
    values = {dest: getattr(options, dest) for dest in flags if hasattr(options, dest)}
    choosers = ("budget", "preset", "policy")
    chosen = {name: value for name in choosers if (value := getattr(options, name, None)) is not None}
    if "budget" in chosen:
        if others := [*(f"--{name}" for name in chosen if name != "budget"), *(flags[dest] for dest in values)]:
            raise BadInput(f"--budget chooses the whole route; leave it or {others[0]} out")
        return Budget(chosen["budget"])
    route = _base_route(chosen, values, base)
    known = {of.dest: name for name, of in settings_of(type(route.policy)).items()}
    # The cascade's margin is a setting of the gate's `by`.
    around = () if isinstance(route.policy, Refine) else AROUND
    names = {*around, *known, *(["cascade"] if isinstance(route.policy, Gate) else [])}
    if foreign := [flags[dest] for dest in values if dest not in names]:
        stated_by = [f"--{name} {value}" for name, value in chosen.items()]
        stated_by += [flags[dest] for dest in values if CHOOSING.get(dest) is type(route.policy)]
        cause = (*stated_by, "this route")[0]
        fault = f"{cause} is of the policy {policy_name(route.policy)}, which has no {foreign[0]}"
        raise BadInput(f"{fault}; leave one of them out")
    changes = {known[dest]: value for dest, value in values.items() if dest in known}
    if isinstance(route.policy, Gate):
        changes["by"] = _aggregation(route.policy.by, values)
    policy = replace(route.policy, **changes)
    return replace(route, policy=policy, **{name: values[name] for name in AROUND if name in values})


def _base_route(chosen: Mapping[str, str], values: Mapping[str, Any], base: Route | None) -> Route:
    """Return the route whose values the other options change."""
    kind: type[NamedPolicy] | None = POLICIES[chosen["policy"]] if "policy" in chosen else None
    if "preset" in chosen:
        route = ROUTE_PRESETS[chosen["preset"]]
        if kind and not isinstance(route.policy, kind):
            fault = f"--preset {chosen['preset']} is of the policy {policy_name(route.policy)}"
            raise BadInput(f"{fault}, and --policy is {chosen['policy']}; leave one of them out")
        return route
    kind = kind or next((CHOOSING[dest] for dest in values if dest in CHOOSING), None)
    if kind and not (base and isinstance(base.policy, kind)):
        has_target = base and base.policy != First(0)  # without one, as in a live run, its handover means nothing
        around = base if base and has_target and kind is not Refine else Route()
        return replace(around, policy=kind())
    return base or (Route() if values else ROUTE_PRESETS[DEFAULT_PRESET])


def _aggregation(usual: Aggregation, values: Mapping[str, Any]) -> Aggregation:
    """Return how a block's score follows from its frames'. `usual`: without options."""
    how = values.get("aggregation")
    by = usual if how is None or (how == "min" and isinstance(usual, WorstFrame)) else read_aggregation(how)
    if "cascade" not in values:
        return by
    if not isinstance(by, WorstFrame):
        raise BadInput(f"--cascade rejects by the weakest frame, and --aggregation is {how}; leave one of them out")
    return WorstFrame(values["cascade"])


def read_aggregation(text: str) -> Aggregation:
    """Return an aggregation from `min`, `mean` or a quantile. Raises `BadInput` for other text."""
    if text in ("min", "mean"):
        return WorstFrame() if text == "min" else Mean()
    if not re.fullmatch(r"-?\d*\.?\d+", text):
        raise BadInput(f"--aggregation is {text!r:.60}; give min, mean, or a quantile such as 0.1")
    return Quantile(float(text))


def load_options(options: argparse.Namespace, base: LoadOptions, *, embedded: bool) -> LoadOptions:
    """Return the load options. `base`: values that the user did not give. `embedded`: of the embedded models."""
    values = stated(options, LoadOptions)
    for role in ("drafter", "target"):
        pairs = getattr(options, f"{role}_settings")
        if twice := [name for name, value in pairs if value != dict(pairs)[name]]:
            word = twice[0].replace("_", "-")
            raise BadInput(f"{word} is given twice, with other values; leave one out")
        values[role] = replace(getattr(base, role), **dict(pairs))
    values["execution"] = replace(base.execution, **stated(options, Execution))
    values["loras"] = (*base.loras, *values.get("loras", ()))
    values["device"] = pick_device(options.device.partition(",")[0].strip(), embedded=embedded)
    return replace(base, **values)


def model_files(
    options: argparse.Namespace,
    models: Path,
    request: VideoRequest | None = None,
    named: Mapping[str, Path | None] = MappingProxyType({}),
) -> ModelFiles:
    """Return the model files of a run. `models`: folder for files not given. `named`: files of a report, by role.

    `request`: determines the models needed; None for all.
    """
    given = {known.role: getattr(options, known.role) or named.get(known.role) for known in KNOWN_FILES}
    modules = tuple(options.control_modules)
    return choose_files(models, request, given, tokenizer=options.tokenizer, control_modules=modules)


def worker_devices(options: argparse.Namespace, device: str, *, of_shots: bool = False) -> tuple[str, ...]:
    """Return the device of each worker, or nothing if this process makes the videos.

    `device`: of this process. `of_shots`: whether it is one film of several shots that begin afresh.
    """
    several = "," in options.device
    if options.ray == "":
        raise BadInput("the address of the Ray cluster is empty; give it, or local, or leave --ray out")
    if options.workers is None and not several and not options.ray:
        return ()
    if not (options.prompt_file or options.seeds[1:] or of_shots):
        fault = "workers need several videos, or fresh shots"
        raise BadInput(f"{fault}; add --prompt-file FILE or --seeds, or leave the workers out")
    if options.workers is not None and options.workers < 1:
        raise BadInput(f"--workers is {options.workers}; give 1 or more")
    if options.ray and several:
        raise BadInput("--device names several of this machine, and --ray is a cluster; give one of them")
    devices = [name.strip() for name in (options.device if several else device).split(",")]
    for name in devices:
        check_device(name)
    return tuple(islice(cycle(devices), options.workers or len(devices)))
