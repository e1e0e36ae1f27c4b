"""Make a short video with the embedded models, on any machine, and the same by the target alone to compare.

They are a complete miniature of the real system, with the same classes, file formats and loaders, trained on a
small world of moving shapes (sdvg_core/pocket).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ...devices.execution import AUTO
from ...pocket import DEFAULT_PROMPT, POCKET
from .shared import (
    add_kernel_options,
    add_router_options,
    add_video_options,
    file_path,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--prompt",
        default=DEFAULT_PROMPT,
        help="what to show; of the small world, or the nearest is taken (%(default)r)",
    )
    parser.add_argument("--strict", action="store_true", help="refuse a prompt outside the small world")
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
    devices = parser.add_argument_group("devices")
    devices.add_argument("--device", default=AUTO, help="cpu, cuda ...; auto (default) is the CPU, which is enough")
    add_kernel_options(devices)
