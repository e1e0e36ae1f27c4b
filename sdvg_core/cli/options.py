"""From the options of a command to the values of a run."""

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
from ..devices.execution import Execution
from ..engine.router import DEFAULT_PRESET, POLICIES, ROUTER_DECIDES, ROUTER_PRESETS, RouterConfig, fields_read
from ..engine.types import MOST_BLOCKS
from ..errors import BadInput
from ..files.footage import count_frames
from ..models.options import LoadOptions
from ..request.request import VideoRequest, blocks_in
from ..settings import check_needs, settings_of
from ..videos.files import choose_files

READ_AS = {
    "policy": ("policy", "forced_blocks"),
    "preset": ("policy", "forced_blocks", "handover"),
    "budget": ("policy", "forced_blocks"),
}
"""Options that choose several fields of the router, or none; the fields that are read where they have an effect."""
SPENT = ("preset", "policy", "forced_blocks", "handover")
"""What a budget chooses."""


def stated(options: argparse.Namespace, config: type) -> dict[str, Any]:
    """Return the fields of a dataclass of settings that the user gave."""
    return {name: getattr(options, name) for name in settings_of(config) if hasattr(options, name)}


def video_request(
    options: argparse.Namespace, base: Mapping[str, Any], router: RouterConfig | None = None
) -> VideoRequest:
    """Return the video asked for. Raises `BadInput` for impossible values, and for one without effect.

    `base`: what is not given. `router`: what the options override, if it is no preset.
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
    """Return the router's settings: those of the preset, or of `base`, overridden by the options.

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
    chooser = next((f"--{name}" for name in ("budget", "preset") if name in others), "")
    if not chooser or (chooser == "--preset" and router.policy != base.policy):
        chooser = f"the policy {router.policy}"
    read = _read_in(request, router)
    spent = SPENT if "budget" in others else ()
    # To hand over nothing has its effect everywhere, and a quantile comes from `aggregation`.
    sound = {"quantile"} if router.handover or spent else {"quantile", "handover"}
    for name in (*others, *settings):
        if name in sound or (name not in spent and not read.isdisjoint(READ_AS.get(name, (name,)))):
            continue
        flag = known[name].flags[0] if name in known else f"--{name.replace('_', '-')}"
        if name in spent:
            raise BadInput(f"{chooser} does not heed {flag}; leave one of them out")
        raise BadInput(_without_effect(name, flag, chooser, router, read))
    return router


def _without_effect(name: str, flag: str, chooser: str, router: RouterConfig, read: set[str]) -> str:
    """Return why an option has no effect, and what to do. `read`: the fields that blocks read."""
    if name == "handover":
        return f"no block is handed over, so {flag} has no effect; leave it out"
    if read.isdisjoint(READ_AS["policy"]):
        return f"--directions decides every block, so {flag} has no effect; leave one of them out"
    if READ_AS.get(name, (name,))[0] not in POLICIES[router.policy]:
        return f"{chooser} does not heed {flag}; leave one of them out"
    earlier = "so many rejections" if "policy" in read else "the forced ones"
    return f"no block comes after {earlier}, so {flag} has no effect; leave it out, or make more blocks"


def _read_in(request: VideoRequest, router: RouterConfig) -> set[str]:
    """Return the fields of a router that a block of a video reads, after a clip of some length if it has one."""
    several = min(max(router.forced_blocks, math.ceil(router.stride)), MOST_BLOCKS)
    read: set[str] = set()
    for clip in (0, 1, several) if request.continue_from else (0,):
        directed = replace(router, directions=ROUTER_DECIDES * clip + request.directions)
        read |= fields_read(directed, range(clip, clip + request.blocks))
    return read


def load_options(options: argparse.Namespace, base: LoadOptions, *, embedded: bool) -> LoadOptions:
    """Return how to load and run the models. `base`: what is not given. `embedded`: they are the embedded set."""
    values = stated(options, LoadOptions)
    for role in ("drafter", "target"):
        values[role] = replace(getattr(base, role), **dict(getattr(options, f"{role}_settings")))
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
    """Return the files of a run. `models`: the folder of the usual ones. `named`: those of a report.

    `request`: the video; None if every model is needed.
    """
    given = {known.role: getattr(options, known.role) or named.get(known.role) for known in KNOWN_FILES}
    modules = tuple(options.control_modules)
    return choose_files(models, request, given, tokenizer=options.tokenizer, control_modules=modules)


def worker_devices(options: argparse.Namespace, device: str) -> tuple[str, ...]:
    """Return the device of each worker, none if this process makes the videos. `device`: of this one."""
    several = "," in options.device
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
