"""What dev.py does for a newcomer: passes on what is asked for, and says how far an environment is."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev() -> Any:
    return runpy.run_path(str(ROOT / "dev.py"))


@pytest.fixture
def asked(dev, monkeypatch) -> list[list[str]]:
    """What would be run, with no environment made."""
    commands: list[list[str]] = []

    def record(python: str, *arguments: str) -> int:
        commands.append(list(arguments))
        return 3

    space = dev["main"].__globals__
    monkeypatch.setitem(space, "environment", lambda name, install, *recipe: name)
    monkeypatch.setitem(space, "run", record)
    return commands


@pytest.mark.parametrize(
    "given, passed",
    [
        (["run", "plan", "--vram", "24"], ["plan", "--vram", "24"]),
        (["run", "--version"], ["--version"]),
        (["run"], ["--help"]),
        (["demo", "--blocks", "3"], ["demo", "--blocks", "3"]),
    ],
)
def test_every_option_is_passed_on_and_the_code_comes_back(dev, asked, given, passed):
    assert dev["main"](given) == 3
    assert asked == [["-m", "sdvg_core", *passed]]


@pytest.mark.parametrize("command", ["test", "comfyui", "originals"])
def test_help_of_the_tests_installs_nothing(dev, asked, capsys, command):
    """Catches: two GB of packages for pytest's own help, which names none of our commands."""
    assert dev["main"]([command, "--help"]) == 0
    assert asked == []
    assert f"python3 dev.py {command} " in capsys.readouterr().out


@pytest.mark.parametrize("command, package", [("study", "research"), ("bench", "benchmarks")])
def test_study_and_benchmark_are_found_from_any_folder(dev, asked, monkeypatch, command, package):
    """They are not installed with the package. Catches: `dev.py study` from another folder than this one."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert dev["main"]([command, "--json"]) == 3
    assert asked == [["-m", package, "--json"]]
    assert os.environ["PYTHONPATH"] == os.pathsep.join((str(ROOT), "elsewhere"))
