"""Which files of the product a request passes through, from its inputs to the first denoising pass.

    python -m tests.request_trace

A file counts if a function in it takes the request in one of its forms, or is on the stack at that pass. What only
reads a file, checks a value or draws a bar on the way is no station of the request. The list is in the order of the
first visit; `returns` are files that are called by one that they call themselves.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

FORMS = {"VideoRequest", "ResolvedRequest", "RunPlan", "Batch", "BatchPlan", "Video", "Job", "Run", "PlanRequest"}
LAST = "denoise_pass"


class _Arrived(BaseException):
    """The first denoising pass has begun."""


def trace(make: Callable[[], object]) -> tuple[list[str], list[tuple[str, str]]]:
    """Run `make` up to the first denoising pass; return the files, and pairs of them that call each other."""
    files: dict[str, None] = {}
    calls: set[tuple[str, str]] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (here := _file(frame.f_code.co_filename)) is None:
            return
        if frame.f_code.co_name.startswith("<"):
            return
        code = frame.f_code
        inputs = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(type(frame.f_locals.get(name)).__name__ in FORMS for name in inputs):
            files.setdefault(here)
            stack = _stack(frame)
            calls.update(zip(stack[1:2], stack, strict=False))
        if code.co_name == LAST:
            stack = _stack(frame)
            files.update(dict.fromkeys(reversed(stack)))
            calls.update(zip(stack[1:], stack, strict=False))
            raise _Arrived

    sys.setprofile(watch)
    try:
        make()
    except _Arrived:
        pass
    finally:
        sys.setprofile(None)
    returns = sorted((a, b) for a, b in calls if a < b and (b, a) in calls)
    return list(files), returns


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
    """Return a file's path within the product."""
    for part in ("/sdvg_core/", "/nodes/"):
        if part in path and "comfy" not in path.rpartition(part)[0].rpartition("/")[2].lower():
            return path[path.rindex(part) + 1 :]
    return None


def from_the_command_line() -> None:
    """Ask `generate` for a video of two blocks."""
    from sdvg_core.cli import main

    with tempfile.TemporaryDirectory() as folder:
        prompt = "a big blue ball drifts right from the left over sand"
        main(["generate", "--models", "pocket", "--prompt", prompt, "--blocks", "2", "--output", f"{folder}/out"])


if __name__ == "__main__":
    passed, both = trace(from_the_command_line)
    sys.stdout.write("\n".join([*passed, f"{len(passed)} files; called from both sides: {both or 'none'}\n"]))
