"""The videos that servers are asked for: one for every prompt and seed, each in its numbered folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files.outputs import PICTURE, REPORT, VIDEO, staged_outputs
from ..files.small_files import MEGABYTE, parse_json, read_small
from ..report.picture import route_picture
from ..report.run_report import RunReport, read_report
from .answers import Refused, check_success, report_in, video_in
from .client import Client
from .workflow import Workflow, digest_of

REQUEST = "request.json"
"""Beside a finished video: a hash of what was sent for it, so that `--resume` knows it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One video to ask for. `request`: a hash of what is sent. `there`: its report, if it is there already."""

    number: int
    folder: Path
    prompt: str
    seed: int
    request: str
    there: RunReport | None = None


def plan_orders(
    workflow: Workflow, prompts: Sequence[str], seeds: Sequence[int], output: Path, *, resume: bool
) -> tuple[Order, ...]:
    """Return the videos of every prompt with every seed. `resume`: look which of them are finished.

    Raises `BadInput` if something else lies where a video belongs.
    """
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    orders = []
    for number, (prompt, seed) in enumerate(pairs, 1):
        folder, request = output / f"{number:04d}", digest_of(workflow.filled(prompt, seed))
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"a video goes into the folder {folder}, but that is a file; move it away")
        there = _finished(folder, request, workflow.blocks) if resume else None
        orders.append(Order(number=number, folder=folder, prompt=prompt, seed=seed, request=request, there=there))
    return tuple(orders)


def _finished(folder: Path, request: str, blocks: int | None) -> RunReport | None:
    """Return the report of a finished video, or None if there is none, or one that was stopped early."""
    if not (folder / VIDEO).exists() and not (folder / REPORT).exists():
        return None
    if not (folder / VIDEO).is_file() or _request_in(folder) != request:
        raise BadInput(
            f"{folder} holds another video; name another folder, or leave --resume out to replace what is there"
        )
    report = read_report(folder / REPORT)
    return report if blocks in (None, len(report.blocks)) else None


def _request_in(folder: Path) -> Any:
    try:
        kept = parse_json(read_small(folder / REQUEST, MEGABYTE))
    except (OSError, ValueError):
        return None
    return kept.get("request") if isinstance(kept, dict) else None


def deliver(client: Client, order: Order, entry: dict[str, Any], halted: Callable[[], bool]) -> RunReport:
    """Fetch what a server made into the order's folder, all of it or nothing, and return the report.

    `entry`: of the server's history. Raises `Refused` if it made no such video, and `Away` if it breaks off.
    """
    check_success(entry)
    report, file = report_in(entry, order.seed), video_in(entry)
    try:
        picture = route_picture(report)
    except (OverflowError, ValueError) as error:
        raise Refused("its report has numbers that no picture holds") from error
    with staged_outputs(order.folder) as staging:
        video = staging.path(VIDEO)
        client.fetch(file, video, halted)
        _check_mp4(video, file.name)
        staging.path(REPORT).write_text(report.to_json(), encoding="utf-8")
        picture.save(staging.path(PICTURE), format="PNG")
        staging.path(REQUEST).write_text(json.dumps({"request": order.request}) + "\n", encoding="utf-8")
    return report


def _check_mp4(path: Path, name: str) -> None:
    with path.open("rb") as file:
        begin = file.read(8)
    if begin[4:] != b"ftyp":
        raise Refused(f"the server sent {name!r:.80}, but that is no mp4")
