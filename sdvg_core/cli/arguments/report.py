"""Make one page of a folder of videos that opens from disk without a server."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--html",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the folder of one video or of numbered videos; index.html is written into it",
    )
    parser.add_argument("--json", action="store_true", help="print what is on the page as JSON")
