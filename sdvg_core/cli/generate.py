"""Make videos from prompts.

Writes video.mp4, latents.safetensors, blocks.safetensors, report.json and route.png into the output folder; for a
list of prompts, into one numbered folder per prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .shared import add_device_options, add_model_options, add_router_options, add_video_options, file_path

if TYPE_CHECKING:
    from ..pipeline.table import Row
    from ..pipeline.videos import Stopping
    from ..text.prompts import PromptSchedule

FAILURES, INTERRUPTED = 1, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="what the video should show")
    prompt.add_argument("--prompt-file", type=file_path, help="prompts, one video per line")
    prompt.add_argument(
        "--prompt-schedule",
        type=file_path,
        help="prompts of one video; each line has the first block it applies to (from 1), a colon, the text",
    )
    parser.add_argument(
        "--output", type=file_path, default=Path("out"), help="folder to write into (default ./out)"
    )
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one line per video")
    add_video_options(parser)
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--continue-from", type=file_path, metavar="LATENTS", help="latents.safetensors of a clip to continue"
    )
    begin.add_argument("--start-image", type=file_path, metavar="PICTURE", help="the video's first frame")
    add_router_options(parser)
    add_model_options(parser)
    add_device_options(parser)
    many = parser.add_argument_group("many videos", "of a --prompt-file, each whole on one worker; same videos")
    many.add_argument(
        "--workers", type=int, metavar="N", help="processes that each hold the models (default: one per device)"
    )
    many.add_argument("--devices", metavar="NAMES", help="for the workers in turn, such as cuda:0,cuda:1")
    many.add_argument("--ray", metavar="ADDRESS", help="workers on a Ray cluster: its address, or local")


def run(options: argparse.Namespace) -> int:
    """Make the videos that were asked for."""
    from ..devices.device import settled_threads

    with settled_threads():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from ..devices.device import device_line
    from ..files.outputs import check_writable
    from ..pipeline.batch import Batch
    from ..pipeline.many import make_many
    from ..pipeline.table import FAILED, FINISHED
    from ..pipeline.videos import Stopping, make_videos
    from ..report.summary import summarise
    from .options import load_options, model_files, video_request, worker_devices

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
        private=options.private,
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
    from ..files.outputs import CSV
    from ..pipeline.table import FAILED, FINISHED
    from ..report.summary import count

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
    from ..text.prompts import one_prompt, read_prompt_list, read_prompt_schedule

    if options.prompt_file:
        return read_prompt_list(options.prompt_file)
    if options.prompt_schedule:
        return (read_prompt_schedule(options.prompt_schedule),)
    return (one_prompt(options.prompt),)
