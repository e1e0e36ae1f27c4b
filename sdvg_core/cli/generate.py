"""Carry out `generate`: videos from prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path

from ..devices.device import device_line, settled_threads
from ..files.outputs import CSV, check_writable
from ..pipeline.batch import Batch
from ..pipeline.many import make_many
from ..pipeline.stopping import Stopping
from ..pipeline.table import FAILED, FINISHED, Row
from ..pipeline.videos import make_videos
from ..report.summary import count, summarise
from ..text.prompts import PromptSchedule, one_prompt, read_prompt_list, read_prompt_schedule
from .options import load_options, model_files, video_request, worker_devices

FAILURES, INTERRUPTED = 1, 130


def run(options: argparse.Namespace) -> int:
    """Make the videos that were asked for."""
    with settled_threads():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    request, load = video_request(options), load_options(options)
    prompts, devices = read_prompts(options), worker_devices(options, load.device)
    check_writable(options.output)
    stopping = Stopping()
    batch = Batch(
        files=model_files(options, request),
        load=load,
        request=request,
        gate_prompt=options.gate_prompt,
        reuse=options.reuse,
        prompt_in_report=options.prompt_in_report,
        numbered=bool(options.prompt_file),
        command=options.words,
    )
    say: Callable[[str], None] = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    say(device_line(load.device, load.dtype))
    if devices:
        workers = {"devices": devices, "ray": options.ray, "most": options.workers}
        names = {"resume": options.resume, "overwrite": options.overwrite}
        folder, rows = make_many(batch, prompts, options.output, **workers, **names, stopping=stopping)
        print_rows(rows, folder, json_lines=options.json)
        told = [row for row in rows if row.state in (FINISHED, FAILED)]
        stopped = exit_code(stopping, whole=len(told) == len(rows))
        return stopped or (FAILURES if any(row.state == FAILED for row in rows) else 0)
    reports = make_videos(
        batch,
        prompts,
        options.output,
        resume=options.resume,
        overwrite=options.overwrite,
        stopping=stopping,
        say=say,
    )
    for folder, report in reports:
        print(json.dumps(report.as_dict()) if options.json else f"{summarise(report)}\nWritten to {folder}")
    whole = len(reports) == len(prompts) and all(len(report.blocks) == request.blocks for _, report in reports)
    return exit_code(stopping, whole=whole)


def print_rows(rows: Sequence[Row], folder: Path, *, json_lines: bool) -> None:
    """Print what became of many videos, what is missing and why. `folder`: of their table."""
    for why, missing in groupby((row for row in rows if row.state == FAILED), key=lambda row: row.error):
        folders = ", ".join(row.folder for row in missing)
        sys.stderr.write(f"sdvg: not made: {folders}: {why}; the same command tries again\n")
    if json_lines:
        print(*(json.dumps(asdict(row)) for row in rows), sep="\n")
    else:
        finished = sum(row.state == FINISHED for row in rows)
        print(f"{finished} of {count(len(rows), 'video')} finished; the table is {folder / CSV}")


def exit_code(stopping: Stopping, *, whole: bool) -> int:
    """Return 0, or what shells expect of a program that Ctrl-C ended; then say how to go on.

    `whole`: whether everything was made by then.
    """
    if whole or not stopping.asked:
        return 0
    sys.stderr.write("sdvg: stopped as asked; the same command makes the rest\n")
    return INTERRUPTED


def read_prompts(options: argparse.Namespace) -> tuple[PromptSchedule, ...]:
    """Return the prompts of each video."""
    if options.prompt_file:
        return read_prompt_list(options.prompt_file)
    if options.prompt_schedule:
        return (read_prompt_schedule(options.prompt_schedule),)
    return (one_prompt(options.prompt),)
