"""Everything we want to know of a GPU, in ten minutes: what teaches most first.

    python -m lab.benchmarks.run_gpu RESULTS [--seconds 600] [--comfyui CHECKOUT] [--dry] [--steps STEP ...]

Each step is a process of its own with its own limit, and no two run at once. At its limit it is interrupted, and
what it printed until then counts. After every step RESULTS has one JSON and one page of all steps so far, so that
nothing is lost if the machine is taken away. `--dry`: the same steps on a CPU, tiny, to see that they run.
Needs a CUDA build of torch, pytest, and this project's `standalone` extra; no download. Without av (PyAV) a test is
left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.research.markdown import markdown
from sdvg_core.cli import Parser, guarded
from sdvg_core.errors import BadInput
from sdvg_core.files.small_files import parse_json

from .results import SCHEMA, result_text

ROOT = Path(__file__).resolve().parents[2]
RESULT = "result.json"
PAGE = "page.md"
RUNNING = "running.log"
GRACE = 10
"""Seconds that a step has to print what it has once it was interrupted."""
LEAST = 15
"""Seconds below which no step begins."""
ROUTES = (
    "target-only",
    "anchor-only",
    "first=2+2",
    "r=1",
    "r=1+1",
    "r=2",
    "cascade=1+3",
    "stride=4+2",
    "r=8+1",
)
SHORT_ROUTES = ("first=2+2", "r=1+1")
DRY_SECONDS = 900
WHOLE = 48
ROUNDED = 32
"""GB of a card that holds both models of the published sizes with the target in bfloat16, or in fp8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A process with a limit in seconds. `why_not`: why it cannot run here; empty if it can."""

    name: str
    seconds: int
    words: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    why_not: str = ""


def steps(gb: float, comfyui: Path | None, *, dry: bool) -> list[Step]:
    """Return all steps, the most telling first. `gb`: of the card, 0 without one."""
    fp8 = ["--fp8", "stored"] if ROUNDED <= gb < WHOLE else []
    small = "" if dry or gb >= ROUNDED else f"needs a card of {ROUNDED} GB; this one has {gb:.0f}"
    plain = ["-m", "lab.benchmarks", "--json", "--repeats", "1", *(["--scale", "tiny"] if dry else [])]
    bench = [*plain, *fp8]
    few = ["--blocks", "3"] if dry else []
    compiled = ["diffusers"] if dry else ["compiled", "compiled+tae"]
    short = ["diffusers+drafts3"] if dry else ["compiled+tae+drafts3", "compiled+drafts3"]
    quiet = ["-q", "-rA", "--tb=short", "--show-capture=no", "-W", "default"]
    tests = ["-m", "pytest", *quiet, "-p", "no:cacheprovider"]
    variables = {"SDVG_DRY_GPU": "1", "OMP_NUM_THREADS": "1"} if dry else {}
    no_host = "" if comfyui else "no checkout of ComfyUI (--comfyui)"
    device = ["cpu" if dry else "cuda"]

    def published_nodes(name: str, seconds: int, *mode: str) -> Step:
        words = ["-m", "lab.benchmarks.nodes", str(comfyui), *device, *mode]
        return Step(name=name, seconds=seconds, words=words, environment=variables, why_not=no_host or small)

    return [
        Step(name="tests", seconds=80, words=[*tests, "-m", "gpu", "tests/gpu"], environment=variables),
        Step(
            name="routes",
            seconds=300,
            words=[*bench, *few, "--routes", *ROUTES[: 2 if dry else None], "--executions", *compiled],
            why_not=small,
        ),
        Step(
            name="short-drafts",
            seconds=70,
            words=[*bench, *few, "--routes", *SHORT_ROUTES[: 1 if dry else None], "--executions", *short],
            why_not=small,
        ),
        Step(
            name="nodes",
            seconds=100,
            words=[*tests, "-m", "comfyui and gpu", "tests/comfyui/test_on_gpu.py"],
            environment={**variables, "COMFYUI_PATH": str(comfyui or "")},
            why_not=no_host,
        ),
        published_nodes("published-nodes", 110),
        published_nodes("dynamic-nodes", 100, "--dynamic"),
        published_nodes("compiled-nodes", 150, "--compiled"),
        Step(
            name="fp8-products",
            seconds=105,
            words=[*plain, "--fp8", "fast", "--routes", "target-only", "first=2+2", "--executions", "compiled"],
            why_not="" if gb >= WHOLE else f"needs a card of {WHOLE} GB and torchao",
        ),
        Step(
            name="long",
            seconds=45,
            words=[*bench, "--routes", "draft-only", "--blocks", "4" if dry else "64", "--executions", "ours"],
            why_not=small,
        ),
    ]


class Run:
    """The steps of one call: what each printed, packed after each. `seconds`: for all of them together."""

    def __init__(self, folder: Path, seconds: float, about: dict[str, Any]) -> None:
        self._folder = folder
        self._ends = time.monotonic() + seconds
        self.result: dict[str, Any] = {"benchmark": "sdvg gpu", "schema": SCHEMA, **about, "steps": {}}
        self._child: subprocess.Popen[bytes] | None = None

    def step(self, step: Step) -> None:
        """Run a step, and pack. A step for which too little time is left is named as not run."""
        left = self._ends - time.monotonic() - GRACE
        why_not = step.why_not or ("" if left >= LEAST else "no time was left")
        limit = min(step.seconds, left)
        print(f"{step.name}: {why_not or f'at most {limit:.0f} s'}", file=sys.stderr, flush=True)
        self.result["steps"][step.name] = {"not_run": why_not} if why_not else self._run(step, limit)
        self.pack()

    def _run(self, step: Step, limit: float) -> dict[str, Any]:
        log = self._folder / RUNNING
        began = time.monotonic()
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, *step.words],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **step.environment},
                start_new_session=True,
            )
            code = self._wait(self._child, limit)
        text = log.read_text(encoding="utf-8", errors="replace")
        return {
            "code": code,
            "seconds": round(time.monotonic() - began, 1),
            "limit": round(limit),
            "values": list(values_in(text)),
            "end": text[-20000:],
        }

    def _wait(self, child: subprocess.Popen[bytes], limit: float) -> int | None:
        """Return the exit code; at the limit interrupt the step and its children, then kill them."""
        for sign, seconds in ((None, limit), (signal.SIGINT, GRACE), (signal.SIGKILL, GRACE)):
            if sign:
                os.killpg(child.pid, sign)
            try:
                return child.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        return None

    def pack(self) -> None:
        """Write JSON and page of the steps so far."""
        for name, text in ((RESULT, json.dumps(self.result)), (PAGE, page(self.result))):
            new = self._folder / f"{name}.part"
            new.write_text(text + "\n", encoding="utf-8")
            new.replace(self._folder / name)

    def stopped(self, *_: object) -> None:
        """End the step under way and pack, when the program itself is ended."""
        if self._child and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        self.result["stopped"] = True
        self.pack()
        sys.exit(1)


def values_in(text: str) -> Iterator[Any]:
    """Yield the lines of JSON; one that a kill has cut is left out."""
    for line in text.splitlines():
        with suppress(ValueError):
            if line.startswith("{"):
                yield parse_json(line)


def page(result: dict[str, Any]) -> str:
    """Return all steps as a page."""
    rows = [
        [name, found.get("not_run") or f"exit code {found['code']}", f"{found.get('seconds', 0):.0f} s"]
        for name, found in result["steps"].items()
    ]
    parts = ["# Speed", f"{result['device']}, {result['gb']:.0f} GB; commit {result['commit'] or 'unknown'}."]
    parts.append(markdown(("step", "end", "took"), rows))
    for name, found in result["steps"].items():
        parts.append(f"## {name}")
        benched = [value for value in found.get("values", ()) if value.get("benchmark") == "sdvg"]
        if benched and benched[-1]["cases"]:
            parts.append(result_text(benched[-1]))
        elif "end" in found:
            parts.append(f"```\n{found['end'].strip()}\n```")
        else:
            parts.append(found["not_run"])
    return "\n\n".join(parts)


def card() -> tuple[str, float]:
    """Return name and GB of the first GPU; asked in another process, so that none of its memory stays taken."""
    code = "import torch; p = torch.cuda.get_device_properties(0); print(p.total_memory / 1e9, p.name)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise BadInput("torch finds no GPU; install its build for CUDA, or try the steps on a CPU with --dry")
    gb, _, name = asked.stdout.strip().partition(" ")
    return name, float(gb)


def work(words: Sequence[str] | None) -> int:
    """Run the steps that are asked for."""
    parser = Parser(prog="python -m lab.benchmarks.run_gpu", description=__doc__)
    option = parser.add_argument
    option("results", type=Path, metavar="RESULTS", help="the folder to write into")
    option("--steps", nargs="+", metavar="STEP", default=[], dest="names", help="only these (default: all)")
    option("--seconds", type=float, default=600, help="for everything (default 600)")
    option("--comfyui", type=Path, metavar="CHECKOUT", help="of ComfyUI, whose requirements this Python has")
    option("--dry", action="store_true", help="the same steps on a CPU, tiny")
    options = parser.parse_args(words)
    name, gb = ("CPU, a trial", 0.0) if options.dry else card()
    every = steps(gb, options.comfyui, dry=options.dry)
    if options.dry:  # on a machine that may be busy
        every = [replace(step, seconds=DRY_SECONDS) for step in every]
        options.seconds = DRY_SECONDS * len(every)
    if unknown := {*options.names} - {step.name for step in every}:
        known = ", ".join(step.name for step in every)
        raise BadInput(f"there is no step {', '.join(sorted(unknown))}; choose among {known}")
    options.results.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    run = Run(options.results, options.seconds, {"device": name, "gb": gb, "commit": commit.stdout.strip()})
    signal.signal(signal.SIGTERM, run.stopped)
    for step in every:
        if not options.names or step.name in options.names:
            run.step(step)
    print(options.results / PAGE)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the steps, and return the exit code."""
    return guarded(lambda: work(words), instead="bench")


if __name__ == "__main__":
    sys.exit(main())
