"""From the options of a command to the configs of a run."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields, replace
from itertools import cycle, islice
from typing import Any

from ..checkpoints.model_files import KNOWN_FILES, ModelFiles
from ..devices.device import check_device, pick_device
from ..devices.execution import Execution
from ..engine.router import POLICIES, REWARD, ROUTER_DECIDES, ROUTER_PRESETS, RouterConfig, decide_early
from ..engine.types import MOST_BLOCKS
from ..errors import BadInput
from ..files.footage import count_frames
from ..models.options import LoadOptions, ModelOptions
from ..request.request import BLOCKS, VideoRequest, blocks_in
from ..videos.files import choose_files
from .shared import SETTINGS, YES_NO

FLAGS = {"tau": "--gate"}
"""How options are spelled whose field has another name."""
ROUTER_OPTIONS = ("policy", "tau", "aggregation", "cascade", "stride", "forced_blocks", "bail_out", "handover")
NAMING = {"tau": "reward", "cascade": "reward", "stride": "stride"}
"""Options that choose a policy, unless the policy that is stated reads them."""
OF_SCORES = ("aggregation", "gate_prompt")
"""Options of any block that is scored, by the policy or by a direction."""
SPENT = ("preset", "policy", "forced_blocks", "handover")
"""What a budget chooses."""
OVERRULED = ("preset", "budget", "policy")
"""Options without effect where every block has a direction, besides the settings of a policy."""


def video_request(options: argparse.Namespace) -> VideoRequest:
    """Return the video asked for. Raises `BadInput` for impossible values."""
    values = _stated(options, VideoRequest)
    restyled = values.get("restyle")
    clip = restyled or (None if values.get("continue_from") else values.get("control"))
    if values["blocks"] is None:
        values["blocks"] = blocks_in(count_frames(clip)) if clip else BLOCKS
    if values.get("strength") is None:
        values.pop("strength", None)
    elif not restyled:
        raise BadInput("--strength needs --restyle; add a clip, or leave it out")
    return VideoRequest(**values, router=router_config(options))


def router_config(options: argparse.Namespace) -> RouterConfig:
    """Return the router's settings: those of the preset, or of the report to make again, overridden by the options.

    Raises `BadInput` for an option that no block would heed.
    """
    values = {name: getattr(options, name, None) for name in ROUTER_OPTIONS}
    settings = {name: value for name, value in values.items() if value is not None}
    others = [name for name in (*OVERRULED, *OF_SCORES) if getattr(options, name, None) is not None]
    asked = dict.fromkeys((*others, *settings))
    budget = "budget" in asked
    if budget and any(name in asked for name in SPENT):
        raise BadInput("--budget allows no preset, policy, forced blocks or handover; leave them out")
    gated = settings or any(name in asked for name in OF_SCORES)
    usual = ROUTER_PRESETS["paper" if gated else options.usual_preset]
    base = ROUTER_PRESETS[options.preset] if options.preset else getattr(options, "base_router", None) or usual
    if budget:
        base = RouterConfig(policy="first")
    naming = [policy for name, policy in NAMING.items() if name in settings and not _reads(base.policy, name)]
    if naming and not budget:
        base = replace(base, policy=naming[0])
    if re.fullmatch(r"-?\d*\.?\d+", settings.get("aggregation", "")):
        settings |= {"aggregation": "quantile", "quantile": float(settings["aggregation"])}
    router = replace(base, **settings)
    choosers = [f"--{name}" for name in ("budget", "preset") if name in asked and router.policy == base.policy]
    chooser = (*choosers, f"the policy {router.policy}")[0]
    directed = replace(router, directions=options.directions)
    clip = max(router.forced_blocks, router.stride) if getattr(options, "continue_from", None) else 0
    last = (options.blocks or BLOCKS) + clip
    for name in asked:
        flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
        _check_heeded(name, flag, chooser, directed, last)
    return router


def _check_heeded(name: str, flag: str, chooser: str, router: RouterConfig, blocks: int) -> None:
    """Raise `BadInput` unless a block may heed an option.

    `flag`: how it is spelled. `router`: with the directions. `chooser`: what chose the policy.
    """
    letters = {*router.directions}
    if name in OF_SCORES and letters & {"a", "r"}:
        return
    if name == "handover":
        handed = (index for index in range(min(blocks, MOST_BLOCKS)) if router.handover_at(index))
        early = (decide_early(router, index, ()) for index in handed)
        if router.handover and all(decision and decision.accepted for decision in early):
            raise BadInput(f"no block is handed over, so {flag} has no effect; leave it out")
    elif letters and ROUTER_DECIDES not in letters:
        if name != "preset" or "r" not in letters:  # which is remade with the preset's handover
            raise BadInput(f"--directions decides every block, so {flag} has no effect; leave one of them out")
    elif name not in OVERRULED and not _reads(router.policy, name):
        raise BadInput(f"{chooser} does not heed {flag}; leave one of them out")


def _reads(policy: str, name: str) -> bool:
    """Whether blocks under a policy heed an option."""
    if name == "forced_blocks":
        return policy != "always-target"
    return name in POLICIES[policy] or (policy == REWARD and name in ("bail_out", "gate_prompt"))


def load_options(options: argparse.Namespace, *, embedded: bool = False) -> LoadOptions:
    """Return how to load and run the models. `embedded`: they are the embedded set."""
    loading = {
        "drafter": _model_options(options, "drafter"),
        "target": _model_options(options, "target"),
        "device": pick_device(options.device.partition(",")[0], embedded=embedded),
        "execution": Execution(**_stated(options, Execution)),
    }
    return LoadOptions(**{**_stated(options, LoadOptions), **loading})


def _stated(options: argparse.Namespace, config: type[VideoRequest | LoadOptions | Execution]) -> dict[str, Any]:
    """Return the fields of a config that a command's options set."""
    return {field.name: getattr(options, field.name) for field in fields(config) if hasattr(options, field.name)}


def _model_options(options: argparse.Namespace, role: str) -> ModelOptions:
    names = {"cache": "policy"}
    settings = {
        names.get(name, name.replace("-", "_")): value == "yes" if SETTINGS[name] is YES_NO else value
        for name, value in getattr(options, f"{role}_settings")
    }
    return ModelOptions(**settings)


def model_files(options: argparse.Namespace, request: VideoRequest | None = None) -> ModelFiles:
    """Return the files of a run. `request`: the video; None if every model is needed."""
    named = {known.role: getattr(options, known.role) for known in KNOWN_FILES}
    modules = tuple(options.control_modules)
    return choose_files(options.models, request, named, tokenizer=options.tokenizer, control_modules=modules)


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
