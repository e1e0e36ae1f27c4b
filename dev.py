"""The two commands of the README, for a machine with Python 3.10 to 3.13 and nothing else.

    python3 dev.py demo          make a video with the embedded models
    python3 dev.py test          lint, types and the test suite
    python3 dev.py test --all    the same with the heavy cases, as CI runs it

Each command makes its own environment beside this file (.venv-demo, .venv-test) from the versions in
constraints.txt, and uses it again next time. Further options of `demo` go to `python -m sdvg_core demo`, those of
`test` to pytest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST, NEWEST = (3, 10), (3, 13)
EXTRAS = {"demo": "standalone", "test": "dev"}


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands."""
    if not arguments or arguments[0] not in EXTRAS:
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        print(f"expected Python 3.10 to 3.13, but this is {sys.version.split()[0]}; call dev.py with one of those")
        return 2
    command, *rest = arguments
    python = make_environment(command)
    return demo(python, rest) if command == "demo" else test(python, rest)


def make_environment(command: str) -> str:
    """Return the environment's Python; install what it lacks or what has changed since it was made."""
    folder = ROOT / f".venv-{command}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    recipe = (ROOT / "constraints.txt").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    wanted, stamp = hashlib.sha256(recipe).hexdigest(), folder / "made-from"
    if not (stamp.is_file() and stamp.read_text(encoding="ascii") == wanted):
        print(f"Making an environment in {folder.name} (about 2 GB, a minute or a few) ...", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        limits = ["--constraint", str(ROOT / "constraints.txt")]
        # torch comes first and alone, so that nothing else can choose another build of it.
        subprocess.run([*install, *limits, "torch"], check=True)
        subprocess.run([*install, *limits, "--editable", f"{ROOT}[{EXTRAS[command]}]"], check=True)
        stamp.write_text(wanted, encoding="ascii")
    return str(python)


def demo(python: str, options: Sequence[str]) -> int:
    """Make the demo video."""
    return subprocess.run([python, "-m", "sdvg_core", "demo", *options], check=False).returncode


def test(python: str, options: Sequence[str]) -> int:
    """Lint, check types, run the tests; stop at the first that fails."""
    marks = ["-m", "not comfyui and not gpu"] if "--all" in options else []
    rest = [option for option in options if option != "--all"]
    workers = ["-n", str(min(os.cpu_count() or 1, 4))]
    steps = (
        ["-m", "ruff", "check", "."],
        ["-m", "ruff", "format", "--check", "."],
        ["-m", "mypy"],
        ["benchmarks/loop_overhead.py", "--runs", "5"],
        ["-m", "pytest", *workers, *marks, *rest],
    )
    for step in steps:
        print("$ python", *step, flush=True)
        code = subprocess.run([python, *step], cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
