"""So that `python -m research` runs the study."""

import sys

from sdvg_core.cli import Parser, guarded

from . import arguments


def main(words: list[str] | None = None) -> int:
    """Run the study and return its exit code."""
    parser = Parser(prog="python -m research", description=arguments.__doc__)
    arguments.add_arguments(parser)
    options = parser.parse_args(words)

    def work() -> int:
        from .command import run

        return run(options)

    return guarded(work, extra="research", instead="study")


if __name__ == "__main__":
    sys.exit(main())
