"""So that `python -m sdvg_core`, and `sdvg` where it is installed, run the command line."""

import io
import sys
from collections.abc import Sequence

from .cli import main


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in this terminal, which may lack letters that a path or a prompt has."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run())
