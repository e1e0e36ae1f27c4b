"""Make a video again from its report (`--from`): read request, files and options from it, then compare the results.

The report is read into a request, and not into words of a command line that would be parsed again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput
from ..files.outputs import LATENTS
from ..pocket.trained_set import FAST_VAE_NAME, WEIGHT_FILES, pocket_fast_vae
from ..report.embeddings import EMBEDDINGS, encoded_otherwise, other_embedding
from ..report.run_report import RunReport, hide_prompt, is_hidden
from ..settings.fields import from_json, settings_of
from ..settings.load import LoadOptions
from ..settings.request import VideoRequest, read_clips, read_shots
from ..settings.route import Custom, Route
from ..text.prompts import PromptSchedule
from ..videos.fingerprint import differences, flat
from ..weights.latents import load_latents

FILE_OPTIONS = {
    "drafter": "drafter",
    "target": "target",
    "vae": "vae",
    "text_encoder": "text_encoder",
    "scorer": "reward",
}
"""Key in a report's settings -> role of the model file."""
UNSET = ("", "[]", "None")
NO_SETTINGS = "the report has no settings of a run; give the report.json that generate wrote"


def is_embedded(report: RunReport) -> bool:
    """True if a report is of a video made by the embedded models."""
    return _settings(report, "vae").get("file") in (WEIGHT_FILES["vae"], FAST_VAE_NAME)


def embedded_again(report: RunReport) -> dict[str, Path]:
    """Return the files of a report of embedded models that are not the default, by role."""
    return {"vae": pocket_fast_vae()} if _settings(report, "vae").get("file") == FAST_VAE_NAME else {}


def request_again(report: RunReport, stated: Collection[str]) -> dict[str, Any]:
    """Return the fields of a report's request except the route. `stated`: fields that the user gives.

    Raises `BadInput` for clips or a picture that are not stated: the report has only their names.
    """
    known = settings_of(VideoRequest)
    values = {name: value for name, value in report.request.items() if name in known and value is not None}
    values.pop("route", None)
    for of_lines in ("shots", "shown_clips"):
        values.pop(of_lines, None)  # they come with the prompts
    clips = values.pop("clips", None)
    if clips and "clips" not in stated:
        raise BadInput(f"the video shows {_named_clips(clips)}; add each as --clip NAME=FILE")
    files = [name for name in values if Path in known[name].kinds and values[name] not in known[name].choices]
    for name in files:
        file = values.pop(name)
        if name not in stated:
            raise BadInput(f"the video began from {file!s:.60}; add {known[name].flags[0]} FILE")
    return values


def _named_clips(clips: Any) -> str:
    """Return the names and files of a report's clips, for an error message."""
    known = clips if isinstance(clips, list) and all(isinstance(clip, Mapping) for clip in clips) else []
    return ", ".join(f"{clip.get('name')!s:.13} ({clip.get('path')!s:.40})" for clip in known) or "clips"


def route_again(report: RunReport) -> Route:
    """Return the route of a report. Raises `BadInput` for a router of the user's own, or a route for each shot."""
    settings = _settings(report, "route")
    shots = report.settings.get("shots", [])
    if not isinstance(shots, list) or not all(isinstance(shot, Mapping) for shot in shots):
        raise BadInput(NO_SETTINGS)
    if any("route" in shot for shot in shots):
        raise BadInput("a budget bought each shot its own route; add the same --budget")
    policy = settings.get("policy")
    if isinstance(policy, Mapping) and policy.get("kind") == Custom.__name__:
        name = f"{policy.get('router')!s:.40}"
        raise BadInput(f"the video was made with a router of your own, {name}; make it again from Python")
    return from_json(Route, settings)


def load_again(report: RunReport, load: LoadOptions, loras: tuple[str, ...]) -> LoadOptions:
    """Return the load options of a report. `load`: whose devices and memory are taken. `loras`: their files.

    Raises `BadInput` for a report of ComfyUI, whose nodes load the models.
    """
    if not report.load:
        fault = "the report does not say how the models were loaded, as one of ComfyUI does not"
        raise BadInput(f"{fault}; queue its workflow again, or give a report that generate wrote")
    here = ("device", "side_device", "vram")
    values = {name: value for name, value in report.load.items() if name not in here}
    again = from_json(LoadOptions, {**values, "loras": loras})
    return replace(again, **{name: getattr(load, name) for name in here})


def files_again(
    report: RunReport, models: Path, stated: Collection[str]
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Look up a report's files in a folder of models; return them by role, and its LoRAs as `path:strength`.

    `stated`: roles whose files the user gives. Raises `BadInput` for another file that is missing.
    """
    paths = {path.name: path for path in sorted(models.rglob("*")) if path.is_file()}
    parts = {part: _settings(report, part) for part in FILE_OPTIONS if report.settings.get(part)}
    names = {FILE_OPTIONS[part]: str(settings["file"]) for part, settings in parts.items() if settings.get("file")}
    if missing := [role for role, name in names.items() if name not in paths and role not in stated]:
        fault = f"the video was made with the {missing[0]} {names[missing[0]]}, which is not in {models}"
        raise BadInput(f"{fault}; put it there, or give another by --{missing[0].replace('_', '-')}")
    loras = []
    for text in map(str, report.load.get("loras") or ()):
        name, _, strength = text.rpartition(":")
        if name not in paths:
            raise BadInput(f"the video was made with the LoRA {name}, which is not in {models}; put it there")
        loras.append(f"{paths[name]}:{strength}")
    return {role: paths[name] for role, name in names.items() if name in paths}, tuple(loras)


def _settings(report: RunReport, part: str) -> Mapping[str, Any]:
    """Return one mapping of a report's settings. Raises `BadInput` if it is missing."""
    settings = report.settings.get(part)
    if not isinstance(settings, Mapping):
        raise BadInput(NO_SETTINGS)
    return settings


def prompts_again(report: RunReport) -> PromptSchedule:
    """Return the prompts of a report. Raises `BadInput` if it has none, or if they are hidden.

    A cut begins a prompt, even with the same text, or right after a clip that the video continues.
    """
    if not report.blocks:
        raise BadInput("every block of the video was locked, so the report has no prompt; add it with --prompt")
    cuts = report.settings.get("cuts") or []
    if not isinstance(cuts, list) or not all(isinstance(block, int) for block in cuts):
        raise BadInput(NO_SETTINGS)
    scenes = tuple(block - 1 for block in cuts)
    shots = read_shots(str(report.request.get("shots") or ""))
    clips = read_clips(str(report.request.get("shown_clips") or ""))
    begins = {*scenes, *(shot.start for shot in shots[1:])}
    text = report.blocks[0].prompt
    entries = [(0, text)]
    for index, record in enumerate(report.blocks, report.blocks[0].span.index):
        if record.prompt != text or index in begins:
            text = record.prompt
            entries.append((index, text))
    if any(is_hidden(text) for _, text in entries):
        raise BadInput("the report has hashes in place of its prompts; add the prompt with --prompt")
    return PromptSchedule(tuple(entries), cuts=scenes, shots=shots, clips=clips)


def latents_in(folder: Path) -> Tensor | None:
    """Return the latents of a video, or None if the file is missing."""
    return load_latents(folder / LATENTS).latents if os.path.lexists(folder / LATENTS) else None


def compared(then: RunReport, latents: Tensor | None, at: Path, now: RunReport, folder: Path) -> str:
    """Return a sentence on whether a video made again is the same, or what differs.

    `then`, `latents`, `at`: report, latents and folder of the first video. `now`, `folder`: of the new one.
    """
    hidden = any(is_hidden(block.prompt) for report in (then, now) for block in report.blocks)
    changed = differences(_settings_of(then, hidden=hidden), _settings_of(now, hidden=hidden))
    if latents is not None and torch.equal(latents, load_latents(folder / LATENTS).latents):
        if changed:
            return f"The same latents as in {at}, bit for bit; other {changed}."
        return f"The same video as in {at}, bit for bit."
    numbers = encoded_otherwise(then, now)
    of_embeddings = f" {other_embedding(numbers, 'then')}." if numbers else ""
    if changed:
        return f"Not the video of {at}: other {changed}.{of_embeddings}"
    if numbers:
        return f"Not the video of {at}.{of_embeddings}"
    reason = "the latents are others" if latents is not None else f"there are no {LATENTS} to compare"
    return f"The settings are those of {at}; {reason}."


def _settings_of(report: RunReport, *, hidden: bool) -> dict[str, str]:
    """Return the settings of a video as text, by name; prompts and the user's choices come first.

    `hidden`: replace prompts by hashes, to compare with a report that has only hashes.
    """
    groups = groupby(enumerate(report.blocks, 1), key=lambda pair: pair[1].prompt)
    prompts = [(next(blocks)[0], text) for text, blocks in groups]
    if hidden:
        prompts = [(number, text if is_hidden(text) else hide_prompt(text)) for number, text in prompts]
    settings = {
        "prompt": "; ".join(f"{number}: {text}" if number > 1 else text for number, text in prompts),
        "seed": report.settings.get("seed"),
        "route": _settings(report, "route"),
        **report.request,
        **report.settings,
        EMBEDDINGS: None,  # `compared` says which differ, of prompts that are the same
        "version of": report.versions,
    }
    # A different device is no different video.
    values = flat(settings).items()
    # An older report lacks newer settings, and an empty one says the same.
    return {name: value for name, value in values if not name.endswith("device") and value not in UNSET}
