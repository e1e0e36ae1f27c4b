"""Make a short video with the embedded models, on any machine.

Until a trained set is shipped the weights are random, so the picture is noise; the files, the loaders, the route
and the report are the real ones.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ..loading import LoadOptions, ModelOptions
from ..outputs import check_writable
from ..pocket.random_set import write_random_set
from ..prompts import one_prompt
from ..rendering import VideoRequest
from ..summary import summarise
from .generate import make_videos
from .options import add_router_options, add_video_options, router_config

PROMPT = "a small red ball moves from left to right over a blue field"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument(
        "--output", type=Path, default=Path("out/demo"), help="folder to write into (default ./out/demo)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_video_options(parser, size=False)
    add_router_options(parser)


def run(options: argparse.Namespace) -> int:
    """Write the model set, make one video with it, and say what is worth looking at."""
    request = VideoRequest(
        blocks=options.blocks,
        seed=options.seed,
        width=64,
        height=64,
        fps=options.fps,
        drafter_context=options.drafter_context,
        router=router_config(options),
    )
    prompts = (one_prompt(options.prompt),)
    check_writable(options.output)
    if not options.json:
        print(
            f"A tiny drafter and target with random weights will make {request.blocks} blocks of noise at 64x64; "
            "each draft is scored frame by frame, and the target remakes those whose worst frame falls short."
        )
    began = time.perf_counter()
    files = write_random_set(options.output / "models")
    load = LoadOptions(
        drafter=ModelOptions(preset="self-forcing-1.3b"),
        target=ModelOptions(preset="krea-14b"),
        text_dtype="float32",
    )
    ((folder, report),) = make_videos(files, load, request, prompts, options.output, options.gate_prompt)
    if options.json:
        print(json.dumps(report.as_dict()))
        return 0
    print(summarise(report))
    print(f"Done in {time.perf_counter() - began:.0f} s. Worth looking at:")
    print(f"  {folder / 'route.png'}: which blocks were kept, and why")
    print(f"  {folder / 'report.json'}: every score and second")
    print(f"  {folder / 'video.mp4'}")
    return 0
