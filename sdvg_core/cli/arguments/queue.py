"""Have running ComfyUI servers make many videos, from one workflow and a list of prompts.

Each prompt is made with each seed, in a numbered folder with video.mp4, report.json and route.png; videos.csv lists
them. A server has two videos at a time. If it goes away, the other servers get them, and it is asked again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .shared import file_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--server",
        action="append",
        required=True,
        metavar="URL",
        help="of a ComfyUI with this node pack, such as http://127.0.0.1:8188; give several to share the videos",
    )
    parser.add_argument(
        "--workflow", type=file_path, required=True, metavar="FILE", help="in API form (File, Export (API))"
    )
    parser.add_argument("--prompt-file", type=file_path, required=True, help="prompts, one per line")
    parser.add_argument(
        "--output", type=file_path, default=Path("out"), help="folder to write into (default ./out)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="SEED", help="each prompt with each (default: the workflow's seed)"
    )
    parser.add_argument(
        "--prompt-node",
        metavar="ID[.INPUT]",
        help="where the prompt goes (default: the text that the sampler's prompt and conditioning come from)",
    )
    parser.add_argument("--resume", action="store_true", help="leave finished videos alone, and make the others")
    parser.add_argument("--json", action="store_true", help="print the table as JSON, one line per video")
