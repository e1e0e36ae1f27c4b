"""Carry out `inspect`: what a checkpoint is."""

from __future__ import annotations

import argparse
import json

from ..pipeline.inspection import inspect_file


def run(options: argparse.Namespace) -> int:
    """Print what the file is. A file that would not load is still a successful inspection."""
    found = inspect_file(options.file, values=options.values)
    print(json.dumps(found.as_dict(), indent=2) if options.json else found)
    return 0
