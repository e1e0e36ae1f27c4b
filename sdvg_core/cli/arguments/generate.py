"""Make videos from prompts.

Writes video.mp4, latents.safetensors, blocks.safetensors, report.json and route.png into the output folder; for a
list of prompts, into one numbered folder per prompt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .shared import (
    add_device_options,
    add_model_options,
    add_router_options,
    add_video_options,
    file_path,
)


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
    _add_crew_options(parser)


def _add_crew_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    many = parser.add_argument_group("many videos", "of a --prompt-file, each whole on one worker; same videos")
    many.add_argument(
        "--workers", type=int, metavar="N", help="processes that each hold the models (default: one per device)"
    )
    many.add_argument("--devices", metavar="NAMES", help="for the workers in turn, such as cuda:0,cuda:1")
    many.add_argument("--ray", metavar="ADDRESS", help="workers on a Ray cluster: its address, or local")
