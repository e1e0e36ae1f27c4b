"""A video again, from its report: the options that make it, and what differs once it is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.latents import load_latents
from ..engine.router import RouterConfig
from ..errors import BadInput, printable
from ..files.outputs import LATENTS
from ..models.loading import ROUNDED
from ..pocket import POCKET
from ..pocket.trained_set import NAMES
from ..report.run_report import RunReport, hide_prompt, is_hidden
from ..text.prompts import PromptSchedule
from ..videos.identity import differences

VIDEO = ("seed", "blocks", "drafter_context", "compile")
MODEL = (
    *("block_frames", "schedule", "first_schedule", "draft_steps", "context_frames", "keep_first_frame"),
    *("window", "sink", "relative", "recache", "flush", "context_memory"),
)
FILES = {"drafter": "drafter", "target": "target", "vae": "vae", "text_encoder": "text_encoder", "scorer": "reward"}
NO_SETTINGS = "the report has no settings of a run; give the report.json that generate wrote"


def words_again(report: RunReport, models: Path | None) -> list[str]:
    """Return the options of `generate` for a report's video.

    `models`: where its files are looked for, by name; None to look for none.
    Raises `BadInput` if the report lacks them.
    """
    words = []
    now = report.settings
    try:
        scorer = now["scorer"]
        options: dict[str, Any] = {name: now[name] for name in VIDEO}
        options["directions"] = now["router"]["directions"][report.blocks[0].span.index :]
        options["takes"] = ",".join(f"{place}:{take}" for place, take in now["takes"].items())
        options["fps"] = report.fps
        words += ["--dtype", f"vae={now['vae']['dtype']}", f"text={now['text_encoder']['dtype']}"]
        if "crop" in scorer:
            words.append(f"reward={scorer['dtype']}")
            options["crop"] = scorer["crop"]
        for role in ("drafter", "target"):
            if model := now[role]:
                options["dtype"] = model["dtype"]
                if model["quantisation"] == ROUNDED:
                    options["weight_dtype"] = ROUNDED.split(",")[0]
                if model["kv_dtype"] != model["dtype"]:
                    options["kv_dtype"] = model["kv_dtype"]
                settings = [f"{name.replace('_', '-')}={_text(model[name])}" for name in MODEL if name in model]
                words += [f"--{role}-settings", f"preset={model['preset']}", f"cache={model['policy']}", *settings]
        if now["vae"]["file"] == NAMES["vae"]:
            options["models"] = POCKET
        elif models:
            paths = {path.name: path for path in sorted(models.rglob("*")) if path.is_file()}
            names = {option: (now[role] or {}).get("file") for role, option in FILES.items()}
            options |= {option: paths.get(str(name)) for option, name in names.items()}
            loras = dict.fromkeys(
                text for role in ("drafter", "target") for text in (now[role] or {}).get("loras", ())
            )
            for name, _, strength in (text.rpartition(":") for text in loras):
                if name not in paths:
                    raise BadInput(
                        f"the video was made with the LoRA {name}, which is not in {models}; put it there"
                    )
                words.append(f"--lora={paths[name]}:{strength}")
        kept = ("strength", "colour_hold", "control_strength", "control_edge")
        options |= {name: now[name] for name in kept if name in now}
        words += [
            f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value not in (None, "")
        ]
        return [*words, f"--size={now['width']}x{now['height']}"]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(NO_SETTINGS) from error


def router_again(report: RunReport) -> RouterConfig:
    """Return the router of a report's video, without the directions. Raises `BadInput` for one from outside."""
    settings = {**report.settings["router"], "directions": ""}
    if part := settings.pop("part", None):
        raise BadInput(f"the video was made with a router of your own, {part!s:.40}; make it again from Python")
    if unknown := settings.keys() - RouterConfig.__dataclass_fields__.keys():
        names = ", ".join(sorted(map(printable, unknown)))
        raise BadInput(
            f"the report's router has settings that this version lacks: {names:.60}; use options instead"
        )
    return RouterConfig(**settings)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def prompts_again(report: RunReport) -> PromptSchedule:
    """Return the prompts of a report. Raises `BadInput` if they are hidden."""
    runs = groupby(report.blocks, key=lambda record: record.prompt)
    (_, text), *later = [(next(blocks).span.index, text) for text, blocks in runs]
    if any(map(is_hidden, (text, *(text for _, text in later)))):
        raise BadInput("the report has hashes in place of its prompts; add the prompt with --prompt")
    cuts = report.settings.get("cuts") or []
    if not isinstance(cuts, list) or not all(isinstance(block, int) for block in cuts):
        raise BadInput(NO_SETTINGS)
    return PromptSchedule(((0, text), *later), cuts=tuple(block - 1 for block in cuts))


def compared(then: RunReport, at: Path, now: RunReport, folder: Path) -> str:
    """Return whether a video made again is the same, or what differs. `at`, `folder`: where the two are."""
    comparable = os.path.lexists(at / LATENTS)
    if comparable and torch.equal(load_latents(at / LATENTS).latents, load_latents(folder / LATENTS).latents):
        return f"The same video as in {at}, bit for bit."
    if changed := differences(_settings_of(then), _settings_of(now)):
        return f"Not the video of {at}: other {changed}."
    reason = "the latents are others" if comparable else f"there are no {LATENTS} to compare"
    return f"The settings are those of {at}; {reason}."


def _settings_of(report: RunReport) -> dict[str, str]:
    """Return the settings that a video was made with, as text by name."""
    prompts = [block.prompt if is_hidden(block.prompt) else hide_prompt(block.prompt) for block in report.blocks]
    parts = {**report.settings, "prompts": prompts, "version of": report.versions}
    values = {name: part if isinstance(part, Mapping) else {"": part} for name, part in parts.items()}
    flat = {f"{name} {inner}".strip(): str(value) for name, part in values.items() for inner, value in part.items()}
    # Where a video was made is not what it is.
    return {name: value for name, value in flat.items() if not name.endswith("device")}
