"""Make videos from prompts.

Writes video.mp4, latents.safetensors, blocks, report.json and route.png into the output folder; for a
list of prompts, into one numbered folder per prompt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pocket import POCKET
from ..request.request import VideoRequest
from .shared import add_model_options, add_overwrite, add_router_options, add_settings, add_size, file_path

if TYPE_CHECKING:
    from ..report.run_report import RunReport
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
"""Options shown by --help."""
EXAMPLES = """examples:
  python -m sdvg_core generate --models pocket --prompt "a big blue ball drifts right from the left over sand"
  python -m sdvg_core generate --models ~/ComfyUI/models --size portrait --prompt "a red fox runs through snow"
  python -m sdvg_core generate --reuse out --takes 6:2 --prompt "a red fox runs through snow"

The last makes block 6 again with other noise, and the blocks after it, which follow from it.
"""


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
    video = parser.add_argument_group("video")
    video.add_argument(
        "--seed", "--seeds", dest="seeds", type=int, nargs="+", default=[], help="each its video (42)"
    )
    add_size(video)
    add_settings(video, VideoRequest, but=("seed", "budget"))
    video.add_argument(
        "--reuse",
        type=file_path,
        metavar="FOLDER",
        help="an earlier video; its blocks are used again where they are provably the same",
    )
    video.add_argument(
        "--private", action="store_true", help="a hash in place of every prompt in report.json and the table"
    )
    add_overwrite(video)
    video.add_argument(
        "--resume",
        action="store_true",
        help="go on in --output alone: refuse what another request left there, and leave finished videos alone",
    )
    add_router_options(parser)
    add_model_options(parser)
    many = parser.add_argument_group("many videos", "of a --prompt-file, each whole on one worker; same videos")
    many.add_argument(
        "--workers", type=int, metavar="N", help="processes that each hold the models, on --device in turn"
    )
    many.add_argument("--ray", metavar="ADDRESS", help="workers on a Ray cluster: its address, or local")


def run(options: argparse.Namespace) -> int:
    """Make the requested videos."""
    from ..devices.device import resolved_threads
    from ..files.outputs import REPORT
    from ..report.run_report import read_report
    from ..videos.files import naming_source
    from .again import is_embedded

    if options.report and options.report.is_dir():
        options.report /= REPORT
    report = read_report(options.report) if options.report else None
    embedded = options.models == POCKET or bool(report and options.models is None and is_embedded(report))
    options.models = POCKET if embedded else options.models or Path("models")
    with resolved_threads(embedded=embedded), naming_source(options.models):
        return _run(options, report, embedded=embedded)


def _run(options: argparse.Namespace, again: RunReport | None, *, embedded: bool) -> int:
    from ..devices.device import device_line
    from ..files.outputs import REPORT
    from ..report.run_report import read_report
    from ..report.summary import summarise
    from ..videos.maker import StopRequest, make_many, make_videos
    from ..videos.table import FAILED, FINISHED
    from .again import compared, latents_in
    from .options import worker_devices

    warn = partial(print, "sdvg:", file=sys.stderr)
    prompts, notes = read_prompts(options, again)
    batch = _batch(options, again, prompts, embedded=embedded)
    for note in notes:
        warn(note)
    load = batch.load
    devices = worker_devices(options, load.device)
    stopping = StopRequest()
    # Read the earlier latents now, as the new video may replace them.
    compare: Callable[[RunReport, Path], str] | None = None
    if again:
        compare = partial(compared, again, latents_in(options.report.parent), options.report.parent)
    say: Callable[[str], None] = partial(print, flush=True)
    say(device_line(load.device, load.dtype))
    if devices:
        folder, rows = make_many(
            batch, devices, ray=options.ray, most=options.workers, stopping=stopping, warn=warn
        )
        print_rows(rows, folder)
        for row in rows:
            if compare and row.state == FINISHED:
                video = folder / row.folder
                say(f"{video}: {compare(read_report(video / REPORT), video)}")
        stopped = exit_code(stopping, whole=all(row.state in (FINISHED, FAILED) for row in rows))
        return stopped or (FAILURES if any(row.state == FAILED for row in rows) else 0)
    reports = make_videos(batch, stopping=stopping, say=say, warn=warn)
    for folder, report in reports:
        print(f"{summarise(report)}\nWritten to {folder}")
        if compare:
            say(compare(report, folder))
    whole = len(reports) == len(prompts) * max(len(batch.seeds), 1) and all(
        len(report.blocks) == batch.request.blocks for _, report in reports
    )
    return exit_code(stopping, whole=whole)


def _batch(
    options: argparse.Namespace, again: RunReport | None, prompts: tuple[PromptSchedule, ...], *, embedded: bool
) -> Batch:
    """Return the batch: the user's options over the report's values over the defaults."""
    from ..models.options import LoadOptions
    from ..pocket.trained_set import pocket_options
    from ..pocket.world import SIZE
    from ..request.request import with_strengths
    from ..videos.batch import Batch
    from .again import (
        FILES,
        embedded_again,
        files_again,
        load_again,
        request_again,
        router_again,
    )
    from .options import load_options, model_files, stated, video_request

    if options.seeds:
        options.seed = options.seeds[0]
    base: dict[str, Any] = {"width": SIZE, "height": SIZE} if embedded else {}
    load = pocket_options() if embedded else LoadOptions()
    named: dict[str, Path] = {}
    if again:
        base |= request_again(again, stated(options, VideoRequest))
        load = load_again(again, load)
        if embedded:
            named = embedded_again(again)
        else:
            given = [role for role in FILES.values() if getattr(options, role)]
            named, loras = files_again(again, options.models, given)
            load = replace(load, loras=loras)
    request = video_request(options, base, router_again(again) if again else None)
    actions = [action for action in options.parser._actions if action.option_strings]
    same = ("output", "resume", "overwrite", "reuse", "private")
    return Batch(
        files=model_files(options, options.models, request, named),
        load=load_options(options, load, embedded=embedded),
        request=with_strengths(request, prompts[0]),
        prompts=prompts,
        seeds=tuple(options.seeds),
        numbered=bool(options.prompt_file) and not prompts[0].changes,
        stated=tuple(a.option_strings[0] for a in actions if getattr(options, a.dest, a.default) != a.default),
        **{name: getattr(options, name) for name in same},
    )


def print_rows(rows: Sequence[Row], folder: Path) -> None:
    """Print the results of many videos, with failures grouped by reason. `folder`: of their table."""
    from ..errors import count
    from ..files.outputs import TABLE
    from ..videos.table import FAILED, FINISHED

    for why, missing in groupby((row for row in rows if row.state == FAILED), key=lambda row: row.error):
        folders = ", ".join(row.folder for row in missing)
        sys.stderr.write(f"sdvg: not made: {folders}: {why}; the same command tries again\n")
    finished = sum(row.state == FINISHED for row in rows)
    print(f"{finished} of {count(len(rows), 'video')} finished; the table is {folder / TABLE}")


def exit_code(stopping: StopRequest, *, whole: bool) -> int:
    """Return 0, or 130 after Ctrl-C with a line on how to go on. `whole`: whether everything was made anyway."""
    if whole or not stopping.asked:
        return 0
    sys.stderr.write("sdvg: stopped as asked; the same command makes the rest\n")
    return INTERRUPTED


def read_prompts(
    options: argparse.Namespace, again: RunReport | None
) -> tuple[tuple[PromptSchedule, ...], list[str]]:
    """Return the prompts of each video, and notes. The embedded models get the nearest prompts they know."""
    from ..pocket.grammar import understood
    from ..text.prompts import read_prompt_list, read_video_prompt
    from .again import prompts_again

    if options.prompt_file:
        prompts = read_prompt_list(options.prompt_file)
    elif options.prompt is not None:
        prompts = (read_video_prompt(options.prompt),)
    elif again:
        prompts = (prompts_again(again),)
    else:
        options.parser.error("there is no prompt; add --prompt TEXT, --prompt-file FILE or --from report.json")
    return understood(prompts) if options.models == POCKET else (prompts, [])
