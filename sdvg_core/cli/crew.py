"""The options and the progress of many videos that several workers make."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path

from ..devices.device import check_device
from ..engine.records import BlockRecord
from ..errors import BadInput
from ..files.outputs import CSV
from ..pipeline.batch import Batch, Video
from ..pipeline.many import Crew, make_many
from ..pipeline.stopping import Stopping
from ..pipeline.table import FAILED, FINISHED, Row
from ..report.crowd import CrowdBar
from ..report.summary import count
from ..text.prompts import PromptSchedule


def crew_of(options: argparse.Namespace, device: str) -> Crew | None:
    """Return who makes the videos, or None if this process does. `device`: of workers that get none of their own.

    Raises `BadInput` for workers that make no sense.
    """
    if options.workers is None and not options.devices and not options.ray:
        return None
    if not options.prompt_file:
        raise BadInput("workers share the videos of a --prompt-file, but there is none; give one, or no workers")
    if options.workers is not None and options.workers < 1:
        raise BadInput(f"--workers must be at least 1, but is {options.workers}; give 1 or more")
    if options.ray:
        if options.devices:
            raise BadInput("--devices are this machine's and --ray is a cluster, but got both; give one of them")
        return Crew(ray=options.ray, most=options.workers)
    devices = [name.strip() for name in (options.devices or device).split(",")]
    for name in devices:
        check_device(name)
    return Crew(devices=tuple(islice(cycle(devices), options.workers or len(devices))))


def make_and_show(
    batch: Batch, prompts: tuple[PromptSchedule, ...], options: argparse.Namespace, crew: Crew, stopping: Stopping
) -> tuple[Row, ...]:
    """Make the videos, show how, print what became of them, and return the rows of their table."""
    with ExitStack() as stack:

        def show(videos: Sequence[Video], rows: Sequence[Row]) -> Shown:
            return Shown(stack.enter_context(closing(CrowdBar(len(videos), batch.request.blocks))))

        folder, rows = make_many(
            batch,
            prompts,
            options.output,
            crew,
            show,
            resume=options.resume,
            overwrite=options.overwrite,
            stopping=stopping,
        )
    print_rows(rows, folder, json_lines=options.json)
    return rows


def print_rows(rows: Sequence[Row], folder: Path, *, json_lines: bool) -> None:
    """Print what became of many videos, whose table is in `folder`."""
    for row in rows:
        if row.state == FAILED:
            sys.stderr.write(f"sdvg: video {row.folder} was not made: {row.error}\n")
        if json_lines:
            print(json.dumps(asdict(row)))
    if not json_lines:
        finished = sum(row.state == FINISHED for row in rows)
        print(f"{finished} of {count(len(rows), 'video')} finished; the table is {folder / CSV}")


class Shown:
    """Tells a `CrowdBar` what the workers do."""

    def __init__(self, bar: CrowdBar) -> None:
        self._bar = bar

    def block(self, worker: int, video: Video, record: BlockRecord) -> None:
        """A block is done."""
        self._bar.block(worker, video.number, record)

    def video(self, worker: int, row: Row) -> None:
        """A video was made, or given up."""
        failed = row.state == FAILED
        said = f"failed: {row.error}" if failed else f"{row.state}: {row.route}, {row.seconds:.1f} s"
        self._bar.ended(worker, row.number, said, failed=failed)

    def again(self, worker: int, video: Video, reason: str) -> None:
        """A video failed and will be tried once more."""
        self._bar.again(worker, video.number, reason)
