"""`generate` on real files of a tiny model set, what lies in its folder afterwards, and its refusals."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from safetensors.torch import load_file

from sdvg_core.cli import main
from sdvg_core.weights.model_files import ModelFiles

OUTPUTS = ["blocks", "latents.safetensors", "report.json", "route.png", "video.mp4"]
SMALL = ["--size", "32x32", "--schedule", "1000,625"]
ROLES = ("drafter", "target", "vae", "text_encoder", "reward")


def options(files: ModelFiles) -> list[str]:
    """Return what every `generate` needs."""
    named = [part for role in ROLES for part in (f"--{role.replace('_', '-')}", str(getattr(files, role)))]
    presets = ["--drafter-settings", "preset=self-forcing-1.3b", "--target-settings", "preset=krea-14b"]
    return ["generate", *named, *presets, "--text-dtype", "float32"]


def without(base: list[str], *roles: str) -> list[str]:
    kept = list(base)
    for role in roles:
        at = kept.index(f"--{role}")
        del kept[at : at + 2]
    return kept


def override(base: list[str], *more: str) -> list[str]:
    """Return options in which each is given once, as the last of `base` and `more` gives it."""
    flag = ""
    given = dict[str, list[str]]()
    for word in (*base, *more):
        if word.startswith("--"):
            flag = word
            given[flag] = given.get(flag, []) if flag == "--lora" or flag.endswith("-settings") else []
        else:
            name = word.partition("=")[0] + "="
            kept = given.setdefault(flag, [])
            if flag.endswith("-settings"):
                kept = [value for value in kept if not value.startswith(name)]
            given[flag] = [*kept, word]
    return [word for flag, values in given.items() for word in ([flag] if flag else []) + values]


def generate(base: list[str], output: Path, *more: str) -> int:
    return main(override([*base, *SMALL], "--output", str(output), *more))


def whole_help(command: str) -> str:
    """Return the help of a command, with all its options."""
    text = ""
    for word in ("--help", "--help-all"):
        if word == "--help" or word in text:
            printed = io.StringIO()
            with redirect_stdout(printed), suppress(SystemExit):
                main([command, word])
            text = printed.getvalue()
    return text


def options_in(text: str, *, with_values: bool = False) -> list[list[str]]:
    """Return the options that a help lists, each with all its names. `with_values`: only those that take values."""
    listed = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    takes_values = re.compile(r" [^-]")
    return [
        re.findall(r"--[a-z][a-z-]*", names) for names in listed if not with_values or takes_values.search(names)
    ]


def names(folder: Path) -> list[str]:
    """What lies in a folder, but for the lock that some versions of filelock leave there."""
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock") if folder.is_dir() else []


def latents(folder: Path) -> torch.Tensor:
    saved: torch.Tensor = load_file(folder / "latents.safetensors")["latents"]
    return saved


def report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return loaded


def pixel_frames(folder: Path) -> int:
    with av.open(str(folder / "video.mp4")) as container:
        return sum(1 for _ in container.decode(video=0))


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 2) -> str:
    """Run, and return the one sentence on stderr."""
    try:
        ended: object = main(arguments)
    except SystemExit as stop:  # what argparse does
        ended = stop.code
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if not line.startswith("block ")]
    assert (ended, len(line) <= 400) == (code, True), line
    assert line.startswith(("sdvg: ", "python -m sdvg_core"))
    assert "; " in line, line
    return line
