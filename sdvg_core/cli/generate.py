"""Make videos from prompts.

Writes video.mp4, latents.safetensors, blocks, report.json and route.png into the output folder; for a
list of prompts, into one numbered folder per prompt.
"""

from __future__ import annotations

import argparse

from ..settings.request import VideoRequest
from .shared import (
    add_model_options,
    add_output,
    add_overwrite,
    add_router_options,
    add_settings,
    add_size,
    file_path,
)

SHORT = (
    *("--prompt", "--prompt-file", "--output", "--models", "--size", "--blocks", "--seed", "--start-image"),
    *("--preset", "--gate", "--takes", "--reuse"),
)
"""Options shown by --help."""
EXAMPLES = """examples:
  python -m sdvg_core generate --models pocket --prompt "a big blue ball drifts right from the left over sand"
  python -m sdvg_core generate --models ~/ComfyUI/models --size portrait --prompt "a red fox runs through snow"
  python -m sdvg_core generate --reuse out/001 --takes 6:2 --prompt "a red fox runs through snow"
  python -m sdvg_core generate --models pocket --live --prompt "a big red ball over sand"

The third makes block 6 again with other noise, and the blocks after it, which follow from it. In the last, a
line that you type is the prompt from the next block on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", help="what the video should show; a line '5: a storm' changes it from block 5 on"
    )
    prompt.add_argument(
        "--prompt-file",
        type=file_path,
        help="prompts, one video per line or row; lines '5: a storm' are of one video",
    )
    parser.add_argument(
        "--from", dest="report", type=file_path, metavar="REPORT", help="report.json of a video to make again"
    )
    add_output(parser, "out")
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
    video.add_argument(
        "--live",
        action="store_true",
        help="the drafter alone makes the video, of --blocks at most (a minute), and typed lines change its "
        "prompt; --from its report.json makes it again, with --preset by both models",
    )
    add_overwrite(video)
    add_router_options(parser)
    add_model_options(parser)
    many = parser.add_argument_group("many videos", "of a --prompt-file, or fresh shots of one; same videos")
    many.add_argument(
        "--workers", type=int, metavar="N", help="processes that each hold the models, on --device in turn"
    )
    many.add_argument("--ray", metavar="ADDRESS", help="workers on a Ray cluster: its address, or local")


def run(options: argparse.Namespace) -> int:
    """Make the requested videos."""
    from .making import generate

    return generate(options)
