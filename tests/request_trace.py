"""What `generate` passes from its inputs to the first denoising pass, as Python's profiler sees it.

    python -m tests.request_trace

First the files through which the request goes, in the order of the first visit. A file counts if a function in it
takes the request in one of its forms, or is on the stack at that pass. What only reads a file, checks a value or
draws a bar on the way is no station of the request. Files that call each other are named.

Then all that is entered on the way: files, functions of `sdvg_core`, changes of room, and how often a file of
weights is opened and hashed. A function counts once, a lambda or a comprehension never. The room changes where a
function is entered, or a generator goes on, in another room than the one before.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FORMS = {"VideoRequest", "ResolvedRequest", "RunPlan", "Batch", "BatchPlan", "Video", "Job", "Run", "PlanRequest"}
LAST = "denoise_pass"
READERS = ("open_weights", "_of_contents")
"""The functions that open a file of weights and that hash one, by their argument `path`."""


class _Arrived(BaseException):
    """The first denoising pass has begun."""


@dataclass(eq=False)
class Trace:
    """What was passed. `stations`: the files of the request; `calls`: which of them call which.

    `entered`: the functions of the product; `read`: how often each of `READERS` took a file.
    """

    stations: dict[str, None] = field(default_factory=dict)
    calls: set[tuple[str, str]] = field(default_factory=set)
    entered: dict[CodeType, str] = field(default_factory=dict)
    changes: int = 0
    room: str | None = None
    read: Counter[tuple[str, str]] = field(default_factory=Counter)

    def returns(self) -> list[tuple[str, str]]:
        """Return the pairs of files that call each other."""
        return sorted((a, b) for a, b in self.calls if a < b and (b, a) in self.calls)

    def enter(self, frame: FrameType, file: str) -> None:
        """Count a function of `sdvg_core`."""
        self.entered[frame.f_code] = file
        room, inside, _ = file.removeprefix("sdvg_core/").partition("/")
        if inside and room != "settings":  # errors.py and the settings are the ground under all rooms
            self.changes += self.room is not None and room != self.room
            self.room = room
        if frame.f_code.co_name in READERS:
            self.read[frame.f_code.co_name, Path(frame.f_locals["path"]).name] += 1

    def visit(self, frame: FrameType, file: str) -> None:
        """Count a station of the request, if the function takes it; end at the first denoising pass."""
        code = frame.f_code
        inputs = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(type(frame.f_locals.get(name)).__name__ in FORMS for name in inputs):
            self.stations.setdefault(file)
            stack = _stack(frame)
            self.calls.update(zip(stack[1:2], stack, strict=False))
        if code.co_name == LAST:
            stack = _stack(frame)
            self.stations.update(dict.fromkeys(reversed(stack)))
            self.calls.update(zip(stack[1:], stack, strict=False))
            raise _Arrived

    def lines(self) -> list[str]:
        """Return what is printed."""
        counts = [
            f"{len(self.stations)} files take the request; called from both sides: {self.returns() or 'none'}",
            f"{len(set(self.entered.values()))} files and {len(self.entered)} functions are entered",
            f"{self.changes} changes of room",
        ]
        reads = [f"{reader}: {name} {times}x" for (reader, name), times in sorted(self.read.items())]
        return [*self.stations, *counts, *reads]


def trace(make: Callable[[], object]) -> Trace:
    """Run `make` up to the first denoising pass."""
    passed = Trace()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_class_body = not code.co_flags & CO_OPTIMIZED
        if event != "call" or is_class_body or code.co_name.startswith("<"):
            return
        file = _file(code.co_filename)
        if file is None:
            return
        if file.startswith("sdvg_core/"):
            passed.enter(frame, file)
        passed.visit(frame, file)

    sys.setprofile(watch)
    try:
        make()
    except _Arrived:
        pass
    finally:
        sys.setprofile(None)
    return passed


def _stack(frame: FrameType | None) -> list[str]:
    """Return the product's files on the stack, the newest first, each once in a row."""
    names: list[str] = []
    while frame:
        name = _file(frame.f_code.co_filename)
        if name and names[-1:] != [name]:
            names.append(name)
        frame = frame.f_back
    return names


@cache
def _file(path: str) -> str | None:
    """Return a file's path within the product; None for another file."""
    place = Path(path).resolve()
    inside = place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else ""
    return inside if inside.startswith(("sdvg_core/", "nodes/")) else None


def from_the_command_line() -> None:
    """Ask `generate` for a video of two blocks, decided by the gate."""
    from sdvg_core.cli import main

    prompt = "a big blue ball drifts right from the left over sand"
    with tempfile.TemporaryDirectory() as folder:
        options = ("--models", "pocket", "--gate", "-0.7", "--blocks", "2", "--output", f"{folder}/out")
        main(["generate", "--prompt", prompt, *options])


if __name__ == "__main__":
    sys.stdout.write("\n".join([*trace(from_the_command_line).lines(), ""]))
