"""List what is installed, the devices, the model files, and what is missing with where to get it."""

from __future__ import annotations

import argparse
from pathlib import Path

from .shared import (
    file_path,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--models", type=file_path, default=Path("models"), help="folder of models (default ./models)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
