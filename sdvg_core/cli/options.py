"""From the options of a command to the configs of a run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ..checkpoints.model_files import CONTROL_FILES, KNOWN_FILES, KnownFile, ModelFiles, find_models, misplaced
from ..devices.device import check_device, pick_device
from ..devices.execution import Execution
from ..engine.router import POLICIES, ROUTER_DECIDES, ROUTER_PRESETS, RouterConfig, decide_early
from ..engine.types import MOST_BLOCKS
from ..errors import BadInput, MissingModel
from ..files.footage import count_frames
from ..pipeline.options import LoadOptions, ModelOptions
from ..pipeline.request import BLOCKS, VideoRequest, blocks_in
from ..pocket import POCKET
from ..pocket.trained_set import trained_set
from .shared import SETTINGS, YES_NO, show_folder

FLAGS = {"tau": "--gate"}
"""How options are spelled whose field has another name."""
ROUTER_OPTIONS = ("policy", "tau", "aggregation", "forced_blocks", "bail_out", "handover")
NAMING = {"tau": "reward"}
"""Options that choose a policy, unless the policy that is stated reads them."""
OF_SCORES = ("aggregation", "gate_prompt")
"""Options of any block that is scored, by the policy or by a direction."""
SPENT = ("preset", "policy", "forced_blocks", "handover")
"""What a budget chooses."""
OVERRULED = ("preset", "budget", "policy")
"""Options without effect where every block has a direction, besides the settings of a policy."""


def video_request(options: argparse.Namespace) -> VideoRequest:
    """Return the video asked for. Raises `BadInput` for impossible values."""
    given = _given(options, VideoRequest)
    restyled = given.get("restyle")
    whole = restyled or (None if given.get("continue_from") else given.get("control"))
    if given["blocks"] is None:
        given["blocks"] = blocks_in(count_frames(whole)) if whole else BLOCKS
    if given.get("strength") is None:
        given.pop("strength", None)
    elif not restyled:
        raise BadInput("--strength needs --restyle; add a clip, or leave it out")
    return VideoRequest(**given, router=router_config(options))


def router_config(options: argparse.Namespace) -> RouterConfig:
    """Return the router's settings: those of the preset, or of the report to make again, overridden by the options.

    Raises `BadInput` for an option that no block would heed.
    """
    named = {name: getattr(options, name, None) for name in ROUTER_OPTIONS}
    given = {name: value for name, value in named.items() if value is not None}
    others = [name for name in (*OVERRULED, *OF_SCORES) if getattr(options, name, None) is not None]
    asked = dict.fromkeys((*others, *given))
    budget = "budget" in asked
    if budget and any(name in asked for name in SPENT):
        raise BadInput("--budget allows no preset, policy, forced blocks or handover; leave them out")
    gated = given or any(name in asked for name in OF_SCORES)
    usual = ROUTER_PRESETS["paper" if gated else options.usual_preset]
    base = ROUTER_PRESETS[options.preset] if options.preset else getattr(options, "base_router", None) or usual
    if budget:
        base = RouterConfig(policy="first")
    naming = [policy for name, policy in NAMING.items() if name in given and not _reads(base.policy, name)]
    if naming and not budget:
        base = replace(base, policy=naming[0])
    if re.fullmatch(r"-?\d*\.?\d+", given.get("aggregation", "")):
        given |= {"aggregation": "quantile", "quantile": float(given["aggregation"])}
    router = replace(base, **given)
    stated = [f"--{name}" for name in ("budget", "preset") if name in asked and router.policy == base.policy]
    chooser = (*stated, f"the policy {router.policy}")[0]
    directed = replace(router, directions=options.directions)
    last = (options.blocks or BLOCKS) + (router.forced_blocks if getattr(options, "continue_from", None) else 0)
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
    by_score = POLICIES[policy].decide is not None
    return name in POLICIES[policy].settings or (by_score and name in ("bail_out", "gate_prompt"))


def load_options(options: argparse.Namespace, *, embedded: bool = False) -> LoadOptions:
    """Return how to load and run the models. `embedded`: they are the embedded set."""
    own = {
        "drafter": _model_options(options, "drafter"),
        "target": _model_options(options, "target"),
        "device": pick_device(options.device.partition(",")[0], embedded=embedded),
        "execution": Execution(**_given(options, Execution)),
    }
    return LoadOptions(**{**_given(options, LoadOptions), **own})


def _given(options: argparse.Namespace, config: type[VideoRequest | LoadOptions | Execution]) -> dict[str, Any]:
    """Return the fields of a config that a command's options set."""
    return {field.name: getattr(options, field.name) for field in fields(config) if hasattr(options, field.name)}


def _model_options(options: argparse.Namespace, role: str) -> ModelOptions:
    names = {"cache": "policy"}
    own = {
        names.get(name, name.replace("-", "_")): value == "yes" if SETTINGS[name] is YES_NO else value
        for name, value in getattr(options, f"{role}_settings")
    }
    return ModelOptions(**own)


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def found_models(folder: Path, known: Iterable[KnownFile] = KNOWN_FILES) -> Mapping[str, Path | None]:
    """Return the path of every role in a folder of models; for `POCKET`, the embedded ones."""
    if folder != POCKET:
        return find_models(folder, known)
    embedded = trained_set()
    return {one.role: getattr(embedded, one.role) for one in known}


EVERY_RUN = ("vae", "text_encoder")


def model_files(options: argparse.Namespace, request: VideoRequest | None = None) -> ModelFiles:
    """Return the files of a run. `request`: the video; None if every model is needed.

    Raises `BadInput` that names what every run needs, and where to get it; `naming_source` names the rest.
    """
    found = found_models(options.models)
    paths = {known.role: getattr(options, known.role) or found[known.role] for known in KNOWN_FILES}
    needed = EVERY_RUN if request else (*EVERY_RUN, "drafter", "target", "reward")
    missing = {known.role: known for known in KNOWN_FILES if known.role in needed and not paths[known.role]}
    if request and not (paths["drafter"] or paths["target"]):
        missing["a drafter or target"] = KNOWN_FILES[0]
    if missing:
        fault, rest = f"the run needs {_listed([*missing])}", ", see doctor for the rest" * (len(missing) > 1)
        raise BadInput(_get(fault, next(iter(missing.values())), options.models, rest))
    for role, path in paths.items():
        if path is not None and not path.exists():
            raise BadInput(f"there is no {role} at {path}; check the path")
    files = {role: path for role, path in paths.items() if path is not None}
    there = find_models(options.models, CONTROL_FILES).values()
    controlled = request is not None and request.control is not None
    if options.control_modules and not controlled:
        raise BadInput("--control-modules has no effect without --control; add a clip, or leave them out")
    modules = tuple(options.control_modules or filter(None, there)) if controlled else ()
    return ModelFiles(**files, tokenizer=options.tokenizer, controls=modules)


@contextmanager
def naming_source(models: Path) -> Iterator[None]:
    """Add to a missing model's error where to get it. `models`: the folder where it was expected."""
    try:
        yield
    except MissingModel as error:
        role = "reward" if error.role == "scorer" else error.role
        known = next(known for known in KNOWN_FILES if known.role == role)
        raise BadInput(_get(error.fault, known, models, f", {error.way_out}")) from error


def _get(fault: str, known: KnownFile, models: Path, way_out: str = "") -> str:
    get = misplaced(models, known) or f"get {known.names[0]} from {known.source}"
    return f"{fault}, but none was given or found in {show_folder(models)}; {get}{way_out}, or try --models pocket"


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
