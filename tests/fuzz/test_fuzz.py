"""Every case that ever failed, and a few of each reader; 2,000 of each by command (`-m exhaustive`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdvg_core.errors import BadInput

from .guard import problem_of
from .readers import READERS, Reader, case_of, outside_file
from .regressions import cases

CASES = cases()
# Nobody's damaged file is a reason for warnings to fail a test; what libraries say of them is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the cases, in which a stranger's file lies outside theirs."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "outside.safetensors").write_bytes(outside_file())
    return folder


@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_refused_in_a_sentence_or_taken_and_nothing_else(name, count, place):
    reader = READERS[name]
    for number in range(count):
        files = case_of(reader, 1, number)
        assert problem_of(reader, files, place / "case") == "", f"case {number} of {name}"


@pytest.mark.parametrize("name", CASES)
def test_what_once_broke_the_promise_is_refused_for_the_right_reason(name, place, tmp_path):
    case = CASES[name]
    reader = READERS[case.reader]
    assert problem_of(reader, case.files, place / "case") == ""
    for file, content in case.files.items():
        (tmp_path / file).write_bytes(content)
    path = tmp_path / next(iter(case.files))
    if not case.words:
        reader.read(path)
        return
    with pytest.raises(BadInput, match=case.words):
        reader.read(path)


def raise_unspoken(path: Path) -> None:
    raise BadInput("no")


@pytest.mark.parametrize(
    "read, words",
    [
        (lambda path: {}["missing"], "KeyError"),
        (raise_unspoken, "without fault or remedy"),
        (lambda path: (path.parent / "more").write_text("x"), "left behind"),
        (lambda path: bytearray(300_000_000), "MB beyond its files"),
        (Path.read_bytes, ""),
    ],
)
def test_the_guard_sees_what_a_reader_must_not_do(read, words, place):
    if "MB" in words and not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks of memory are measured on Linux alone")
    reader = Reader(name="broken", make=lambda random: {"a.txt": b"hello"}, read=read)
    problem = problem_of(reader, {"a.txt": b"hello"}, place / "case")
    assert words in problem if words else problem == ""
