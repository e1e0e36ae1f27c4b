"""Turn parsed options into the values of a run: request, router, load options, files, worker devices.

Options that would have no effect are rejected here, where the spelling of the user's option is known.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..checkpoints.model_files import KNOWN_FILES, ModelFiles
from ..devices.device import check_device, pick_device
from ..errors import BadInput, count
from ..files.footage import count_frames
from ..settings.execution import Execution
from ..settings.fields import check_needs, settings_of
from ..settings.load import LoadOptions
from ..settings.request import MOST_BLOCKS, VideoRequest, blocks_in
from ..settings.route import DEFAULT_PRESET, POLICIES, ROUTER_DECIDES, ROUTER_PRESETS, RouterConfig, fields_read
from ..videos.files import choose_files

READ_AS = {
    "policy": ("policy", "forced_blocks"),
    "preset": ("policy", "forced_blocks", "handover"),
    "budget": ("policy", "forced_blocks"),
}
"""Option -> fields of the router: it has an effect if a block reads one. Other options are fields themselves."""
SPENT = ("preset", "policy", "forced_blocks", "handover")
"""Options whose values a budget chooses."""


def stated(options: argparse.Namespace, config: type) -> dict[str, Any]:
    """Return the fields of a settings dataclass that the user gave."""
    return {name: getattr(options, name) for name in settings_of(config) if hasattr(options, name)}


def video_request(
    options: argparse.Namespace, base: Mapping[str, Any], router: RouterConfig | None = None
) -> VideoRequest:
    """Return the requested video. Raises `BadInput` for invalid values and for options without effect.

    `base`: values of fields that the user did not give. `router`: overridden by options; None for a preset.
    """
    values = stated(options, VideoRequest)
    check_needs(VideoRequest, {**base, **values}, values)
    clip = values.get("restyle") or (None if values.get("continue_from") else values.get("control"))
    if clip and "blocks" not in base:
        values = {"blocks": blocks_in(count_frames(clip)), **values}
    request = VideoRequest(**{**base, **values})
    return replace(request, router=router_config(options, request, router))


def router_config(
    options: argparse.Namespace, request: VideoRequest, base: RouterConfig | None = None
) -> RouterConfig:
    """Return the router settings: a preset or `base`, overridden by options.

    Raises `BadInput` for an option that no block would read.
    """
    settings = {name: value for name, value in stated(options, RouterConfig).items() if name != "directions"}
    known = settings_of(RouterConfig)
    others = [name for name in READ_AS if name not in known and getattr(options, name, None) is not None]
    if "budget" in others:
        base = RouterConfig(policy="first")
    elif "preset" in others:
        base = ROUTER_PRESETS[options.preset]
    elif base is None:
        base = ROUTER_PRESETS["paper" if settings or others else DEFAULT_PRESET]
    fields = POLICIES[base.policy]
    chosen = [policy for name in settings if (policy := known[name].chooses) and name not in fields]
    if chosen and "budget" not in others:
        base = replace(base, policy=chosen[0])
    if re.fullmatch(r"-?\d*\.?\d+", settings.get("aggregation", "")):
        settings |= {"aggregation": "quantile", "quantile": float(settings["aggregation"])}
    router = replace(base, **settings)
    causes = [f"--{name}" for name in ("budget", "preset") if name in others][:1]
    if not causes or (causes == ["--preset"] and router.policy != base.policy):
        causes = [f"the route {router.policy}"]
    causes += ["--directions"] if request.directions else []
    read = _read_in(request, router)
    spent = SPENT if "budget" in others else ()
    # handover 0 always has its effect, and `quantile` comes from `aggregation`.
    unchecked = {"quantile"} if router.handover or spent else {"quantile", "handover"}
    for name in (*others, *settings):
        if name in unchecked or (name not in spent and not read.isdisjoint(READ_AS.get(name, (name,)))):
            continue
        flag = known[name].flags[0] if name in known else f"--{name}"
        reason = " and ".join(cause for cause in causes if cause != flag)
        fault = f"none of {count(request.blocks, 'block')} uses {flag} with {reason}"
        if name in POLICIES[router.policy] and request.blocks <= router.forced_blocks and not spent:
            forced = "block 1 is" if router.forced_blocks == 1 else f"blocks 1 to {router.forced_blocks} are"
            raise BadInput(f"{fault}, as {forced} the target's anyway; make more blocks, or leave {flag} out")
        raise BadInput(f"{fault}; leave one of them out")
    return router


def _read_in(request: VideoRequest, router: RouterConfig) -> set[str]:
    """Return the router fields that any block of a video reads; a continued clip's length is not known yet."""
    several = min(max(router.forced_blocks, math.ceil(router.stride)), MOST_BLOCKS)
    read: set[str] = set()
    for clip in (0, 1, several) if request.continue_from else (0,):
        directed = replace(router, directions=ROUTER_DECIDES * clip + request.directions)
        read |= fields_read(directed, range(clip, clip + request.blocks))
    return read


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
    values["device"] = pick_device(options.device.partition(",")[0], embedded=embedded)
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


def worker_devices(options: argparse.Namespace, device: str) -> tuple[str, ...]:
    """Return the device of each worker, or nothing if this process makes the videos. `device`: of this process."""
    several = "," in options.device
    if options.ray == "":
        raise BadInput("the address of the Ray cluster is empty; give it, or local, or leave --ray out")
    if options.workers is None and not several and not options.ray:
        return ()
    if not (options.prompt_file or options.seeds[1:]):
        raise BadInput("workers need several videos; add --prompt-file FILE or --seeds, or leave the workers out")
    if options.workers is not None and options.workers < 1:
        raise BadInput(f"--workers is {options.workers}; give 1 or more")
    if options.ray and several:
        raise BadInput("--device names several of this machine, and --ray is a cluster; give one of them")
    devices = [name.strip() for name in (options.device if several else device).split(",")]
    for name in devices:
        check_device(name)
    return tuple(islice(cycle(devices), options.workers or len(devices)))
