"""The commands of the README, for a machine with Python 3.10 to 3.13 and nothing else.

    python3 dev.py demo          make a video with the embedded models
    python3 dev.py run COMMAND   any other command of `python -m sdvg_core`, such as: run plan --vram 24
    python3 dev.py test          lint, types and the default tests: what to run while working
    python3 dev.py comfyui       the tests of the nodes in a real ComfyUI, if there is a checkout
    python3 dev.py originals     the engine against the original projects, if there are checkouts (docs/parity.md)
    python3 dev.py test --all    what CI runs: lint, types, the default and heavy tests, then those in ComfyUI

Campaigns take too long for either and are run by their mark or their own command (tests/README.md).

Each makes its own environment beside this file (.venv-demo, .venv-test, .venv-comfyui) from the versions in
constraints.txt, and uses it again next time; `demo` and `run` share one. ComfyUI is looked for at COMFYUI_PATH,
~/comfy/ComfyUI and two folders up. Further options of `demo` go to `python -m sdvg_core demo`, all of `run` to
`python -m sdvg_core`, those of the others to pytest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST, NEWEST = (3, 10), (3, 13)
EXTRAS = {"demo": "standalone", "test": "dev"}
COMFYUI_TESTS = "tests/comfyui"
SHOWN = ("Collecting ", "Downloading ", "Installing collected", "Successfully")
"""Beginnings of pip's lines that say how far it is."""
CPU_BUILD = """
  This machine shows no NVIDIA GPU, but on Linux pip takes the CUDA build of torch unless told otherwise, several GB
  more than the CPU build. For that one, stop this (Ctrl-C), download the CPU wheel of torch for this Python from
  where PyTorch publishes it, and say which folder it is in: export PIP_FIND_LINKS=folder/of/the/wheel"""
LONGEST = ("test_strip.py", "test_interface.py", "test_dropped_workflows.py", "test_host_reuse.py")


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    commands = {"demo": demo, "run": anything, "test": test, "comfyui": comfyui, "originals": originals}
    if not arguments or arguments[0] not in commands:
        helped = arguments[:1] in (["-h"], ["--help"])
        if arguments and not helped:
            name = arguments[0]
            tell(f"dev.py has no command {name}; write python3 dev.py run {name}, or see --help")
        else:
            print(__doc__)
        return 0 if helped else 2
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        print(f"expected Python 3.10 to 3.13, but this is {sys.version.split()[0]}; call dev.py with one of those")
        return 2
    return commands[arguments[0]](arguments[1:])


def demo(options: Sequence[str]) -> int:
    """Make the demo video."""
    return anything(["demo", *options])


def anything(options: Sequence[str]) -> int:
    """Run any command of `python -m sdvg_core`, in the environment of `demo`; without one, say what there is."""
    return run(environment("demo", install_extra), "-m", "sdvg_core", *(options or ["--help"]))


def test(options: Sequence[str]) -> int:
    """Run the tests, and lint and types beside them; stop at the first step that fails."""
    everything = "--all" in options
    rest = [option for option in options if option != "--all"]
    marks = ["-m", "not comfyui and not gpu and not originals and not exhaustive"] if everything else []
    python = environment("test", install_extra)
    steps = (
        *([["benchmarks/loop_overhead.py", "--runs", "5"]] if everything else []),
        # Neighbours stay together, as they share what they need, until one process has nothing left to do.
        ["-m", "pytest", "-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal", *marks, *rest],
    )
    with ThreadPoolExecutor(1) as beside:
        checks = beside.submit(check, python)
        code = next(filter(None, (run(python, *step) for step in steps)), 0)
        if not code and everything:
            code = comfyui([])
        return code or checks.result()


def check(python: str) -> int:
    """Lint and check types; say what is wrong as soon as it is known, and return the code of what failed first."""
    for words in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        done = subprocess.run([python, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            tell(f"\n$ python -m {' '.join(words)}   FAILED\n{done.stdout}{done.stderr}")
            return done.returncode
    return 0


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
    # Side by side, a file in one process: each has a ComfyUI and one server of its own.
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
        tell(f"Making an environment in {folder.name}, once: 1 to 2 GB with a CPU build of torch, some minutes.")
        shutil.rmtree(folder, ignore_errors=True)
        install(folder, python)
        stamp.write_text(wanted, encoding="ascii")
    return str(python)


def install_extra(folder: Path, python: Path) -> None:
    """Install this project with what a command needs."""
    try:
        venv.create(folder, with_pip=True)
    except subprocess.CalledProcessError:
        sys.exit("this Python cannot make environments with pip; on Debian and Ubuntu, install python3-venv")
    # torch comes first and alone, so that nothing else can choose another build of it.
    tell("1 of 2: torch, most of the download." + (CPU_BUILD if gets_needless_cuda() else ""))
    pip_install(python, "torch")
    extra = EXTRAS[folder.name.removeprefix(".venv-")]
    tell(f"2 of 2: this project and what else it needs ({extra}).")
    pip_install(python, "--editable", f"{ROOT}[{extra}]")
    tell("Installed. The first start takes longer than later ones, as Python compiles what it imports.")


def pip_install(python: Path, *what: str) -> None:
    """Install, and show what pip says of it. Ends this program if it fails."""
    # Python compiles what is imported; compiling all of what is installed would take longer than installing it.
    install = [str(python), "-u", "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    with subprocess.Popen(
        [*install, "--constraint", str(ROOT / "constraints.txt"), *what], stdout=subprocess.PIPE, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.startswith(SHOWN):
                tell("  " + line.rstrip().partition(" (from ")[0][:118])
    if pip.returncode:
        sys.exit(
            f"pip could not install {what[-1]}; its message is above. Mend that and run the same command again"
        )


def tell(text: str) -> None:
    """Say how far it is, apart from what a command prints."""
    print(text, file=sys.stderr, flush=True)


def gets_needless_cuda() -> bool:
    """Whether pip would take the CUDA build of torch on a machine that shows no NVIDIA driver."""
    told = any(os.environ.get(name) for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"))
    return sys.platform == "linux" and not told and not shutil.which("nvidia-smi")


def run(python: str, *arguments: str) -> int:
    """Run the environment's Python; a command of ours writes into the folder it was called from."""
    if arguments[1:2] != ("sdvg_core",):
        os.chdir(ROOT)
        print("$ python", *arguments, flush=True)
    with subprocess.Popen([python, *arguments]) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue  # the child hears Ctrl-C too, and first ends the block in the making


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
