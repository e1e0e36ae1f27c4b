"""Say what a checkpoint is, whether it would load, and why not.

Exit code 0 if a run would take the file, else 2.
"""

from __future__ import annotations

import argparse

from .shared import file_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "file", type=file_path, help="a file of weights, an index of shards, or a folder with either"
    )
    parser.add_argument("--values", action="store_true", help="also read all values, and look for NaN and infinity")


def run(options: argparse.Namespace) -> int:
    """Print the inspection of the file."""
    from ..models.inspection import inspect_file

    findings = inspect_file(options.file, values=options.values)
    print("\n".join(f"{name:<13}{value}" for name, value in findings.items() if value))
    return 2 if findings["reason"] else 0
