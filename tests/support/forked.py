"""Programs of Python without the seconds of their imports: forks of this process, which has them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

TWO = ["--workers", "2"]
CAN_FORK = hasattr(os, "fork")
if CAN_FORK:  # garbage of this process, as of a video writer, would wait in a fork for threads that are only here
    os.register_at_fork(after_in_child=gc.freeze)


def fork(program: Callable[[], Any], *streams: int | str | None) -> BaseProcess:
    """Start a program that returns its exit code. `streams`: of output and errors, a descriptor, a file or None."""
    if not CAN_FORK:
        pytest.skip("needs os.fork")

    def whole() -> None:
        signal.alarm(600)
        for number, (name, stream) in enumerate(zip(("stdout", "stderr"), streams, strict=True), 1):
            if stream is None:
                os.close(number)
                setattr(sys, name, None)
            else:
                os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT) if isinstance(stream, str) else stream, number)
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        sys.exit(program())

    process = get_context("fork").Process(target=whole)
    process.start()
    return process


def signalled(program: Callable[[], Any], number: int) -> tuple[int | None, list[str]]:
    """Start a program, send it a signal after its second block; return its exit code and what it printed."""
    reader, writer = os.pipe()
    process = fork(program, writer, writer)
    os.close(writer)
    assert process.pid is not None
    lines = []
    with os.fdopen(reader, encoding="utf-8") as printed:
        for line in printed:
            lines.append(line)
            if line.startswith("block 2/"):
                os.kill(process.pid, number)
    process.join(600)
    return process.exitcode, lines


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be forks where there are any, which takes 5 seconds less for each."""
    method = "fork" if CAN_FORK else "spawn"
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: get_context(method))


def ray_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers over Ray find what this process imports; skip the test without Ray."""
    if getattr(find_spec("ray"), "origin", None) is None:  # a folder of this name is no package
        pytest.skip("ray is an optional extra")  # to be imported by what is tested, which says where it listens
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # for doubles of tests
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
