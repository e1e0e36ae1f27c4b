"""Make videos from prompts.

Writes video.mp4, latents.safetensors, blocks, report.json and route.png into the output folder; for a
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

from ..engine.restyle import WORDS
from ..errors import BadInput
from ..pocket import POCKET
from .shared import add_device_options, add_model_options, add_router_options, add_video_options, file_path

if TYPE_CHECKING:
    from ..models.options import LoadOptions
    from ..report.run_report import RunReport
    from ..request.request import VideoRequest
    from ..text.prompts import PromptSchedule
    from ..videos.batch import Batch
    from ..videos.maker import StopRequest
    from ..videos.table import Row

FAILURES = 1
INTERRUPTED = 130
SHORT = (
    *("--prompt", "--prompt-file", "--output", "--models", "--size", "--blocks", "--seed", "--start-image"),
    *("--preset", "--gate", "--takes", "--reuse"),
)
"""What --help shows of the options."""
EXAMPLES = """examples:
  python -m sdvg_core generate --models pocket --prompt "a big blue ball drifts right from the left over sand"
  python -m sdvg_core generate --models ~/ComfyUI/models --size portrait --prompt "a red fox runs through snow"
  python -m sdvg_core generate --reuse out --takes 6:2 --prompt "a red fox runs through snow"

The last makes block 6 again with other noise, and the blocks after it, which follow from it.
"""
EMBEDDED = [
    "--drafter-settings=preset=self-forcing-1.3b",
    "--target-settings=preset=krea-14b",
    *("--dtype", "float32", "text=float32"),
    "--size=64x64",
]
"""How the embedded models are run, as options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", help="what the video should show; a line '5: a storm' changes it from block 5 on"
    )
    prompt.add_argument(
        "--prompt-file", type=file_path, help="prompts, one video per line; lines '5: a storm' are of one video"
    )
    parser.add_argument(
        "--from", dest="report", type=file_path, metavar="REPORT", help="report.json of a video to make again"
    )
    parser.add_argument(
        "--output", type=file_path, default=Path("out"), help="folder to write into (default ./out)"
    )
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one line per video")
    add_video_options(parser)
    _add_clip_options(parser)
    add_router_options(parser)
    add_model_options(parser)
    add_device_options(parser)
    many = parser.add_argument_group("many videos", "of a --prompt-file, each whole on one worker; same videos")
    many.add_argument(
        "--workers", type=int, metavar="N", help="processes that each hold the models, on --device in turn"
    )
    many.add_argument("--ray", metavar="ADDRESS", help="workers on a Ray cluster: its address, or local")


def _add_clip_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a video starts from, and what its blocks obey."""
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--continue-from",
        type=file_path,
        metavar="CLIP",
        help="go on from a clip: latents.safetensors, a video, or a folder of pictures (16 a second)",
    )
    begin.add_argument("--start-image", type=file_path, metavar="PICTURE", help="the video's first frame")
    begin.add_argument(
        "--restyle", type=file_path, metavar="CLIP", help="make a video or a folder of pictures anew, by the prompt"
    )
    parser.add_argument("--strength", help=f"of --restyle: {', '.join(WORDS)}, or a number up to 1 (medium)")
    parser.add_argument(
        "--colour-hold",
        type=float,
        default=0.0,
        metavar="0..1",
        help="pull each block's colours back to those its scene began with, for long clips (0: not at all)",
    )
    control = parser.add_argument_group("control", "what every block obeys; each model needs its VACE module")
    control.add_argument(
        "--control",
        type=file_path,
        metavar="CLIP",
        help="depth, scribbles, flow, grey or, with a mask, what it keeps: a video or a folder of pictures, from "
        "the video's first frame on",
    )
    control.add_argument(
        "--control-mask",
        type=file_path,
        metavar="CLIP",
        help="white is made, black is kept from --control; a clip or one picture",
    )
    control.add_argument("--control-strength", type=float, default=1.0, help="0 to 1, or a little above (1)")
    control.add_argument(
        "--control-edge", type=int, default=0, metavar="PIXELS", help="over which kept regions fade out (0)"
    )


def run(options: argparse.Namespace) -> int:
    """Make the requested videos."""
    from ..devices.device import resolved_threads
    from ..files.outputs import REPORT
    from ..report.run_report import read_report
    from ..videos.files import naming_source
    from .again import router_again, words_again

    if options.report and options.report.is_dir():
        options.report /= REPORT
    path = options.report
    report = read_report(path) if path else None
    before = words_again(report, options.models) if report else []
    # Also for a report that lacks one of the embedded models, because no block asked for it.
    before = [*EMBEDDED, *before] if options.models == POCKET or f"--models={POCKET}" in before else before
    stated = tuple(name for name, value in vars(options).items() if value != options.parser.get_default(name))
    # Placed first, so that options on the command line override them.
    options = options.parser.parse_args([*before, *options.words[1:]])
    options.seed = options.seeds[0]
    options.report = path
    options.stated = stated
    options.base_router = router_again(report) if report else None
    for name in ("continue_from", "start_image", "restyle", "control", "control_mask"):
        if report and report.settings.get(name) and not getattr(options, name):
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(f"the video began from {report.settings[name]!s:.60}; add {flag} FILE")
    embedded = options.models == POCKET
    with resolved_threads(embedded=embedded), naming_source(options.models):
        return _run(options, report, embedded=embedded)


def _run(options: argparse.Namespace, again: RunReport | None, *, embedded: bool) -> int:
    from ..devices.device import device_line
    from ..report.summary import summarise
    from ..videos.maker import StopRequest, make_many, make_videos
    from ..videos.table import FAILED, FINISHED
    from .again import compared
    from .options import load_options, video_request, worker_devices

    request = video_request(options)
    load = load_options(options, embedded=embedded)
    warn = partial(print, "sdvg:", file=sys.stderr)
    prompts, notes = read_prompts(options, again)
    devices = worker_devices(options, load.device)
    for note in notes:
        warn(note)
    batch = _batch(options, load, request, prompts)
    stopping = StopRequest()
    say: Callable[[str], None] = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    say(device_line(load.device, load.dtype))
    if devices:
        folder, rows = make_many(
            batch, devices, ray=options.ray, most=options.workers, stopping=stopping, warn=warn
        )
        print_rows(rows, folder, json_lines=options.json)
        stopped = exit_code(stopping, whole=all(row.state in (FINISHED, FAILED) for row in rows))
        return stopped or (FAILURES if any(row.state == FAILED for row in rows) else 0)
    reports = make_videos(batch, stopping=stopping, say=say, warn=warn)
    for folder, report in reports:
        print(json.dumps(report.as_dict()) if options.json else f"{summarise(report)}\nWritten to {folder}")
        if again and len(reports) == 1 and folder.resolve() != options.report.parent.resolve():
            say(compared(again, options.report.parent, report, folder))
    whole = len(reports) == len(prompts) * len(batch.seeds) and all(
        len(report.blocks) == batch.request.blocks for _, report in reports
    )
    return exit_code(stopping, whole=whole)


def _batch(
    options: argparse.Namespace, load: LoadOptions, request: VideoRequest, prompts: tuple[PromptSchedule, ...]
) -> Batch:
    from ..request.request import with_strengths
    from ..videos.batch import Batch
    from .options import model_files

    same = ("output", "resume", "overwrite", "gate_prompt", "reuse", "private")
    return Batch(
        files=model_files(options, request),
        load=load,
        request=with_strengths(request, prompts[0]),
        prompts=prompts,
        seeds=tuple(options.seeds),
        numbered=bool(options.prompt_file) and not prompts[0].changes,
        stated=options.stated,
        **{name: getattr(options, name) for name in same},
    )


def print_rows(rows: Sequence[Row], folder: Path, *, json_lines: bool) -> None:
    """Print what was made of many videos, what is missing, and why. `folder`: of their table."""
    from ..files.outputs import CSV
    from ..report.summary import count
    from ..videos.table import FAILED, FINISHED

    for why, missing in groupby((row for row in rows if row.state == FAILED), key=lambda row: row.error):
        folders = ", ".join(row.folder for row in missing)
        sys.stderr.write(f"sdvg: not made: {folders}: {why}; the same command tries again\n")
    if json_lines:
        print(*(json.dumps(asdict(row)) for row in rows), sep="\n")
    else:
        finished = sum(row.state == FINISHED for row in rows)
        print(f"{finished} of {count(len(rows), 'video')} finished; the table is {folder / CSV}")


def exit_code(stopping: StopRequest, *, whole: bool) -> int:
    """Return 0, or what shells expect of a program that Ctrl-C ended; then say how to go on.

    `whole`: whether everything was made by then.
    """
    if whole or not stopping.asked:
        return 0
    sys.stderr.write("sdvg: stopped as asked; the same command makes the rest\n")
    return INTERRUPTED


def read_prompts(
    options: argparse.Namespace, again: RunReport | None
) -> tuple[tuple[PromptSchedule, ...], list[str]]:
    """Return the prompts of each video, and notes; for the embedded models, the nearest of their small world."""
    from ..text.prompts import read_prompt, read_prompt_list
    from ..videos.api import understood
    from .again import prompts_again

    if options.prompt_file:
        prompts = read_prompt_list(options.prompt_file)
    elif options.prompt is not None:
        prompts = (read_prompt(options.prompt),)
    elif again:
        prompts = (prompts_again(again),)
    else:
        options.parser.error("there is no prompt; add --prompt TEXT, --prompt-file FILE or --from report.json")
    return understood(prompts) if options.models == POCKET else (prompts, [])
