"""The default test suite under the oldest and newest libraries that are supported, one environment a row.

    python3 tests/campaigns/portability.py FOLDER             run every row, and write docs/portability.md
    python3 tests/campaigns/portability.py FOLDER ROW ...     run some; the others keep their last result in FOLDER

Rows are named below; each is a run of its own. Environments are made in FOLDER and used again. pip's own choice of
torch on Linux is a CUDA build of several GB: put wheels of the CPU builds into a folder, named in PIP_FIND_LINKS.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "portability.md"
TOOLS = ("pytest", "jsonschema", "ftfy", "sentencepiece", "tqdm", "Pillow", "tokenizers")
INTRODUCTION = """\
# Portability

The default test suite (`pytest`, on the CPU) with other versions of its dependencies, written by
`python3 tests/campaigns/portability.py FOLDER`. The first two rows use the oldest versions that
`pyproject.toml` allows, `newest` the newest of that day. The rows for other Pythons use the torch of
development and the newest version of everything else. A CUDA build of torch was also run, on the CPU.
"""
SHOWN = ("torch", "transformers", "diffusers", "numpy", "safetensors", "av")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one environment holds; `others`: requirements as pip reads them."""

    name: str
    python: str
    torch: str
    others: tuple[str, ...]


# The oldest that pyproject.toml allows; matplotlib before 3.9 warns of what its own dependencies deprecate.
OLDEST = (
    "transformers==4.50.3",
    "diffusers==0.35.2",
    "safetensors==0.4.5",
    "einops==0.7.0",
    "av==13.0.0",
    "numpy==1.26.4",
    "matplotlib==3.10.8",
)
NEWEST = ("transformers", "diffusers", "safetensors", "einops", "av", "numpy", "matplotlib")
PINNED = tuple(
    line.partition(";")[0].strip()
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line.startswith(("transformers", "diffusers", "safetensors", "einops", "av=", "numpy", "matplotlib"))
)
ROWS = (
    Row(name="oldest", python="3.11", torch="2.6.0", others=OLDEST),
    Row(name="oldest-libraries", python="3.11", torch="2.13.0", others=OLDEST),
    Row(name="developed-on", python="3.11", torch="2.13.0", others=PINNED),
    Row(name="newest", python="3.11", torch="2.15.0", others=NEWEST),
    Row(name="python-3.10", python="3.10", torch="2.13.0", others=NEWEST),
    Row(name="python-3.13", python="3.13", torch="2.13.0", others=NEWEST),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a row; counts are of tests. `why`: of a row that was not run, or of the first failure."""

    row: str
    python: str
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0
    why: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rows and write the table; the exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where environments and results are kept")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(row.name for row in ROWS))
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - {row.name for row in ROWS}:
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if not options.rows or row.name in options.rows:
            result = json.dumps(asdict(run_row(row, folder)), indent=2)
            (folder / f"{row.name}.json").write_text(result + "\n", encoding="utf-8")
    results = [read_result(folder / f"{row.name}.json", row) for row in ROWS]
    TABLE.write_text(table(results), encoding="utf-8")
    return int(any(result.failed for result in results))


def run_row(row: Row, folder: Path) -> Result:
    """Make a row's environment, or take the one that is there, and run the default suite in it."""
    today = datetime.date.today().isoformat()
    python = folder / row.name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.is_file():
        made = subprocess.run([f"python{row.python}", "-m", "venv", str(folder / row.name)], check=False)
        if made.returncode:
            return Result(row=row.name, python=row.python, date=today, why=f"there is no Python {row.python} here")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in (
        [f"torch=={row.torch}"],
        [f"torch=={row.torch}", *row.others, *TOOLS],
        ["--no-deps", "-e", str(ROOT)],
    ):
        subprocess.run([*pip, *words], check=True)
    log = folder / f"{row.name}.xml"
    words = ["-q", "-p", "no:cacheprovider", f"--junitxml={log}"]
    subprocess.run([str(python), "-m", "pytest", *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    [suite] = ElementTree.parse(log).getroot().iter("testsuite")
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    first = next((case for case in suite.iter("testcase") if case.find("failure") is not None), None)
    found = subprocess.run([str(python), "-c", VERSIONS, *SHOWN], check=True, capture_output=True, encoding="utf-8")
    version, packages = json.loads(found.stdout)
    return Result(
        row=row.name,
        python=version,
        date=today,
        versions=packages,
        passed=count["tests"] - failed - count["skipped"],
        failed=failed,
        skipped=count["skipped"],
        minutes=round(float(suite.attrib["time"]) / 60, 1),
        why="" if first is None else f"first: {first.attrib['name']}",
    )


VERSIONS = """
import importlib.metadata as m, json, platform, sys
have = {d.metadata["Name"].lower(): d.version for d in m.distributions()}
print(json.dumps([platform.python_version(), {n: have[n] for n in sys.argv[1:] if n in have}]))
"""


def read_result(path: Path, row: Row) -> Result:
    """Return a row's last result."""
    if not path.is_file():
        return Result(row=row.name, python=row.python, why="not tried yet")
    return Result(**json.loads(path.read_text(encoding="utf-8")))


def table(results: Sequence[Result]) -> str:
    """Return the page."""
    head = ("row", "Python", *SHOWN, "passed", "failed", "skipped", "minutes", "date")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for result in results:
        ran = bool(result.versions)
        wanted = {"torch": next(row.torch for row in ROWS if row.name == result.row)}
        cells = [result.row, result.python, *((result.versions or wanted).get(name, "") for name in SHOWN)]
        counts = (
            (result.passed, result.failed, result.skipped, result.minutes) if ran else ("not run here", "", "", "")
        )
        lines.append(f"| {' | '.join(map(str, (*cells, *counts, result.date)))} |")
    reasons = [f"- {result.row}: {result.why}." for result in results if result.why]
    where = f"Run on {platform.system()}, {platform.machine()}, {os.cpu_count()} cores."
    return "\n".join([INTRODUCTION, *lines, "", *reasons, *([""] if reasons else []), where, ""])


if __name__ == "__main__":
    sys.exit(main())
