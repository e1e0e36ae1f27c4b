"""Make a short video with the embedded models, on any machine, then the same by the target alone.

They are a complete miniature of the real system, with the same classes, file formats and loaders, trained on a
small world of moving shapes (sdvg_core/pocket).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..pocket import DEFAULT_PROMPT, EXAMPLES
from ..request.request import VideoRequest
from .shared import add_overwrite, add_router_options, add_settings, file_path

if TYPE_CHECKING:
    from ..report.run_report import RunReport
    from ..videos.batch import Batch
    from ..videos.maker import StopRequest

TARGET_ONLY = "target-only"
"""Subfolder of the video's folder, for the target-only video."""
COMPARISON = "comparison.mp4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--prompt",
        default=DEFAULT_PROMPT,
        help="what to show; of the small world, or the nearest is taken; or a number of --list (%(default)r)",
    )
    parser.add_argument("--list", action="store_true", help="print six prompts to try, and make nothing")
    parser.add_argument(
        "--output", type=file_path, default=Path("out/demo"), help="folder to write into (default ./out/demo)"
    )
    video = parser.add_argument_group("video")
    add_settings(video, VideoRequest, only=("blocks", "directions", "seed"))
    add_overwrite(video)
    add_router_options(parser, demo=True)


def run(options: argparse.Namespace) -> int:
    """Make a video with the embedded models and the comparison; print route, seconds and folder."""
    from ..devices.device import resolved_threads

    options.prompt = options.prompt.strip()
    if not options.prompt:
        raise BadInput("the prompt is empty; write one, or give the number of one of --list")
    numbered = {str(number): prompt for number, prompt in enumerate(EXAMPLES, 1)}
    if options.list:
        print(*(f"{number}  {prompt}" for number, prompt in numbered.items()), sep="\n")
        return 0
    if options.prompt.lstrip("+-").isdecimal() and options.prompt not in numbered:
        raise BadInput(f"there is no prompt {options.prompt:.20}; choose 1 to {len(numbered)}, as --list has them")
    options.prompt = numbered.get(options.prompt, options.prompt)
    with resolved_threads(embedded=True):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from ..devices.device import device_line
    from ..errors import count
    from ..files.outputs import remove_video
    from ..pocket.grammar import understand
    from ..pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
    from ..pocket.world import SIZE
    from ..report.summary import route_in_words
    from ..text.prompts import one_prompt
    from ..videos.batch import Batch
    from ..videos.maker import StopRequest, make_videos
    from .generate import exit_code
    from .options import video_request

    scene, note = understand(options.prompt)
    if note:
        print(note, file=sys.stderr)
    request = video_request(options, {"width": SIZE, "height": SIZE})
    load = pocket_options()
    say = partial(print, flush=True)
    say(device_line(load.device, load.dtype))
    stopping = StopRequest()
    batch = Batch(
        files=replace(trained_set(), vae=pocket_fast_vae()),
        load=load,
        request=request,
        prompts=(one_prompt(scene.text),),
        output=options.output,
        overwrite=options.overwrite,
        last=COMPARISON,
    )
    say(
        f"Two tiny models will make {count(request.blocks, 'block')} of {scene.text!r}. "
        "The smaller one drafts; the larger, slower one makes the blocks that the route leaves to it."
    )
    warn = partial(print, "sdvg:", file=sys.stderr)
    ((folder, report),) = make_videos(batch, stopping=stopping, say=say, warn=warn)
    compared = not options.overwrite and (folder / COMPARISON).exists()
    if options.overwrite:  # the comparison there is of an earlier video
        (folder / COMPARISON).unlink(missing_ok=True)
        remove_video(folder / TARGET_ONLY)
    alone = None
    if not compared and not stopping.asked and report.tally.by_target < len(report.blocks):
        say("To compare, the large model alone makes the same blocks from the same noise.")
        alone = _compare(batch, folder, report, stopping)
    if report.tally.by_target == len(report.blocks) and not stopping.asked:
        remedy = "lower --gate" if report.tally.scored else "make more --blocks, or take --preset fast"
        say(f"The large model made every block, so there is nothing to compare; {remedy}.")
    blocks = route_in_words(report)
    say(f"{blocks[0].upper()}{blocks[1:]}.")
    if alone and not any(block.reused for block in report.blocks):
        seconds = report.seconds.total
        whole = alone.seconds.total
        say(f"Measured: {seconds:.2f} s; the large model alone {whole:.2f} s: {whole / seconds:.2f}x as fast.")
    shown = f"{COMPARISON} shows it next to the large model's, " if alone or compared else ""
    say(f"Look at {folder}: {shown}video.mp4 alone, route.png who made which block, report.json every figure.")
    return exit_code(stopping, whole=len(report.blocks) == request.blocks)


def _compare(batch: Batch, folder: Path, report: RunReport, stopping: StopRequest) -> RunReport | None:
    """Make the target-only video and the comparison; return the report of the former, or None if it was stopped.

    The comparison is decoded from both latents, as an mp4's pixels are compressed, and by the VAE, as the TAEHV
    (whose time is measured) blurs a clip's first frame. `folder`, `report`: of the routed video.
    """
    from ..checkpoints.latents import load_latents
    from ..engine.router import RouterConfig
    from ..files.outputs import LATENTS, whole_file
    from ..files.video import Mp4Writer
    from ..models.loading import load_decoder
    from ..pocket.comparison import Side, side_by_side
    from ..pocket.trained_set import trained_set
    from ..videos.maker import make_videos

    alone = replace(batch.request, router=RouterConfig(policy="always-target"), budget=None, directions="")
    # `last`: a target-only video without its comparison counts as unfinished.
    last = f"../{COMPARISON}"
    batch = replace(batch, request=alone, output=folder / TARGET_ONLY, last=last)
    ((other, alone_report),) = make_videos(batch, stopping=stopping)
    if stopping.asked:
        return None
    codec = load_decoder(trained_set().vae, batch.load)
    frames = [codec.decode(load_latents(video / LATENTS).latents)[0][0] for video in (folder, other)]
    sides = Side("Both models", frames[0], report), Side("Large model alone", frames[1], alone_report)
    with whole_file(folder / COMPARISON) as path, Mp4Writer(path, report.fps) as video:
        for frame in side_by_side(*sides):
            video.add(frame)
    return alone_report
