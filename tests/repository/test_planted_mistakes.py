"""Mistakes one makes in such a loop, each planted in a copy of the code, and the test that must see it.

On every submission one for each file of loop, timeline, cache, keys and router; all the others by command,
`pytest -m exhaustive tests/repository/test_planted_mistakes.py`.
"""

import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mistakes import MISTAKES, Mistake
from pytest_in import pytest_in

ROOT = Path(__file__).resolve().parents[2]
# Importing torch and its friends takes longer than most tests: where a process can be forked, it is done once.
FORKED = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES = multiprocessing.get_context("forkserver" if FORKED else "spawn")
if FORKED:
    SLOW = ("torch", "diffusers.models.transformers.transformer_wan", "transformers", "einops")
    PROCESSES.set_forkserver_preload(["pytest", "safetensors.torch", "PIL.Image", "tqdm.auto", *SLOW])
CORE = {f"engine/{name}.py" for name in ("speculate", "timeline", "keys", "router")}
CORE.add("causal_wan/incremental.py")


def marked() -> Iterator[Any]:
    """Each mistake as a case, marked by when it is planted: the first of a file of the core on every submission."""
    left = set(CORE)
    for mistake in MISTAKES:
        mark = pytest.mark.heavy if mistake.file in left else pytest.mark.exhaustive
        left.discard(mistake.file)
        yield pytest.param(mistake, marks=mark, id=mistake.name.replace(" ", "_"))


def run_tests(folder: Path, nodes: Iterable[str], *, first_cases: bool = False) -> tuple[int, str]:
    """Run tests of a copy in a process of its own; return pytest's exit code and what it printed."""
    log, tests = folder / "log", [f"tests/{node}" for node in nodes]
    process = PROCESSES.Process(target=pytest_in, args=(folder, tests, log, first_cases))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for name in ("sdvg_core", "research", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def planted(mistake: Mistake, copy: Path) -> Iterator[None]:
    """Plant a mistake in the copy, and take it out again."""
    file = copy / "sdvg_core" / mistake.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mistake.right) >= 1, "the code has changed: plant the mistake anew"
    file.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("mistake", list(marked()))
def test_a_planted_mistake_turns_its_test_red(mistake, copy):
    with planted(mistake, copy):
        code, printed = run_tests(copy, [mistake.caught_by])
    # 1 is pytest's code for failed tests; others would mean that the copy does not even run.
    assert code == 1, printed[-3000:]
    assert "1 failed" in printed
    assert "SyntaxError" not in printed
    assert "NameError" not in printed


@pytest.mark.heavy
def test_an_unharmed_copy_stays_green(copy):
    """One case of each test will do: all of them run on every submission anyway, in the repository itself."""
    usual = {param.values[0].caught_by for param in marked() if param.marks[0].name == "heavy"}
    code, printed = run_tests(copy, sorted(usual), first_cases=True)
    assert code == 0, printed[-3000:]
