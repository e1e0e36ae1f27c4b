"""Toy servers, and what a `queue` over them is asked for."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from queue_runs import PROMPTS
from toy_comfyui import Toy, pocket, toys

from sdvg_core.servers import orders, spread
from sdvg_core.servers.lane import Pace


@pytest.fixture
def two() -> Iterator[list[Toy]]:
    with toys(2) as found:
        yield found


@pytest.fixture
def one() -> Iterator[Toy]:
    with toys(1) as found:
        yield found[0]


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """The words of a command, but for servers and output."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    (tmp_path / "workflow.json").write_text(json.dumps(pocket()), encoding="utf-8")
    return ["--workflow", str(tmp_path / "workflow.json"), "--prompt-file", str(tmp_path / "prompts.txt")]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and pauses as short as can be, and pictures too."""
    monkeypatch.setattr(orders, "route_picture", lambda report: Image.new("L", (2, 2)))
    monkeypatch.setattr(spread, "Pace", partial(Pace, look=0.002, first_pause=0.002, longest_pause=0.01))
    monkeypatch.setattr(spread, "HEAR_SECONDS", 0.01)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes that run tests side by side ignore Ctrl-C."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)
