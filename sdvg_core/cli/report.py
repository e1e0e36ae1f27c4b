"""Make one page of a folder of videos that opens from disk without a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of one video or of numbered videos; index.html is written into it",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page and print its path. List unreadable videos there and on stderr; they are no failure."""
    from ..report.page import write_page

    path, page = write_page(options.folder)
    for name, reason in page.unreadable.items():
        sys.stderr.write(f"sdvg: {printable(name)} is unreadable: {reason}\n")
    print(path)
    return 0
