"""Make a page of the results of run_gpu.sh: speed.md.

    python -m benchmarks.show RESULTS [--out FOLDER]

RESULTS has a file NAME.json for each step, with a line of `python -m benchmarks --json`. Files without one (of a
step that was killed, or that measures no times) are listed and left out. The page shows each run separately.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sdvg_core.cli import Parser, guarded
from sdvg_core.errors import BadInput, first_line
from sdvg_core.files.outputs import staged_outputs
from sdvg_core.files.small_files import MEGABYTE, parse_json, read_small

from .results import SCHEMA, Result, result_text

PAGE = "speed.md"
FIRST = ("routes",)
LARGEST = 10 * MEGABYTE
PREAMBLE = """\
# Speed

A ratio is to target-only in the same execution and the same run. *Published* is what the paper reports (arXiv
2604.17397, two RTX A6000, 832x480, nine blocks) and was not measured here: anchor-only is printed there, the others
follow from its times per prompt. *Must reach* is this project's own goal. The limit is the speed-up if drafting and
routing took no time: 9 / (1 + r) with r of nine blocks rejected."""


def main(words: Sequence[str] | None = None) -> int:
    """Show a folder of results, and return the exit code."""
    parser = Parser(prog="python -m benchmarks.show", description=__doc__)
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the folder that run_gpu.sh wrote into")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default RESULTS)")
    options = parser.parse_args(words)
    out = options.out or options.results
    return guarded(lambda: show(options.results, out), instead="bench")


def show(folder: Path, out: Path) -> int:
    """Write the page. Raises `BadInput` if there is nothing to show, or nowhere to write it."""
    path, runs = folder / "commit.txt", read_runs(folder)
    commits = " and ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else ""
    sections = [f"## {name}\n\n{result_text(result)}" for name, result in runs.items()]
    with staged_outputs(out) as staging:
        page = "\n\n".join([PREAMBLE, *([f"Commit {commits}."] if commits else []), *sections])
        staging.path(PAGE).write_text(page + "\n", encoding="utf-8")
    print(f"{out / PAGE} is written")
    return 0


def read_runs(folder: Path) -> dict[str, Result]:
    """Return the runs in a folder by name, the most important first; list the files that have none.

    Raises `BadInput` if there is no run at all.
    """
    runs = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stem not in FIRST, path)):
        try:
            runs[path.stem] = read_run(path)
        except (OSError, ValueError) as error:
            print(f"sdvg: {path.name} is left out: {first_line(error)}", file=sys.stderr)
    if not runs:
        raise BadInput(
            f"no file in {folder} has times of a finished video; run benchmarks/run_gpu.sh, or name the folder it "
            "wrote into"
        )
    return runs


def read_run(path: Path) -> Result:
    """Return what a run measured. Raises `OSError`, and `ValueError` if it measured nothing."""
    try:
        result = parse_json(read_small(path, LARGEST).partition(b"\n")[0])
        if result["benchmark"] != "sdvg" or result["schema"] != SCHEMA or not result["cases"]:
            raise ValueError(f"it has no times of routes by this version's schema {SCHEMA}")
        result_text(result)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no result of this version ({error!r})") from None
    return dict(result)


if __name__ == "__main__":
    sys.exit(main())
