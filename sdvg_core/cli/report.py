"""Make one page of a folder of videos that opens from disk without a server."""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--json", action="store_true", help="print what is on the page as JSON")


def run(options: argparse.Namespace) -> int:
    """Write the page and print its path. List unreadable videos there and on stderr; they are no failure."""
    from ..report.page import write_page

    path, page = write_page(options.folder)
    for name, reason in page.unreadable.items():
        sys.stderr.write(f"sdvg: {printable(name)} is unreadable: {reason}\n")
    if options.json:
        print(json.dumps({"page": str(path), "videos": page.videos, "unreadable": page.unreadable}))
    else:
        print(path)
    return 0
