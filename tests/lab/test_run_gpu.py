"""The program for ten minutes of a GPU: a wrong step would cost them, and its results must stay."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.benchmarks import bench, run_gpu
from lab.benchmarks.run_gpu import Run, Step, steps
from tests.support.forked import fork
from tests.support.random_models import TINY, random_models

ABOUT = {"device": "a card", "gb": 80.0, "commit": "abc"}
PRINTS = "print('{\"blocks\": 1}', flush=True)"


def python(code: str, *, seconds: int = 60) -> Step:
    return Step(name="step", seconds=seconds, words=["-c", code])


@pytest.mark.parametrize("gb", [0, 24, 40, 80])
def test_steps_ask_for_what_exists(gb, tmp_path):
    """Catches an option, a route, an execution or a file that was renamed."""
    asked = steps(gb, tmp_path, dry=gb == 0)
    for step in asked:
        if step.words[:2] == ["-m", "lab.benchmarks"]:
            options = bench.make_parser().parse_args(step.words[2:])
            assert options.json
            assert bench.asked(options)[1]
            assert options.fp8 == ("fast" if step.name == "fp8-products" else "stored" if gb == 40 else None)
        elif step.words[1] == "pytest":
            assert (run_gpu.ROOT / step.words[-1]).exists()
        else:
            assert (run_gpu.ROOT / Path(*step.words[1].split("."))).with_suffix(".py").exists()
    nodes = ["published-nodes", "dynamic-nodes", "compiled-nodes"]
    large = ["routes", "short-drafts", *nodes, "fp8-products", "long"]
    missing = large if gb == 24 else ["fp8-products"] if gb < run_gpu.WHOLE else []
    assert [step.name for step in asked if step.why_not] == missing


def test_all_steps_fit_into_ten_minutes():
    """Catches: one of the goals of the benchmark that no step asks for."""
    every = {step.name: step for step in steps(80, None, dry=False)}
    assert list(every)[:2] == ["tests", "routes"]
    assert sum(step.seconds for step in every.values() if not step.why_not) <= 600
    assert every["nodes"].why_not
    assert every["published-nodes"].why_not
    assert {"target-only", "anchor-only", "r=1", "r=2", "first=2+2"} <= set(every["routes"].words)
    assert {"compiled", "compiled+tae"} <= set(every["routes"].words)


def test_results_are_written_after_every_step(tmp_path):
    """Catches a step that ends all others, and one that loses what it printed before its limit."""
    run = Run(tmp_path, 600, ABOUT)
    run.step(python(PRINTS))
    assert json.loads((tmp_path / "result.json").read_text())["steps"]["step"]["values"] == [{"blocks": 1}]
    run.step(python(f"import time; {PRINTS}; time.sleep(600)", seconds=1))
    slow = json.loads((tmp_path / "result.json").read_text())["steps"]["step"]
    assert slow["values"] == [{"blocks": 1}]
    assert slow["code"] != 0
    assert slow["limit"] == 1
    run.step(python("raise SystemExit(3)"))
    page = (tmp_path / "page.md").read_text()
    assert "exit code 3" in page
    assert "a card, 80 GB; commit abc." in page


def test_line_cut_by_a_kill_is_left_out():
    assert list(run_gpu.values_in('a word\n{"a": 1}\n{"b": [1, 2')) == [{"a": 1}]


def test_step_begins_only_in_time(tmp_path):
    run = Run(tmp_path, run_gpu.GRACE + run_gpu.LEAST - 1, ABOUT)
    run.step(python(PRINTS))
    run.step(Step(name="other", seconds=9, words=[], why_not="needs a card of 32 GB"))
    assert run.result["steps"] == {
        "step": {"not_run": "no time was left"},
        "other": {"not_run": "needs a card of 32 GB"},
    }


def test_ended_program_keeps_its_results(tmp_path):
    """As a machine is taken back: by SIGTERM, in the middle of a step, which ends too."""
    code = f"""
import signal
from pathlib import Path
from lab.benchmarks.run_gpu import Run, Step
run = Run(Path({str(tmp_path)!r}), 600, {ABOUT})
signal.signal(signal.SIGTERM, run.stopped)
run.step(Step(name="first", seconds=60, words=["-c", {PRINTS!r}]))
step = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
run.step(Step(name="second", seconds=600, words=["-c", step]))
"""
    log = tmp_path / "running.log"
    with subprocess.Popen([sys.executable, "-c", code], cwd=run_gpu.ROOT) as program:
        while not (log.is_file() and log.read_text().strip().isdecimal()):
            time.sleep(0.1)
            assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["stopped"]
    assert result["steps"]["first"]["values"] == [{"blocks": 1}]
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def forked(words: list[str], *, stdout: Any, env: dict[str, str], **_: Any) -> Any:
    """Return what a step needs of `Popen`: `python -m MODULE ...` without the seconds of its imports."""

    def module() -> None:
        warnings.simplefilter("default")
        os.environ.update(env)
        sys.argv = words[2:]
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)

    process = fork(module, stdout.fileno(), stdout.fileno())
    return SimpleNamespace(pid=process.pid, wait=lambda seconds: process.join(seconds) or process.exitcode)


@pytest.mark.heavy
def test_all_steps_run_on_a_cpu(tmp_path, monkeypatch):
    random_models(TINY, torch.device("cpu"))  # imports what all steps need
    monkeypatch.setattr(run_gpu, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": forked}))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    names = ["tests", "routes", "long"]
    assert run_gpu.main([str(tmp_path), "--dry", "--steps", *names]) == 0
    results = json.loads((tmp_path / "result.json").read_text())["steps"]
    assert {name: step["code"] for name, step in results.items()} == dict.fromkeys(names, 0), results
    assert " passed" in results["tests"]["end"]
    page = (tmp_path / "page.md").read_text()
    assert page.count("\n## ") == 3
    assert "| anchor-only |" in page
