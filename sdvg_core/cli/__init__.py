"""The command line: the parser of all commands, and errors as one sentence on stderr with an exit code.

argparse does the parsing; a package of its own for it would be one more dependency. `Parser` adds what argparse
lacks: suggestions for misspelled options, refusal of repeated ones, and a short help.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from pkgutil import iter_modules
from typing import Any, NoReturn

from .. import __version__
from ..errors import BadInput, first_line, printable, see

FIRST_COMMANDS = ("demo", "generate", "doctor")
HELPERS = {"again", "fetching", "fitting", "hub", "making", "options", "racing", "shared", "steering"}
COMMAND_NAMES = {module.name for module in iter_modules(__path__)} - HELPERS
COMMANDS = tuple(
    import_module(f".{name}", __name__) for name in (*FIRST_COMMANDS, *sorted(COMMAND_NAMES - {*FIRST_COMMANDS}))
)
"""The modules of the commands in the order of the help: every file of this folder except helpers."""

# Exit codes; that of a signal is `SIGNALLED` plus its number.
FAILURES = 1
OUT_OF_MEMORY = 1
BAD_INPUT = 2
SIGNALLED = 128
INTERRUPTED = 130
NOBODY_READS = 141
NEGATIVE = re.compile(r"-(?:[\d.]+(?:e[-+]?\d+)?|inf|nan)$", re.IGNORECASE)
NO_MEMORY = re.compile("can't allocate memory|not enough memory|std::bad_alloc", re.IGNORECASE)
"""Messages of torch when the host has no memory left."""


class Parser(argparse.ArgumentParser):
    """Argument parser with errors of one line and suggestions.

    `short`: the options in its help, all if empty; `--help-all` shows the rest.
    """

    short: tuple[str, ...] = ()

    def __init__(self, *args: Any, **details: Any) -> None:
        """Make the parser accept -1e3 and -inf as values, where argparse takes them for options."""
        super().__init__(*args, **details)
        self._negative_number_matcher = NEGATIVE
        self.color = False  # from Python 3.14 on; escape characters are printed as text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. Report an unknown option before a missing one."""
        words = sys.argv[1:] if args is None else list(args)
        # The options after a command's name are checked by its own parser.
        self._check_names(takewhile(lambda word: word.startswith("-"), words) if self._subparsers else words)
        self.short = () if "--help-all" in words else self.short
        return super().parse_known_args(words, namespace)

    def _check_names(self, words: Iterable[str]) -> None:
        """Exit for an unknown option, and for one given twice with two values (argparse would keep the last)."""
        given: dict[argparse.Action, list[list[str]]] = {}
        values: list[str] = []
        for word in takewhile(lambda word: word != "--", words):
            name, _, value = word.partition("=")
            if not name.startswith("--") or " " in name:
                values.append(word)
                continue
            known = {flag: action for flag, action in self._option_string_actions.items() if flag.startswith(name)}
            if not known:
                near = get_close_matches(name, self._option_string_actions, 1)
                self.error(f"there is no option {name}" + (f" (did you mean {near[0]}?)" if near else ""))
            if name not in known and len(known) > 1:
                self.error(f"{name} may be {' or '.join(known)}, so write it out")
            action = known.get(name) or next(iter(known.values()))
            values = [name] if action.nargs == 0 else [value] if value else []
            given.setdefault(action, []).append(values)
        for action, times in given.items():
            if any(values != times[0] for values in times) and not isinstance(action, argparse._ExtendAction):
                self.error(f"{action.option_strings[0]} is given twice, with other values; leave one of them out")

    def format_help(self) -> str:
        """Return the help, limited to the options in `short` and the examples if there are any."""
        if not self.short:
            return super().format_help()
        parser = argparse.ArgumentParser(self.prog, f"{self.prog} [options]", self.description, self.epilog)
        parser.formatter_class = self.formatter_class
        vars(parser)["color"] = False
        parser._actions[0].help = argparse.SUPPRESS
        for action in self._actions:
            if {*action.option_strings} & {*self.short, "--help-all"}:
                parser._add_action(action)
        return parser.format_help()

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(BAD_INPUT, printable(f"{self.prog}: {message}; see {self.prog} --help") + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = make_parser(words).parse_args(words)

    def work() -> int:
        # Commands import torch inside `run`, which takes seconds, so that --help does not.
        code = int(import_module(f".{options.command}", __name__).run(options))
        sys.stdout.flush()  # here, where `guarded` handles a closed pipe
        return code

    return guarded(work)


def guarded(work: Callable[[], int], *, extra: str = "standalone", instead: str = "run") -> int:
    """Call `work` and return its exit code; print an expected error as one sentence on stderr.

    `extra`: the optional dependencies that `work` needs. `instead`: the command of dev.py that installs them.
    """
    code = BAD_INPUT
    try:
        return work()
    except BadInput as error:
        message = str(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __name__.partition(".")[0]:
            raise
        lacking = f"this needs the package {error.name}, but {sys.executable} has none"
        message = f"{lacking}; call it by python3 dev.py {instead}, or install sdvg[{extra}]"
    except BrokenPipeError:
        # The reader has closed the pipe. Redirect stdout, or Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        by = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        code = SIGNALLED + number
        message = f"{by}; no half-written file is left"
    except OSError as error:
        where = printable(str(error.filename or "a file")[:200])
        message = f"the system refused {where} ({error.strerror or first_line(error)}); check it"
        if not _is_somewhere():
            message = "the folder you are in was removed; go to another one"
    except (MemoryError, RuntimeError) as error:
        # torch is not imported here, so recognise its GPU error by name.
        known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not known and not NO_MEMORY.search(str(error)):
            raise
        what = first_line(error) if str(error) else "of the host"
        code = OUT_OF_MEMORY
        message = f"out of memory ({what}); choose a smaller size or free some memory" + see("Out of memory")
    print(f"sdvg: {message}", file=sys.stderr)
    return code


def _is_somewhere() -> bool:
    """True if the working folder exists."""
    try:
        os.getcwd()  # noqa: PTH109 - as Path.cwd() does
    except OSError:
        return False
    return True


def make_parser(words: Collection[str] = ()) -> Parser:
    """Return the parser of all commands; it stores the name of the chosen one as `command`.

    `words`: the arguments. Only commands named there get their options, or all if there are none, which saves time.
    """
    parser = Parser(prog="python -m sdvg_core", description="Speculative decoding for autoregressive video.")
    parser.add_argument("--version", action="version", version=f"sdvg {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        summary = (command.__doc__ or "").strip().partition("\n")[0]
        subparser = commands.add_parser(name, help=summary, description=command.__doc__)
        if not words or name in words:
            command.add_arguments(subparser)
        if short := getattr(command, "SHORT", ()):
            subparser.short = short
            subparser.epilog = command.EXAMPLES
            subparser.formatter_class = argparse.RawDescriptionHelpFormatter
            subparser.add_argument("--help-all", action="help", help="every option")
        subparser.set_defaults(command=name, parser=subparser)
    return parser
