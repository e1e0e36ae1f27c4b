"""So that `python -m lab.research` runs a study."""

import sys
from importlib import import_module

from sdvg_core.cli import guarded


def main(words: list[str] | None = None) -> int:
    """Run a study and return the exit code, or a sentence for a missing package."""
    return guarded(lambda: int(import_module("lab.research.study").study(words)), extra="research", instead="study")


if __name__ == "__main__":
    sys.exit(main())
