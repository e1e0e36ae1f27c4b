"""Try a reader on very many files.

    python -m tests.campaigns.fuzz --reader NAME --cases 100000 --seed 1

Case n of a seed is always the same. Cases are tried in a process apart, so that a crash, a hang or a hunger for
memory is one failed case and not the end of the run. What fails is saved under --save.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.guard import Outcome, run_case
from tests.fuzz.readers import READERS, Reader, case_of, outside_file

HANG_SECONDS, WARM_UP = 120.0, 200
ADDRESS_SPACE = 6 * 2**30  # a reader that wants more than this gets a MemoryError


def fuzz(reader: Reader, cases: int, seed: int, first: int = 0) -> Iterator[tuple[int, Outcome]]:
    """Yield the number and the outcome of each case."""
    following = first
    while following < first + cases:
        for number, outcome in _stretch(reader, seed, following, first + cases):
            following = number + 1
            yield number, outcome


def _stretch(reader: Reader, seed: int, first: int, end: int) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes up to the case that ended its process, that one included."""
    here, there = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=_work, args=(there, reader, seed, first, end))
    worker.start()
    there.close()
    try:
        here.recv()  # warm
        for number in range(first, end):
            if not here.poll(HANG_SECONDS):
                yield number, Outcome(None, f"hung for {HANG_SECONDS:.0f} s", HANG_SECONDS, 0.0)
                return
            try:
                yield number, here.recv()
            except EOFError:
                worker.join()
                yield number, Outcome(None, f"ended the process with code {worker.exitcode}", 0.0, 0.0)
                return
    finally:
        worker.kill()
        worker.join()


def _work(results: Connection, reader: Reader, seed: int, first: int, end: int) -> None:
    """Try the cases from `first` on; runs in a process of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    for stream in (1, 2):  # what libraries write about damaged files
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("outside.safetensors").write_bytes(outside_file())
        for number in range(WARM_UP):  # imports and memory pools are not the doing of the cases that count
            run_case(reader, case_of(reader, -1, number), Path(folder, "case"))
        results.send(None)
        for number in range(first, end):
            results.send(run_case(reader, case_of(reader, seed, number), Path(folder, "case")))
        os.chdir("/")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code is 1 if any case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fuzz", description=__doc__)
    parser.add_argument("--reader", choices=sorted(READERS), action="append", help="default: all of them")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to see one again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, default=Path("out/fuzz"), help="folder for what failed")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.reader or READERS:
        reader, began = READERS[name], time.monotonic()
        refused: Counter[str | None] = Counter()
        slowest = megabytes = 0.0
        failures = 0
        for number, outcome in fuzz(reader, options.cases, options.seed, options.first):
            slowest, megabytes = max(slowest, outcome.seconds), max(megabytes, outcome.megabytes)
            if not outcome.problem:
                refused[outcome.refusal] += 1
                continue
            failures += 1
            folder = options.save / name / f"{options.seed}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in case_of(reader, options.seed, number).items():
                (folder / file).write_bytes(content)
            sys.stderr.write(f"case {number}: {outcome.problem!a}, in {folder}\n")
        taken, rate = refused.pop(None, 0), options.cases / (time.monotonic() - began)
        sys.stdout.write(
            f"{name}: {options.cases} cases, {taken} taken, {refused.total()} refused in {len(refused)} places, "
            f"slowest {slowest:.3f} s, peak {megabytes:.1f} MB, {rate:.1f} cases/s, {failures} failures\n"
        )
        failed += failures
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
