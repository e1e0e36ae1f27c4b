"""Write FIGURES.md from what `python -m tests.fuzz.run --json` and `python -m tests.fuzz.guided` printed.

python -m tests.fuzz.figures RESULTS.jsonl --guided pickle.log report.log --conditions "one core, Python 3.11"
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

HEAD = """\
# Fuzzing: figures

What strangers' bytes may do is in SECURITY.md; how it is tried is in `tests/fuzz/`. A row is all runs of
`python -m tests.fuzz.run --reader NAME --seed S --json` together. *Refused in* counts the places in the code that
refused; *slowest* is time of the processor; *peak* is memory beyond the files of the case.

| reader | cases | taken | refused in | slowest (s) | peak (MB) | failures |
|---|---|---|---|---|---|---|
"""

GUIDED = """
Guided by coverage, each from 20 files of its own, `python -m tests.fuzz.guided NAME`; *reached* counts the branches
of `sdvg_core` that were seen, as libFuzzer counts them.

| reader | executions | seconds | reached | failures |
|---|---|---|---|---|
"""


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows, one a reader; runs of one reader with several seeds are added up."""
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        row = rows.setdefault(result["reader"], dict.fromkeys(("cases", "taken", "failures"), 0))
        row["cases"] += result["cases"]
        row["taken"] += result["taken"]
        row["failures"] += len(result["failures"])
        for name in ("distinct_refusals", "slowest_seconds", "peak_megabytes"):
            row[name] = max(row.get(name, 0), result[name])
    return "".join(
        f"| {reader} | {row['cases']:,} | {row['taken']:,} | {row['distinct_refusals']} places | "
        f"{row['slowest_seconds']:.3f} | {row['peak_megabytes']:.1f} | {row['failures']} |\n"
        for reader, row in rows.items()
    )


def guided_row(log: Path) -> str:
    """Return the row of one guided run, from what it printed; the first failure ends such a run."""
    text = log.read_text(encoding="utf-8", errors="replace")
    ended = re.search(r"Done (\d+) runs in (\d+) second", text)
    reached = re.findall(r" cov: (\d+) ", text)
    executions, seconds = ended.groups() if ended else (re.findall(r"^#(\d+)", text, re.MULTILINE)[-1], "")
    return f"| {log.stem} | {int(executions):,} | {seconds} | {reached[-1]} | {0 if ended else 1} |\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file beside this one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.figures", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--guided", type=Path, nargs="*", default=[], help="a log each, named after its reader")
    parser.add_argument("--conditions", default=f"{platform.system()}, Python {platform.python_version()}")
    options = parser.parse_args(arguments)
    lines = options.results.read_text(encoding="utf-8").splitlines()
    text = HEAD + table(json.loads(line) for line in lines)
    if options.guided:
        text += GUIDED + "".join(map(guided_row, options.guided))
    text += f"\n{date.today().isoformat()}; {options.conditions}.\n"
    Path(__file__).with_name("FIGURES.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
