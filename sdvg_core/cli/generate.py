"""Carry out `generate`: videos from prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial

from ..devices.picking import device_line, settled_threads
from ..files.outputs import check_writable
from ..pipeline.batch import Batch
from ..pipeline.stopping import Stopping
from ..pipeline.table import FAILED, FINISHED
from ..pipeline.videos import make_videos
from ..report.summary import summarise
from ..text.prompts import PromptSchedule, one_prompt, read_prompt_list, read_prompt_schedule
from .crew import crew_of, make_and_show
from .options import (
    load_options,
    model_files,
    video_request,
)

FAILURES, INTERRUPTED = 1, 130


def run(options: argparse.Namespace) -> int:
    """Make the videos that were asked for."""
    with settled_threads():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    request, load = video_request(options), load_options(options)
    prompts, crew = read_prompts(options), crew_of(options, load.device)
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
    if crew:
        rows = make_and_show(batch, prompts, options, crew, stopping)
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
