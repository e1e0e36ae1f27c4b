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

from ..checkpoints.model_files import CONTROL_FILES, KNOWN_FILES, KnownFile, ModelFiles, find_models
from ..devices.device import check_device, pick_device
from ..devices.execution import Execution
from ..engine.router import ROUTER_PRESETS, RouterConfig
from ..errors import BadInput, MissingModel
from ..files.footage import count_frames
from ..pipeline.options import LoadOptions, ModelOptions
from ..pipeline.request import VideoRequest, blocks_in
from ..pocket import POCKET
from ..pocket.trained_set import judge_file, pocket_judge, trained_set
from .shared import SETTINGS, YES_NO, show_folder

ROUTER_OPTIONS = (
    *("policy", "tau", "aggregation", "rate", "seed", "script"),
    *("forced_blocks", "bail_out", "handover"),
)
OF_A_GATE = ("gate_prompt", "judge_vae")
"""Further options that only a gate needs, so they choose one."""
SPENT = ("policy", "forced_blocks", "handover")
"""What a budget chooses."""


def video_request(options: argparse.Namespace) -> VideoRequest:
    """Return the video asked for. Raises `BadInput` for impossible values."""
    given = _given(options, VideoRequest)
    restyled = given.get("restyle")
    whole = restyled or (None if given.get("continue_from") else given.get("control"))
    if given["blocks"] is None:
        given["blocks"] = blocks_in(count_frames(whole)) if whole else 9
    if given.get("strength") is None:
        given.pop("strength", None)
    elif not restyled:
        raise BadInput("--strength needs --restyle; add a clip, or leave it out")
    return VideoRequest(**given, router=router_config(options))


def router_config(options: argparse.Namespace) -> RouterConfig:
    """Return the router's settings: the preset's, overridden by the options."""
    if getattr(options, "policy", None) == "scripted" and options.script is None:
        raise BadInput("the policy scripted has no script; add --script raaraaaaa")
    named = {name: getattr(options, "router_seed" if name == "seed" else name, None) for name in ROUTER_OPTIONS}
    given = {name: value for name, value in named.items() if value is not None}
    if re.fullmatch(r"-?\d*\.?\d+", given.get("aggregation", "")):
        given |= {"aggregation": "quantile", "quantile": float(given["aggregation"])}
    if getattr(options, "budget", None) is None:
        gated = given or any(getattr(options, name, None) is not None for name in OF_A_GATE)
        return replace(ROUTER_PRESETS[options.preset or ("paper" if gated else options.usual_preset)], **given)
    if options.preset or any(name in given for name in SPENT):
        raise BadInput("--budget allows no preset, policy, forced blocks or handover; leave them out")
    return RouterConfig(**{**given, "policy": "first"})


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
    return ModelOptions(**{"preset": getattr(options, f"{role}_preset"), **own})


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def found_models(folder: Path, known: Iterable[KnownFile] = KNOWN_FILES) -> Mapping[str, Path | None]:
    """Return the path of every role in a folder of models; for `POCKET`, the embedded ones."""
    if folder != POCKET:
        return find_models(folder, known)
    embedded = replace(trained_set(), judge_vae=pocket_judge())
    return {one.role: getattr(embedded, one.role) for one in known}


EVERY_RUN = ("vae", "text_encoder")


def model_files(options: argparse.Namespace, request: VideoRequest | None = None) -> ModelFiles:
    """Return the files of a run. `request`: the video; None if every model is needed.

    Raises `BadInput` that names what every run needs, and where to get it; `naming_source` names the rest.
    """
    found = found_models(options.models)
    paths = {known.role: getattr(options, known.role) or found[known.role] for known in KNOWN_FILES}
    paths["judge_vae"] = judge_file(options.judge_vae)
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
    modules = tuple(options.control_modules or filter(None, there)) if request and request.control else ()
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
    get = f"get {known.names[0]} from {known.source}"
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
