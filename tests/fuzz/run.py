"""Try a reader on very many files.

    python -m tests.fuzz.run --reader NAME --cases 100000 --seed 1

Case n of a seed is always the same. A case is tried in a process of its own kind, so that a crash, a hang or a
hunger for memory is one failed case and not the end of the run. What fails is saved under --save.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, TextIO

from .files import Files
from .guard import Outcome, run_case
from .readers import READERS, Reader, outside_file

HANG_SECONDS, WARM_UP_SECONDS = 120.0, 900.0
ADDRESS_SPACE = 6 * 2**30  # a reader that wants more than this gets a MemoryError
WARM_UP, MOST_WARM_UP = 10, 400
FAILURES_SHOWN = 20


@dataclass(slots=True)
class Tally:
    """The figures of one run."""

    reader: str
    seed: int
    cases: int = 0
    taken: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    megabytes: float = 0.0
    seconds: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, case: int, outcome: Outcome) -> None:
        """Count a case."""
        self.cases += 1
        self.slowest = max(self.slowest, outcome.seconds)
        self.megabytes = max(self.megabytes, outcome.megabytes)
        if outcome.problem:
            self.failures.append((case, outcome.problem))
        elif outcome.refusal:
            self.refusals[outcome.refusal] += 1
        else:
            self.taken += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "reader": self.reader,
            "seed": self.seed,
            "cases": self.cases,
            "taken": self.taken,
            "refused": sum(self.refusals.values()),
            "distinct_refusals": len(self.refusals),
            "slowest_seconds": round(self.slowest, 3),
            "peak_megabytes": round(self.megabytes, 1),
            "cases_per_second": round(self.cases / self.seconds, 1) if self.seconds else None,
            "failures": [{"case": case, "problem": problem} for case, problem in self.failures],
        }

    def __str__(self) -> str:
        found = self.as_dict()
        return (
            f"{self.reader}: {self.cases} cases, {self.taken} taken, {found['refused']} refused in "
            f"{found['distinct_refusals']} places, slowest {found['slowest_seconds']} s, peak "
            f"{found['peak_megabytes']} MB, {found['cases_per_second']} cases/s, {len(self.failures)} failures"
        )


def case_of(reader: Reader, seed: int, number: int) -> Files:
    """Return the files of one case."""
    return reader.make(Random(f"{seed}/{reader.name}/{number}"))


def fuzz(reader: Reader, cases: int, seed: int, first: int = 0) -> Tally:
    """Try `cases` cases and return the figures."""
    tally, began = Tally(reader.name, seed), time.monotonic()
    following = first
    while following < first + cases:
        for number, outcome in _stretch(reader, seed, following, first + cases):
            tally.add(number, outcome)
            following = number + 1
    tally.seconds = time.monotonic() - began
    return tally


def _stretch(reader: Reader, seed: int, first: int, end: int) -> Iterator[tuple[int, Outcome]]:
    """Yield the outcomes of cases up to one that ended its process, that one included."""
    here, there = multiprocessing.Pipe(duplex=False)
    arguments = (there, reader.name, seed, first, end)
    worker = multiprocessing.get_context("fork").Process(target=_work, args=arguments)
    worker.start()
    there.close()
    number = first
    try:
        here.poll(WARM_UP_SECONDS)
        here.recv()
        while number < end:
            if not here.poll(HANG_SECONDS):
                yield number, Outcome(None, f"hung for {HANG_SECONDS:.0f} s", HANG_SECONDS, 0.0)
                return
            try:
                yield number, here.recv()
            except EOFError:
                worker.join()
                yield number, Outcome(None, f"ended the process with code {worker.exitcode}", 0.0, 0.0)
                return
            number += 1
    finally:
        worker.kill()
        worker.join()
        here.close()


def _work(results: Connection, name: str, seed: int, first: int, end: int) -> None:
    """Try the cases from `first` on; runs in a process of its own."""
    _limit_memory()
    warnings.simplefilter("ignore")
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder, _silent():
        os.chdir(folder)
        Path("outside.safetensors").write_bytes(outside_file())
        warm_up(reader, Path(folder, "warm"))
        results.send(None)
        for number in range(first, end):
            results.send(run_case(reader, case_of(reader, seed, number), Path(folder, "case")))
        results.close()
        os.chdir("/")


def warm_up(reader: Reader, folder: Path) -> None:
    """Try cases until some were taken: imports and memory pools are not the doing of those that count."""
    taken = 0
    for number in range(MOST_WARM_UP):
        outcome = run_case(reader, case_of(reader, -1, number), folder)
        taken += outcome.refusal is None
        if taken >= WARM_UP:
            return


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Send what libraries write about damaged files nowhere; a reader answers by what it returns."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        yield


def save_case(reader: Reader, seed: int, number: int, folder: Path) -> Path:
    """Write the files of a case and return their folder."""
    place = folder / reader.name / f"{seed}-{number}"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in case_of(reader, seed, number).items():
        (place / name).write_bytes(content)
    return place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code is 1 if any case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--reader", choices=sorted(READERS), action="append", help="default: all of them")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to see one again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, default=Path("out/fuzz"), help="folder for what failed")
    parser.add_argument("--json", action="store_true", help="print one JSON object a reader")
    options = parser.parse_args(arguments)
    failed = False
    for name in options.reader or READERS:
        reader = READERS[name]
        tally = fuzz(reader, options.cases, options.seed, options.first)
        failed = failed or bool(tally.failures)
        _say(sys.stdout, json.dumps(tally.as_dict()) if options.json else str(tally))
        for problem, (count, number) in _kinds(tally).items():
            place = save_case(reader, options.seed, number, options.save)
            _say(sys.stderr, f"  {count} x {problem}\n      case {number}, in {place}")
    return int(failed)


def _say(stream: TextIO, line: str) -> None:
    stream.write(line.encode("ascii", "backslashreplace").decode() + "\n")
    stream.flush()


def _kinds(tally: Tally) -> dict[str, tuple[int, int]]:
    """Return problem -> how often, and the first case; problems that differ in numbers alone are one."""
    kinds: dict[str, tuple[int, int]] = {}
    words = {}
    for number, problem in tally.failures:
        kind = "".join("#" if c.isdigit() else c for c in problem.partition(" at ")[2] or problem[:60])
        words.setdefault(kind, problem)
        count, first = kinds.get(kind, (0, number))
        kinds[kind] = (count + 1, first)
    return {words[kind]: found for kind, found in list(kinds.items())[:FAILURES_SHOWN]}


if __name__ == "__main__":
    sys.exit(main())
