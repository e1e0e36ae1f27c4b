"""Make a short video with the embedded models, on any machine, and the same by the target alone to compare.

They are a complete miniature of the real system, with the same classes, file formats and loaders, trained on a
small world of moving shapes (sdvg_core/pocket).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..devices.execution import AUTO
from ..pocket import DEFAULT_PROMPT, POCKET
from .shared import add_router_options, add_video_options, file_path

if TYPE_CHECKING:
    from ..checkpoints.model_files import ModelFiles
    from ..pipeline.batch import Batch
    from ..pipeline.request import VideoRequest
    from ..pipeline.videos import Stopping
    from ..report.run_report import RunReport
    from ..text.prompts import PromptSchedule

TARGET_ONLY = "target-only"
"""The folder, inside that of the video, of what the target alone makes."""
TITLES = ("Drafted and routed", "Target only")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--prompt",
        default=DEFAULT_PROMPT,
        help="what to show; of the small world, or the nearest is taken (%(default)r)",
    )
    parser.add_argument(
        "--output", type=file_path, default=Path("out/demo"), help="folder to write into (default ./out/demo)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--judge-vae",
        type=file_path,
        metavar="FILE",
        help=f"decode drafts for their scores by this fast decoder, {POCKET} for the embedded one, and the "
        "video by the full VAE (default: the embedded fast decoder for both)",
    )
    add_video_options(parser, demo=True)
    add_router_options(parser, demo=True)
    devices = parser.add_argument_group("devices")
    devices.add_argument("--device", default=AUTO, help="cpu, cuda ...; auto (default) is the CPU, which is enough")


def run(options: argparse.Namespace) -> int:
    """Make one video with the embedded models, and list the files worth looking at."""
    from ..devices.device import settled_threads

    with settled_threads(embedded=True):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from ..devices.device import device_line, pick_device
    from ..files.outputs import check_writable
    from ..pipeline.batch import Batch
    from ..pipeline.comparison import COMPARISON
    from ..pipeline.videos import Stopping, make_videos
    from ..pocket.grammar import understand
    from ..pocket.trained_set import pocket_options
    from ..pocket.world import SIZE
    from ..report.summary import summarise
    from ..text.prompts import one_prompt
    from .generate import exit_code, with_the_real_pair
    from .options import video_request

    scene, told = understand(options.prompt)
    if told:
        print(told, file=sys.stderr)
    request = replace(video_request(options), width=SIZE, height=SIZE)
    check_writable(options.output)
    load = replace(pocket_options(), device=pick_device(options.device, embedded=True))
    say: Callable[[str], None] = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    say(device_line(load.device, load.dtype))
    say(outlook(request, scene.text))
    began, stopping = time.perf_counter(), Stopping()
    batch = Batch(
        files=demo_files(options.judge_vae),
        load=load,
        request=request,
        command=options.words,
    )
    prompts = (one_prompt(scene.text),)
    ((folder, report),) = make_videos(
        batch,
        prompts,
        options.output,
        resume=options.resume,
        overwrite=options.overwrite,
        last=COMPARISON,
        stopping=stopping,
        say=say,
    )
    say(summarise(report))
    say(with_the_real_pair(report))
    (folder / COMPARISON).unlink(missing_ok=True)  # of an earlier video
    compared = not stopping.asked and report.tally.by_target < len(report.blocks)
    if compared:
        say("To compare, the target alone makes the same blocks from the same noise.")
        compared = _compare(batch, prompts, folder, report, stopping, say, overwrite=options.overwrite)
    say(f"Done in {time.perf_counter() - began:.0f} s. Worth looking at:")
    if compared:
        say(f"  {folder / COMPARISON}: the video next to target-only, enlarged, with the route")
    say(f"  {folder / 'video.mp4'}")
    say(f"  {folder / 'route.png'}: which blocks were kept, and why")
    say(f"  {folder / 'report.json'}: every score and second")
    if options.json:
        print(json.dumps(report.as_dict()))
    return exit_code(stopping, whole=len(report.blocks) == request.blocks)


def demo_files(judge: Path | None) -> ModelFiles:
    """Return the embedded models; without a judge the embedded TAEHV decodes everything, in a third of the time."""
    from ..pocket.trained_set import judge_file, pocket_judge, trained_set

    fast = {"judge_vae": judge_file(judge)} if judge else {"vae": pocket_judge()}
    return replace(trained_set(), **fast)


def outlook(request: VideoRequest, text: str) -> str:
    """Return what will be made, and whether drafts are scored on this route. Raises `BadInput` if there is none."""
    from ..engine.plan import plan_blocks
    from ..report.summary import count

    # Only the number of blocks counts here, not how long they are.
    route = plan_blocks(
        request.router,
        blocks=request.blocks,
        block_frames={"drafter": 1, "target": 1},
        directions=request.directions,
        takes=request.takes,
    )
    who = (
        "The smaller one drafts, every frame of a draft is scored, and the larger, slower one makes the blocks "
        "again whose worst frame scores too low."
        if route.models_needed.scorer
        else "Nothing is scored: which one makes a block is settled beforehand."
    )
    return f"Two tiny models will make {count(request.blocks, 'block')} of {text!r}. {who}"


def _compare(
    batch: Batch,
    prompts: tuple[PromptSchedule, ...],
    folder: Path,
    report: RunReport,
    stopping: Stopping,
    say: Callable[[str], None],
    *,
    overwrite: bool,
) -> bool:
    """Make the target-only video and the comparison. Return whether it is there: not if this was stopped."""
    from ..engine.router import RouterConfig
    from ..pipeline.comparison import COMPARISON, compare_videos
    from ..pipeline.videos import make_videos

    alone = replace(batch.request, router=RouterConfig(policy="always-target"), budget=None, directions="")
    batch = replace(batch, request=alone, files=replace(batch.files, judge_vae=None), reuse=None)
    ((other, alone_report),) = make_videos(
        batch,
        prompts,
        folder / TARGET_ONLY,
        overwrite=overwrite,
        last=f"../{COMPARISON}",  # without it, a finished video here is one that we go on with
        stopping=stopping,
    )
    if stopping.asked:
        return False
    if not any(block.reused for block in report.blocks):
        seconds, whole = report.seconds.total + (report.delivery_seconds or 0), alone_report.seconds.total
        say(f"Measured: {seconds:.2f} s instead of {whole:.2f} s, {whole / seconds:.2f}x as fast as target-only.")
    say("Both are decoded again, to put them side by side.")
    compare_videos(folder, other, TITLES, batch.files.vae, batch.load)
    return True
