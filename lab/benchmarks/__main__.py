"""So that `python -m lab.benchmarks` runs the benchmark."""

import sys
from importlib import import_module

from sdvg_core.cli import guarded


def main(words: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code, or a sentence for a missing package."""
    return guarded(lambda: int(import_module("lab.benchmarks.bench").bench(words)), instead="bench")


if __name__ == "__main__":
    sys.exit(main())
