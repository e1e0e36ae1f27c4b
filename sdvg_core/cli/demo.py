"""Make a short video with the embedded models, on any machine.

They are a complete miniature of the real system, with the same classes, file formats and loaders, trained on a
small world of moving shapes (sdvg_core/pocket).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from ..files.outputs import check_writable
from ..pipeline.batch import Batch
from ..pipeline.request import VideoRequest
from ..pipeline.stopping import Stopping
from ..pipeline.videos import make_videos
from ..pocket.grammar import parse
from ..pocket.trained_set import DEFAULT_PROMPT, POCKET, judge_file, pocket_options, trained_set
from ..pocket.world import SIZE
from ..report.summary import summarise
from ..text.prompts import one_prompt
from .generate import exit_code
from .options import (
    add_kernel_options,
    add_router_options,
    add_video_options,
    execution,
    file_path,
    router_config,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompt", default=DEFAULT_PROMPT, help="a prompt of the small world (%(default)r)")
    parser.add_argument(
        "--output", type=file_path, default=Path("out/demo"), help="folder to write into (default ./out/demo)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--judge-vae",
        type=file_path,
        metavar="FILE",
        help=f"a fast decoder that decodes drafts for their scores; {POCKET} for the embedded one (default: none)",
    )
    add_video_options(parser, size=False)
    add_router_options(parser)
    add_kernel_options(parser.add_argument_group("devices"))


def run(options: argparse.Namespace) -> int:
    """Make one video with the embedded models, and list the files worth looking at."""
    scene = parse(options.prompt)
    request = VideoRequest(
        blocks=options.blocks,
        seed=options.seed,
        width=SIZE,
        height=SIZE,
        fps=options.fps,
        drafter_context=options.drafter_context,
        router=router_config(options),
        budget=options.budget,
        directions=options.directions,
        takes=options.takes,
    )
    check_writable(options.output)
    if not options.json:
        print(
            f"Two tiny models will make {request.blocks} blocks of {scene.text!r}. One drafts each block, and "
            "every frame of the draft is scored. The other, larger and slower, remakes blocks that score too low."
        )
    began, stopping = time.perf_counter(), Stopping()
    meant = pocket_options()
    batch = Batch(
        files=replace(trained_set(), judge_vae=judge_file(options.judge_vae)),
        load=replace(meant, execution=execution(options)),
        request=request,
        gate_prompt=options.gate_prompt,
        reuse=options.reuse,
        prompt_in_report=options.prompt_in_report,
    )
    prompts = (one_prompt(scene.text),)
    ((folder, report),) = make_videos(batch, prompts, options.output, resume=options.resume, stopping=stopping)
    if options.json:
        print(json.dumps(report.as_dict()))
        return exit_code(stopping, folder, whole=len(report.blocks) == request.blocks)
    print(summarise(report))
    print(f"Done in {time.perf_counter() - began:.0f} s. Worth looking at:")
    print(f"  {folder / 'video.mp4'}")
    print(f"  {folder / 'route.png'}: which blocks were kept, and why")
    print(f"  {folder / 'report.json'}: every score and second")
    return exit_code(stopping, folder, whole=len(report.blocks) == request.blocks)
