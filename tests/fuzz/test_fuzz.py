"""Every case that ever failed, and a few of each reader; 2,000 of each by command (`-m exhaustive`)."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from sdvg_core.errors import BadInput

from .answers import spoken_badly
from .files import Files
from .readers import READERS, Reader, case_of, outside_file
from .regressions import cases

SECONDS = 10.0
"""Of the processor. A case that takes longer, or more than `MEGABYTES` besides its files, gets a bound."""
MEGABYTES = 2000.0


def read_in(folder: Path, reader: Reader, files: Files, most: float = MEGABYTES) -> tuple[str, str]:
    """Write the files into an empty folder and have the reader read the first.

    Return which promise it broke, and its refusal, each of them "" if there is none: a refusal is one sentence with
    fault and remedy, any other error is ours, time and memory have bounds, and no file is written, removed or run.
    """
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    forget_peak()
    before = megabytes_of("VmRSS:")
    began = time.process_time()
    problem = ""
    refusal = ""
    try:
        reader.read(folder / next(iter(files)))
    except BadInput as error:
        refusal = str(error)
        problem = spoken_badly(refusal)
    except Exception as error:
        problem = f"{type(error).__name__}: {error!s:.300}"
    taken = time.process_time() - began
    megabytes = megabytes_of("VmHWM:") - before - sum(map(len, files.values())) / 1e6
    if taken > SECONDS:
        problem = problem or f"took {taken:.1f} s of the processor"
    if megabytes > most:
        problem = problem or f"took {megabytes:.0f} MB beyond its files"
    problem = problem or left_behind(folder, files)
    shutil.rmtree(folder)
    return problem, refusal


def left_behind(folder: Path, files: Mapping[str, bytes]) -> str:
    """`ran`: what the pickles of these tests write, if their code is run."""
    changed = {path.name for path in folder.iterdir()} ^ set(files)
    if changed:
        return f"left behind or removed {', '.join(sorted(changed))}"
    return "ran the code of a file" if Path("ran").exists() else ""


def forget_peak() -> None:
    """Have the system measure the peak of memory anew; on Linux alone."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def megabytes_of(field_name: str) -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(status.split(field_name)[1].split()[0]) / 1024


CASES = cases()
# Nobody's damaged file is a reason for warnings to fail a test; what libraries say of them is theirs.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the cases, in which a stranger's file lies outside theirs."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "outside.safetensors").write_bytes(outside_file())
    return folder


@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", READERS)
def test_hostile_file_is_taken_or_refused(name, count, place):
    reader = READERS[name]
    for number in range(count):
        files = case_of(reader, 1, number)
        problem, _ = read_in(place / "case", reader, files)
        assert problem == "", f"case {number} of {name}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_known_case_is_refused_for_its_reason(name, place):
    case = CASES[name]
    problem, refusal = read_in(place / "case", READERS[case.reader], case.files)
    assert problem == ""
    assert bool(refusal) == bool(case.words)
    assert re.search(case.words, refusal)


def raise_unspoken(path: Path) -> None:
    raise BadInput("no")


@pytest.mark.filterwarnings("ignore")
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
def test_guard_sees_a_broken_promise(read, words, place):
    if "MB" in words and not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks of memory are measured on Linux alone")
    reader = Reader(name="broken", make=lambda random: {"a.txt": b"hello"}, read=read)
    problem, _ = read_in(place / "case", reader, {"a.txt": b"hello"}, most=200)
    assert words in problem if words else problem == ""
