"""The default test suite under the oldest and newest libraries that are supported, one environment a row.

    python3 tests/campaigns/portability.py FOLDER             run every row, and write FOLDER/portability.md
    python3 tests/campaigns/portability.py FOLDER ROW ...     run some; the others keep their last result

Rows are named below; each is a run of its own, logged in FOLDER/portability.json. Environments are made in FOLDER
and used again; a release carries the table. pip's own choice of torch on Linux is a CUDA build of several GB: put
wheels of the CPU builds into a folder, named in PIP_FIND_LINKS.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("pytest", "jsonschema", "ftfy", "sentencepiece", "tqdm", "Pillow", "tokenizers")
INTRODUCTION = """\
# Portability

Which versions of Python and of the libraries pass the default tests. The first two rows use the oldest versions
that `pyproject.toml` allows, `newest` the newest of that day; other Pythons take the torch of development and
the newest of everything else. A torch without `+cpu` is the CUDA build, run on the CPU. Written by
`tests/campaigns/portability.py`.
"""
SHOWN = ("torch", "transformers", "diffusers", "numpy", "safetensors", "av")
COUNTS = ("passed", "failed", "skipped", "minutes")
NEWEST = ("transformers", "diffusers", "safetensors", "einops", "av", "numpy", "matplotlib", "scipy")
# The oldest that pyproject.toml allows; matplotlib before 3.9 warns of what its own dependencies deprecate.
VERSIONS_THEN = ("4.50.3", "0.35.2", "0.4.5", "0.7.0", "16.0.0", "1.26.4", "3.10.8", "1.11.4")
OLDEST = tuple(f"{name}=={version}" for name, version in zip(NEWEST, VERSIONS_THEN, strict=True))
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINNED = tuple(line.partition(";")[0].strip() for line in CONSTRAINTS if line.startswith(NEWEST))
# Python, torch, other requirements as pip reads them.
ROWS = {
    "oldest": ("3.11", "2.6.0", OLDEST),
    "oldest-libraries": ("3.11", "2.13.0", OLDEST),
    "developed-on": ("3.11", "2.13.0", PINNED),
    "newest": ("3.11", "2.15.0", NEWEST),
    "python-3.10": ("3.10", "2.13.0", NEWEST),
    "python-3.12": ("3.12", "2.13.0", NEWEST),
    "python-3.13": ("3.13", "2.13.0", NEWEST),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rows and write the table; the exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where environments and results are kept")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "portability.md"
    log = folder / "portability.json"
    results = json.loads(log.read_bytes()) if log.is_file() else {}
    for name in options.rows or ROWS:
        results[name] = run_row(name, folder)
        log.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        table.write_text(table_of({row: results.get(row, {}) for row in ROWS}), encoding="utf-8")
    return int(any(result.get("failed") for result in results.values()))


def run_row(name: str, folder: Path) -> dict[str, Any]:
    """Make a row's environment, or take the one that is there, and run the default suite in it."""
    version, torch, others = ROWS[name]
    result: dict[str, Any] = {"date": datetime.date.today().isoformat()}
    python = folder / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.is_file():
        process = subprocess.run([f"python{version}", "-m", "venv", str(folder / name)], check=False)
        if process.returncode:
            return result | {"why": f"there is no Python {version} here"}
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in ([f"torch=={torch}"], [f"torch=={torch}", *others, *TOOLS], ["--no-deps", "-e", str(ROOT)]):
        subprocess.run([*pip, *words], check=True)
    log = folder / f"{name}.xml"
    words = ["-q", "-p", "no:cacheprovider", f"--junitxml={log}"]
    subprocess.run([str(python), "-m", "pytest", *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    [suite] = ElementTree.parse(log).getroot().iter("testsuite")
    tests, *lost, skipped = (int(suite.attrib[of]) for of in ("tests", "failures", "errors", "skipped"))
    first = next((case for case in suite.iter("testcase") if case.find("failure") is not None), None)
    shown = subprocess.run([str(python), "-c", VERSIONS, *SHOWN], check=True, capture_output=True, encoding="utf-8")
    result["python"], result["versions"] = json.loads(shown.stdout)
    result |= {"passed": tests - sum(lost) - skipped, "failed": sum(lost), "skipped": skipped}
    result["minutes"] = round(float(suite.attrib["time"]) / 60, 1)
    return result if first is None else result | {"why": f"first: {first.attrib['name']}"}


VERSIONS = """
import importlib.metadata as m, json, platform, sys
have = {d.metadata["Name"].lower(): d.version for d in m.distributions()}
print(json.dumps([platform.python_version(), {n: have[n] for n in sys.argv[1:] if n in have}]))
"""


def table_of(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page."""
    head = ("row", "Python", *SHOWN, *COUNTS, "date")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, result in results.items():
        versions = result.get("versions") or {"torch": ROWS[name][1]}
        cells = [name, result.get("python", ROWS[name][0]), *(versions.get(package, "") for package in SHOWN)]
        counts = [result[of] for of in COUNTS] if "versions" in result else ["not run here", "", "", ""]
        lines.append(f"| {' | '.join(map(str, (*cells, *counts, result.get('date', ''))))} |")
    reasons = [
        f"- {name}: {result.get('why', 'not tried yet')}."
        for name, result in results.items()
        if not result or "why" in result
    ]
    where = f"Run on {platform.system()}, {platform.machine()}, {os.cpu_count()} cores."
    return "\n".join([INTRODUCTION, *lines, "", *reasons, *([""] if reasons else []), where, ""])


if __name__ == "__main__":
    sys.exit(main())
