"""A few hundred cases of every reader, and every case that ever failed.

The long runs are `python -m tests.fuzz.run` and `python -m tests.fuzz.guided`; their figures are in FIGURES.md.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdvg_core.errors import BadInput

from .files import Files
from .guard import run_case
from .readers import READERS, Reader, outside_file
from .regressions import cases
from .run import case_of, fuzz, save_case

CASES = cases()
# Nobody's damaged file is a reason for warnings to fail a test; what libraries say of them is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the cases, in which a stranger's file lies outside theirs."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "outside.safetensors").write_bytes(outside_file())
    return folder


def problem_of(reader: Reader, files: Files, place: Path) -> str:
    """What is wrong with a case; of time, only what a busy machine cannot explain."""
    outcome = run_case(reader, files, place / "case")
    return "" if "of the processor" in outcome.problem and outcome.seconds < 5 else outcome.problem


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_refused_in_a_sentence_or_taken_and_nothing_else(name, place):
    reader = READERS[name]

    @settings(
        max_examples=COUNTS.get(name, 120),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def hold(random: Random) -> None:
        assert problem_of(reader, reader.make(random), place) == ""

    hold()


# Those that build a model are slower.
COUNTS = {"vae": 30, "taehv": 40, "text-encoder": 30, "reward": 30, "transformer": 40, "report": 50}


@pytest.mark.parametrize("name", CASES)
def test_what_once_broke_the_promise_is_refused_for_the_right_reason(name, place, tmp_path):
    case = CASES[name]
    reader = READERS[case.reader]
    assert problem_of(reader, case.files, place) == ""
    for file, content in case.files.items():
        (tmp_path / file).write_bytes(content)
    path = tmp_path / next(iter(case.files))
    if not case.words:
        reader.read(path)
        return
    with pytest.raises(BadInput, match=case.words):
        reader.read(path)


def test_a_case_follows_from_its_seed_alone():
    for reader in READERS.values():
        assert [case_of(reader, 7, n) for n in range(20)] == [case_of(reader, 7, n) for n in range(20)]
        assert len({str(case_of(reader, 7, n)) for n in range(20)}) > 5


# --- the guard itself


def broken_reader(read: Callable[[Path], object]) -> Reader:
    return Reader(name="broken", make=lambda random: {"a.txt": b"hello"}, read=read)


def write_beside(path: Path) -> None:
    (path.parent / "more").write_text("x")


def raise_unspoken(path: Path) -> None:
    raise BadInput("no")


def stray(path: Path) -> None:
    path.parent.joinpath("..", "outside.safetensors").read_bytes()


def hoard(path: Path) -> None:
    bytearray(300_000_000)


def run_something(path: Path) -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize(
    "read, words",
    [
        (lambda path: {}["missing"], "KeyError"),
        (raise_unspoken, "without its three parts"),
        (write_beside, "open"),
        (stray, "open"),
        (run_something, "subprocess"),
        (Path.unlink, "os.remove"),
    ],
)
def test_the_guard_sees_what_a_reader_must_not_do(read, words, place):
    assert words in run_case(broken_reader(read), {"a.txt": b"hello"}, place / "case").problem


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are measured on Linux alone"
)
def test_the_guard_sees_memory_that_is_given_back_at_once(place):
    outcome = run_case(broken_reader(hoard), {"a.txt": b"hello"}, place / "case")
    assert "MB beyond its files" in outcome.problem
    assert outcome.megabytes == pytest.approx(300, rel=0.1)


def test_a_reader_that_takes_its_file_has_no_problem(place):
    outcome = run_case(broken_reader(lambda path: path.read_bytes()), {"a.txt": b"hello"}, place / "case")
    assert (outcome.problem, outcome.refusal) == ("", None)


def test_a_long_run_counts_and_saves(tmp_path):
    reader = READERS["script"]
    tally = fuzz(reader, 30, seed=3)
    found = tally.as_dict()
    assert found["cases"] == 30
    assert found["taken"] + found["refused"] == 30
    assert found["failures"] == []
    assert (save_case(reader, 3, 4, tmp_path) / "script.txt").read_bytes() == case_of(reader, 3, 4)["script.txt"]
