"""The command line. Exit code 0 for success; 2 for bad usage or bad input, with one sentence on stderr."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from .. import __version__
from ..errors import BadInput, first_line, printable
from .arguments import COMMANDS

OUT_OF_MEMORY, INTERRUPTED = 1, 130
OF_TORCH = "OutOfMemoryError"
"""torch's own error, of a GPU; by its name, as torch is not imported here."""
# What torch says when the host has none left.
NO_MEMORY = re.compile("can't allocate memory|not enough memory|std::bad_alloc", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with code 2."""
        self.exit(2, printable(f"{self.prog}: {message}; see {self.prog} --help") + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = make_parser().parse_args(arguments)
    try:
        # What does the work takes seconds to import, so --help must not.
        return int(import_module(f".{options.command}", __name__).run(options))
    except BadInput as error:
        print(f"sdvg: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sdvg: interrupted; no half-written file is left", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        where = printable(str(error.filename or "a file")[:200])
        print(
            f"sdvg: the system refused {where} ({error.strerror or first_line(error)}); check it", file=sys.stderr
        )
        return 2
    except MemoryError as error:
        return _out_of_memory(error)
    except RuntimeError as error:
        if not (type(error).__name__ == OF_TORCH or NO_MEMORY.search(str(error))):
            raise
        return _out_of_memory(error)


def make_parser() -> Parser:
    """Return the parser of all commands; what it returns names the `command`."""
    parser = Parser(prog="python -m sdvg_core", description="Speculative decoding for autoregressive video.")
    parser.add_argument("--version", action="version", version=f"sdvg {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        summary = (command.__doc__ or "").strip().splitlines()[0]
        own = commands.add_parser(name, help=summary, description=command.__doc__)
        command.add_arguments(own)
        own.set_defaults(command=name)
    return parser


def _out_of_memory(error: BaseException) -> int:
    what = first_line(error) if str(error) else "of the host"
    print(f"sdvg: out of memory ({what}); choose a smaller size or free some memory", file=sys.stderr)
    return OUT_OF_MEMORY
