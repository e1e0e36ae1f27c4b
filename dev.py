"""The commands of the README, for a machine with Python 3.10 to 3.13 and nothing else.

    python3 dev.py demo          make a video with the embedded models
    python3 dev.py test          lint, types and the default tests: what to run while working
    python3 dev.py comfyui       the tests of the nodes in a real ComfyUI, if there is a checkout
    python3 dev.py originals     the engine against the original projects, if there are checkouts (docs/parity.md)
    python3 dev.py test --all    what CI runs: lint, types, the default and heavy tests, then those in ComfyUI

The exhaustive tests take too long for either and are run by their mark (tests/README.md).

Each makes its own environment beside this file (.venv-demo, .venv-test, .venv-comfyui) from the versions in
constraints.txt, and uses it again next time. ComfyUI is looked for at COMFYUI_PATH, ~/comfy/ComfyUI and two folders
up. Further options of `demo` go to `python -m sdvg_core demo`, those of the others to pytest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST, NEWEST = (3, 10), (3, 13)
EXTRAS = {"demo": "standalone", "test": "dev"}
COMFYUI_TESTS = "tests/comfyui"
LONGEST = ("test_strip.py", "test_interface.py", "test_host_reuse.py")


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    commands = {"demo": demo, "test": test, "comfyui": comfyui, "originals": originals}
    if not arguments or arguments[0] not in commands:
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        print(f"expected Python 3.10 to 3.13, but this is {sys.version.split()[0]}; call dev.py with one of those")
        return 2
    return commands[arguments[0]](arguments[1:])


def demo(options: Sequence[str]) -> int:
    """Make the demo video."""
    return run(environment("demo", install_extra), "-m", "sdvg_core", "demo", *options)


def test(options: Sequence[str]) -> int:
    """Lint, check types, run the tests; stop at the first step that fails."""
    everything = "--all" in options
    rest = [option for option in options if option != "--all"]
    marks = ["-m", "not comfyui and not gpu and not originals and not exhaustive"] if everything else []
    python = environment("test", install_extra)
    steps = (
        ["-m", "ruff", "check", "."],
        ["-m", "ruff", "format", "--check", "."],
        ["-m", "mypy"],
        *([["benchmarks/loop_overhead.py", "--runs", "5"]] if everything else []),
        # Neighbours stay together, as they share what they need, until one process has nothing left to do.
        ["-m", "pytest", "-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal", *marks, *rest],
    )
    for step in steps:
        code = run(python, *step)
        if code:
            return code
    return comfyui([]) if everything else 0


def originals(options: Sequence[str]) -> int:
    """Compare the engine with the original projects, and print the differences."""
    python = environment("test", install_extra)
    return run(python, "-m", "pytest", "-rs", "-m", "originals", "tests/originals", *options)


def comfyui(options: Sequence[str]) -> int:
    """Run the tests of the nodes, in a process and an environment of their own."""
    checkout = find_comfyui()
    if checkout is None:
        files = len(list((ROOT / COMFYUI_TESTS).glob("test_*.py")))
        print(f"Skipped: {files} files of {COMFYUI_TESTS}, for want of a checkout of ComfyUI (see README.md there)")
        return 0

    def install(folder: Path, python: Path) -> None:
        script = ROOT / COMFYUI_TESTS / "make_environment.py"
        subprocess.run([sys.executable, script, folder, checkout], check=True, stdout=subprocess.DEVNULL)

    python = environment("comfyui", install, checkout / "requirements.txt")
    os.environ["COMFYUI_PATH"] = str(checkout)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or processes side by side wait for each other's threads
    # Side by side, a file in one process: each has a ComfyUI of its own, and a server for most of its files.
    # Files as given: xdist would begin with those of many tests, and end with those of few that take long.
    # Those with a browser wait more than they compute, so there is one process more than two cores need.
    processes = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    first = [f"{COMFYUI_TESTS}/{name}" for name in LONGEST]
    side_by_side = [*processes, *first, COMFYUI_TESTS]
    return run(python, "-m", "pytest", "-q", "-rs", "-m", "comfyui and not exhaustive", *(options or side_by_side))


def find_comfyui() -> Path | None:
    """Return a checkout of ComfyUI, where the tests themselves look for it."""
    stated = os.environ.get("COMFYUI_PATH")
    places = [Path(stated)] if stated else [Path.home() / "comfy" / "ComfyUI", ROOT.parents[1]]
    return next((place for place in places if (place / "comfy" / "sd.py").is_file()), None)


def environment(name: str, install: Callable[[Path, Path], None], *recipe: Path) -> str:
    """Return an environment's Python; make it anew if what it was made from has changed since."""
    folder = ROOT / f".venv-{name}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    sources = (ROOT / "constraints.txt", ROOT / "pyproject.toml", *recipe)
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    stamp = folder / "made-from"
    if not (stamp.is_file() and stamp.read_text(encoding="ascii") == wanted):
        print(f"Making an environment in {folder.name} (about 2 GB, a minute or a few) ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        install(folder, python)
        stamp.write_text(wanted, encoding="ascii")
    return str(python)


def install_extra(folder: Path, python: Path) -> None:
    """Install this project with what a command needs."""
    venv.create(folder, with_pip=True)
    # Python compiles what is imported; compiling all of what is installed would take longer than installing it.
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    limits = ["--constraint", str(ROOT / "constraints.txt")]
    # torch comes first and alone, so that nothing else can choose another build of it.
    subprocess.run([*install, *limits, "torch"], check=True)
    extra = EXTRAS[folder.name.removeprefix(".venv-")]
    subprocess.run([*install, *limits, "--editable", f"{ROOT}[{extra}]"], check=True)


def run(python: str, *arguments: str) -> int:
    """Run the environment's Python; `demo` writes into the folder it was called from."""
    if arguments[1:2] != ("sdvg_core",):
        os.chdir(ROOT)
        print("$ python", *arguments, flush=True)
    return subprocess.run([python, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
