"""Carry out `report`: one page of a folder of videos."""

from __future__ import annotations

import argparse
import json
import sys

from ..errors import printable
from ..page.document import write_page


def run(options: argparse.Namespace) -> int:
    """Write the page, and print where it is. A video that cannot be read is named there, and is no failure."""
    path, page = write_page(options.html)
    for name, reason in page.unreadable.items():
        sys.stderr.write(f"sdvg: {printable(name)} is unreadable: {reason}\n")
    if options.json:
        found = {"page": str(path), "videos": page.videos, "unreadable": page.unreadable}
        print(json.dumps(found))
    else:
        print(path)
    return 0
