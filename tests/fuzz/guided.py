"""Fuzz one reader by coverage: what reaches new lines of the reader is kept and changed further.

    python -m tests.fuzz.guided NAME --seconds 600 --runs 100000

Needs atheris (pip install atheris; Linux and macOS, Python 3.11 to 3.13), which no other test does. The first
failure ends the run and is saved under --save, where a later run begins with what this one found.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for. libFuzzer ends the process itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("reader")
    parser.add_argument("--seconds", type=int, default=60, help="the most it may take")
    parser.add_argument("--runs", type=int, default=-1, help="the most inputs it tries; default: as time allows")
    parser.add_argument("--save", type=Path, default=Path("out/fuzz-guided"), help="folder for what was found")
    options = parser.parse_args(arguments)
    corpus = (options.save / options.reader).resolve()
    corpus.mkdir(parents=True, exist_ok=True)
    import atheris

    def mutate(data: bytes, most: int) -> bytes:
        mutated: bytes = atheris.Mutate(data, most)  # looked up anew, for Setup puts another in its place
        return mutated

    # Our own code alone: what lies below it is native, or not ours to cover.
    with atheris.instrument_imports(include=["sdvg_core"]):
        test, change, seeds = _prepare(options.reader, mutate)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={options.seconds}", f"-runs={options.runs}"]
    limits += ["-timeout=60", "-rss_limit_mb=6000", "-max_len=200000"]
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-artifact_prefix={corpus}/failed-", *limits], test, custom_mutator=change
    )
    atheris.Fuzz()


def _prepare(name: str, mutate: Callable[[bytes, int], bytes]) -> tuple[Any, Any, Sequence[bytes]]:
    """Return the test of one input, the change of one input, and the inputs to begin with."""
    from .guard import run_case
    from .readers import READERS, outside_file, seeds_of
    from .run import warm_up

    reader = READERS[name]
    beside = reader.make(Random(0))
    first = next(iter(beside))
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    (folder / "outside.safetensors").write_bytes(outside_file())
    warnings.simplefilter("ignore")
    warm_up(reader, folder / "case")

    def test(data: bytes) -> None:
        outcome = run_case(reader, {**beside, first: data}, folder / "case")
        if outcome.problem:
            raise AssertionError(outcome.problem)

    def change(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return mutate(data, most)
        return reader.make(random).get(first, data)[:most]

    return test, change, seeds_of(reader)


if __name__ == "__main__":
    main()
