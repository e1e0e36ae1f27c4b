"""Every step of run_gpu.sh asks for what there is: a word that is wrong there would cost an hour of a GPU."""

import subprocess
from pathlib import Path
from typing import get_args

import pytest

from benchmarks import bench
from sdvg_core.cli import make_parser
from sdvg_core.devices.execution import Attention

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "run_gpu.sh"
# Stands for a Python on a machine with two GPUs, and prints what it is asked for.
ECHO = """#!/bin/sh
if [ "$1" = -c ]; then echo 2; else printf '%s\\n' "$@"; fi
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> dict[str, list[str]]:
    """The arguments of every step by its name."""
    folder = tmp_path_factory.mktemp("steps")
    python = folder / "python"
    python.write_text(ECHO)
    python.chmod(0o755)
    subprocess.run(["bash", SCRIPT, folder / "results", python], check=True, capture_output=True, timeout=60)
    return {path.stem: path.read_text().split("\n")[:-1] for path in (folder / "results").glob("*.json")}


def test_every_step_is_a_command_that_the_parser_takes(steps):
    """Catches an option, a route or an execution that was renamed."""
    measured = 0
    for arguments in (of for name, of in steps.items() if name != "same"):
        ours = arguments[:2] == ["-m", "benchmarks"]
        assert ours or arguments[:3] == ["-m", "sdvg_core", "plan"]
        options = bench.make_parser().parse_args(arguments[2:]) if ours else make_parser().parse_args(arguments[2:])
        assert options.json
        if ours:
            measured += bool(bench.asked(options)[1])
            assert options.attention in get_args(Attention)
    assert measured == len(steps) - 2
    assert steps["same"] == ["-m", "benchmarks.same_on_gpu", "cuda", "--json"]


def test_the_targets_are_measured_against_target_only_in_the_same_run(steps):
    for name in ("routes", "fast", "two"):
        assert "target-only" in steps[name], name
    assert {"anchor-only", "r=1", "r=2", "bail-out"} <= set(steps["routes"])
    assert "--executions" not in steps["routes"]  # ours and as published
