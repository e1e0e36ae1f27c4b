"""Entry point of `python -m sdvg_core` and `sdvg`: handle signals and a full or closed output."""

import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from .cli import main
from .errors import escaped

UNWRITTEN = 1
ENDING_SIGNALS = ("SIGTERM", "SIGHUP")


class Output(io.FileIO):
    """A terminal or a log file. Output that a full disk rejects is lost, and the work goes on."""

    fault: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, and record an error. Raises `BrokenPipeError` if the reader has closed the pipe."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.fault = error
            return memoryview(data).nbytes


class Terminal(io.TextIOWrapper):
    """Text for people, in which names of files may hold control characters."""

    def write(self, text: str) -> int:
        """Write text with control characters escaped."""
        super().write(escaped(text))
        return len(text)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. `arguments`: without the program's name; default `sys.argv`.

    Output may be closed or full, or lack characters of a prompt.
    """
    if sys.flags.optimize > 1 and arguments is None:  # diffusers reads docstrings, which -OO drops
        os.environ.pop("PYTHONOPTIMIZE", None)
        os.execv(sys.executable, [sys.executable, "-m", "sdvg_core", *sys.argv[1:]])
    sys.stdout, output = _opened(sys.stdout)
    sys.stderr, _ = _opened(sys.stderr)
    for name in ENDING_SIGNALS:
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _end)
    code = main(arguments)
    sys.stdout.flush()
    if output and output.fault and not code:
        sys.stderr.write(f"sdvg: not all could be printed ({output.fault.strerror}); the files are written\n")
        return UNWRITTEN
    return code


def _opened(stream: TextIO | None) -> tuple[TextIO, Output | None]:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8"), None
    if not isinstance(stream, io.TextIOWrapper):
        return stream, None  # replaced by the calling program
    output = Output(stream.fileno(), "w", closefd=False)
    buffer = io.BufferedWriter(output)
    lines = stream.line_buffering or stream.write_through  # the latter by PYTHONUNBUFFERED
    return Terminal(buffer, stream.encoding, "backslashreplace", line_buffering=lines), output


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(run())
