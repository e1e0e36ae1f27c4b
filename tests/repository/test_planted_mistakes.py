"""Mistakes one makes in such a loop, each planted in a copy of the code, and the test that must see it.

The list is that of the style guide, with those of our own design: a suite that misses one of them is decoration.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mistakes import MISTAKES, Mistake
from pytest_in import pytest_in

ROOT = Path(__file__).resolve().parents[2]
# Importing torch and its friends takes longer than most tests: where a process can be forked, it is done once.
FORKED = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES = multiprocessing.get_context("forkserver" if FORKED else "spawn")
if FORKED:
    SLOW = (
        "torch",
        "diffusers.models.transformers.transformer_wan",
        "transformers",
        "hypothesis.strategies",
        "einops",
    )
    PROCESSES.set_forkserver_preload(["pytest", "safetensors.torch", "PIL.Image", "tqdm.auto", *SLOW])


def run_tests(folder: Path, nodes: Iterable[str], *, first_cases: bool = False) -> tuple[int, str]:
    """Run tests of a copy in a process of its own; return pytest's exit code and what it printed."""
    log, tests = folder / "log", [f"tests/{node}" for node in nodes]
    process = PROCESSES.Process(target=pytest_in, args=(folder, tests, log, first_cases))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.mark.heavy
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name.replace(" ", "_"))
def test_a_planted_mistake_turns_its_test_red(mistake: Mistake, copy: Path) -> None:
    with planted(mistake, copy):
        code, printed = run_tests(copy, [mistake.caught_by])
    # 1 is pytest's code for failed tests; others would mean that the copy does not even run.
    assert code == 1, printed[-3000:]
    assert "1 failed" in printed
    assert "SyntaxError" not in printed
    assert "NameError" not in printed


@pytest.mark.heavy
def test_an_unharmed_copy_stays_green(copy: Path) -> None:
    """One case of each test will do: all of them run on every submission anyway, in the repository itself."""
    code, printed = run_tests(copy, sorted({mistake.caught_by for mistake in MISTAKES}), first_cases=True)
    assert code == 0, printed[-3000:]
