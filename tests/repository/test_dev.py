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


@pytest.mark.parametrize("command, package", [("study", "research"), ("bench", "benchmarks")])
def test_study_and_benchmark_are_found_from_any_folder(dev, asked, monkeypatch, command, package):
    """They are not installed with the package. Catches: `dev.py study` from another folder than this one."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert dev["main"]([command, "--json"]) == 3
    assert asked == [["-m", package, "--json"]]
    assert os.environ["PYTHONPATH"] == os.pathsep.join((str(ROOT), "elsewhere"))


def test_ctrl_c_is_left_to_the_command_which_first_ends_its_block(dev, monkeypatch):
    """Catches subprocess.run, which kills its child a quarter of a second after Ctrl-C."""
    waits = iter([KeyboardInterrupt, KeyboardInterrupt, 130])

    class Child:
        def __init__(self, command: list[str]) -> None:
            assert command == ["python", "-m", "sdvg_core", "generate"]

        def __enter__(self) -> Child:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def wait(self) -> int:
            found = next(waits)
            if found is KeyboardInterrupt:
                raise KeyboardInterrupt
            return found

    monkeypatch.setattr(dev["subprocess"], "Popen", Child)
    assert dev["run"]("python", "-m", "sdvg_core", "generate") == 130


@pytest.mark.parametrize("tests, lint, code", [(0, 0, 0), (3, 0, 3), (0, 1, 1), (3, 1, 3)])
def test_lint_and_types_run_beside_the_tests_and_either_failure_comes_back(
    dev, monkeypatch, capsys, tests, lint, code
):
    """Catches: a failure of lint that is lost because the tests pass."""
    space, checked, nodes = dev["main"].__globals__, [], []

    def lint_of(command: list[str], **options: Any) -> Any:
        checked.append(command[2])
        return type("Done", (), {"returncode": lint, "stdout": "a.py: unused", "stderr": ""})

    monkeypatch.setitem(space, "environment", lambda name, install, *recipe: "python")
    monkeypatch.setitem(space, "run", lambda python, *words: tests if "pytest" in words else 0)
    monkeypatch.setattr(dev["subprocess"], "run", lint_of)
    monkeypatch.setitem(space, "find_comfyui", lambda: ROOT)
    monkeypatch.setitem(space, "comfyui", lambda options, python: nodes.append(python) or 0)
    assert dev["main"](["test", "--all"]) == code
    assert nodes == ([] if tests else ["python"]), "after the core's, in an environment made meanwhile"
    assert checked == (["ruff"] if lint else ["ruff", "ruff", "mypy"])
    assert ("a.py: unused" in capsys.readouterr().err) is bool(lint)
