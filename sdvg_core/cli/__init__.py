"""The command line. Exit code 0 for success; 2 for bad usage or bad input, with one sentence on stderr."""

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

FIRST = ("demo", "generate", "report", "plan", "inspect", "doctor")
HELPERS = {"again", "options", "shared"}
NAMES = {module.name for module in iter_modules(__path__)} - HELPERS
COMMANDS = tuple(import_module(f".{name}", __name__) for name in (*FIRST, *sorted(NAMES - {*FIRST})))
"""The commands, in the order of the help: every file here that is not a helper of the others."""

# Exit codes; that of a signal is its number more than `SIGNALLED`.
OUT_OF_MEMORY = 1
BAD_INPUT = 2
SIGNALLED = 128
NOBODY_READS = 141
# What torch says when the host has none left.
NEGATIVE = re.compile(r"-(?:[\d.]+(?:e[-+]?\d+)?|inf|nan)$", re.IGNORECASE)
NO_MEMORY = re.compile("can't allocate memory|not enough memory|std::bad_alloc", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line, and which option was meant.

    `short`: the options in its help, all if empty; `--help-all` shows the rest.
    """

    short: tuple[str, ...] = ()

    def __init__(self, *args: Any, **details: Any) -> None:
        """Take numbers such as -1e3 and -inf for values, not only -1 and -0.5 as argparse does."""
        super().__init__(*args, **details)
        self._negative_number_matcher = NEGATIVE

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an unknown option is refused before a missing one."""
        words = sys.argv[1:] if args is None else list(args)
        # After a command's name, the options are that command's.
        self._check_names(takewhile(lambda word: word.startswith("-"), words) if self._subparsers else words)
        self.short = () if "--help-all" in words else self.short
        return super().parse_known_args(words, namespace)

    def _check_names(self, words: Iterable[str]) -> None:
        """Refuse an option that there is not, and one that is given twice, of which argparse keeps the last."""
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
            action = known.get(name) or next(iter(known.values()))
            values = [name] if action.nargs == 0 else [value] if value else []
            given.setdefault(action, []).append(values)
        for action, times in given.items():
            if any(values != times[0] for values in times) and not isinstance(action, argparse._ExtendAction):
                self.error(f"{action.option_strings[0]} is given twice, with other values; leave one of them out")

    def format_help(self) -> str:
        """Return the help: for a command with many options, those of its `SHORT` list and its examples."""
        if not self.short:
            return super().format_help()
        some = argparse.ArgumentParser(self.prog, f"{self.prog} [options]", self.description, self.epilog)
        some.formatter_class = self.formatter_class
        some._actions[0].help = argparse.SUPPRESS
        for action in self._actions:
            if {*action.option_strings} & {*self.short, "--help-all"}:
                some._add_action(action)
        return some.format_help()

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with code 2."""
        self.exit(BAD_INPUT, printable(f"{self.prog}: {message}; see {self.prog} --help") + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = make_parser(words).parse_args(words)

    def work() -> int:
        # The modules that do the work take seconds to import, so --help must not import them.
        code = int(import_module(f".{options.command}", __name__).run(options))
        sys.stdout.flush()  # while a reader that has gone is expected
        return code

    return guarded(work)


def guarded(work: Callable[[], int], *, extra: str = "standalone", instead: str = "run") -> int:
    """Return the exit code of `work`; what went wrong is a sentence on stderr.

    `extra`: of this package, where `work` needs another package. `instead`: the command of dev.py that installs it.
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
        # The reader has closed the pipe. Python would complain once more when it flushes at the end.
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
    except (MemoryError, RuntimeError) as error:
        # torch's own error for a GPU goes by its name, because torch is not imported here.
        known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not known and not NO_MEMORY.search(str(error)):
            raise
        what = first_line(error) if str(error) else "of the host"
        code = OUT_OF_MEMORY
        message = f"out of memory ({what}); choose a smaller size or free some memory" + see("Out of memory")
    print(f"sdvg: {message}", file=sys.stderr)
    return code


def make_parser(words: Collection[str] = ()) -> Parser:
    """Return the parser of all commands; it stores the name of the chosen one as `command`.

    `words`: what will be parsed; options are declared only of commands that are among them, without any of all.
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
