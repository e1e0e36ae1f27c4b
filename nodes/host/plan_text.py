"""What a run does with memory, in sentences: before the models are loaded, and when memory has run out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...sdvg_core.errors import BadInput
from ...sdvg_core.plan.text import NAMES, STEP_NAMES, gigabytes
from .needs import Needs
from .residency import Room, Weights


def describe_plan(models: Sequence[Weights], needs: Needs, room: Room, device: torch.device) -> list[str]:
    """Say what a run will keep on `device`, what will be copied there, and whether it fits.

    `models`: those of the run, in the order of `load_together`; models on other devices are left out.
    """
    here = [model for model in models if model.device == device]
    weights = sum(model.bytes for model in here)
    if device.type == "cpu":
        return [
            f"cpu: {gigabytes(weights)} of weights and {gigabytes(needs.total)} besides in main memory, of which "
            f"{gigabytes(room.usable)} are free; nothing is moved. {_parts(needs)}"
        ]
    needed = f"{gigabytes(needs.total)} of {gigabytes(room.usable)} needed besides weights"
    lines = [f"{device}: {needed}. {_parts(needs)}"]
    left = room.usable - needs.total
    if left < 0:
        return [*lines, f"{device}: it does not fit, {gigabytes(-left)} are missing before any weights"]
    for model in reversed(here):
        stays = min(model.bytes, left)
        left -= stays
        copied = f", {gigabytes(model.bytes - stays)} are copied over in every pass" if stays < model.bytes else ""
        lines.append(f"{device}: {NAMES[model.name]}, {gigabytes(stays)} stay there{copied}")
    fits = weights + needs.total <= room.usable
    return [
        *lines,
        f"{device}: everything fits" if fits else f"{device}: it runs, but slower because of the copying",
    ]


def out_of_memory(models: Sequence[Weights], needs: Needs, room: Room, device: torch.device) -> BadInput:
    """Return the error for a run that ran out of memory, with the numbers and three settings that would help."""
    weights = sum(model.bytes for model in models if model.device == device)
    return BadInput(
        f"out of memory on {device}: the run needs {gigabytes(needs.total)} besides up to {gigabytes(weights)} of "
        f"weights, but of {gigabytes(room.total)} only {gigabytes(room.usable)} can be used ({_parts(needs)}); lower "
        "width and height, take weight dtype fp8_e4m3fn, or a custom preset with less window or context"
    )


def _parts(needs: Needs) -> str:
    parts = sorted(needs.parts.items(), key=lambda item: -item[1])
    inside = ", ".join(f"{NAMES.get(name, name)} {gigabytes(size)}" for name, size in parts)
    return f"Peak while {STEP_NAMES[needs.step]}: {inside}"
