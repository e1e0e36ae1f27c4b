"""Programs of Python without the seconds of their imports: forks of this process, which has them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any


def fork(program: Callable[[], Any], *streams: int | str | None) -> BaseProcess:
    """Start a program that returns its exit code.

    `streams`: where its output and its errors go, a descriptor or a file; None is closed.
    """

    def whole() -> None:
        for number, (name, stream) in enumerate(zip(("stdout", "stderr"), streams, strict=True), 1):
            if stream is None:
                os.close(number)
                setattr(sys, name, None)
            else:
                os.dup2(os.open(stream, os.O_WRONLY) if isinstance(stream, str) else stream, number)
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        sys.exit(program())

    process = get_context("fork").Process(target=whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, none of which works at this moment
        process.start()
    return process
