"""The commands of the README, for a machine with Python 3.10 to 3.14 and nothing else.

    python3 dev.py demo          make a video with the embedded models
    python3 dev.py run COMMAND   any other command of `python -m sdvg_core`, such as: run doctor --vram 24
    python3 dev.py study         which routes pay off on your prompts (docs/study.md)
    python3 dev.py bench         how fast each route is (docs/performance.md)
    python3 dev.py test          lint, types and the default tests: what to run while working
    python3 dev.py comfyui       the tests of the nodes in a real ComfyUI, if there is a checkout
    python3 dev.py originals     the engine against the original projects, if there are checkouts (docs/parity.md)
    python3 dev.py test --all    what CI runs: lint, types, the default and heavy tests, then those in ComfyUI, and
                                 lint, format and types of the page's JavaScript where there is npm

Campaigns take too long for either and are run by their mark or their own command (tests/README.md).

The first use of a command makes an environment next to this file (.venv-demo, .venv-test, .venv-comfyui) from the
versions in constraints.txt; `demo`, `run`, `study` and `bench` share one. ComfyUI is looked for at
COMFYUI_PATH, ~/comfy/ComfyUI and two folders up. Further options of `demo` go to `python -m sdvg_core demo`, all of
`run` to `python -m sdvg_core`, of `study` to `python -m lab.research`, of `bench` to `python -m lab.benchmarks`,
those of the others to pytest.
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
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST, NEWEST = (3, 10), (3, 14)
EXTRAS = {"demo": "standalone,research", "test": "dev,quantised"}
PACKAGES = {"study": "lab.research", "bench": "lab.benchmarks"}
COMFYUI_TESTS = "tests/comfyui"
SHOWN = ("Collecting ", "Downloading ", "Installing collected", "Successfully")  # so pip's lines begin that tell
CPU_BUILD = """
  This machine shows no NVIDIA GPU, but on Linux pip takes the CUDA build of torch unless told otherwise, several GB
  more than the CPU build. For that one, stop this (Ctrl-C), download the CPU wheel of torch for this Python from
  where PyTorch publishes it, and say which folder it is in: export PIP_FIND_LINKS=folder/of/the/wheel"""
LONG = (
    "interface strip dropped_workflows shots_page corners router_policies parts_of_a_clip archive server host_names"
    " same_latents forecast strip_logic kept host_reuse host_vae host_devices faults"
)
"""The files of the nodes' tests that take long, the longest first."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    commands = {"demo": demo, "run": anything, "test": test, "comfyui": comfyui, "originals": originals}
    commands |= {name: partial(beside, package) for name, package in PACKAGES.items()}
    if not arguments or arguments[0] not in commands:
        if arguments[:1] in ([], ["-h"], ["--help"]):
            print(__doc__)
            return 0 if arguments else 2
        tell(f"dev.py has no command {arguments[0]}; write python3 dev.py run {arguments[0]}, or see --help")
        return 2
    if arguments[0] in ("test", "comfyui", "originals") and {"-h", "--help"} & {*arguments[1:]}:
        print(__doc__)  # pytest's own help would need an environment first
        return 0
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        print(f"expected Python 3.10 to 3.14, but this is {sys.version.split()[0]}; call dev.py with one of those")
        return 2
    return commands[arguments[0]](arguments[1:])


def demo(options: Sequence[str]) -> int:
    """Make the demo video."""
    return anything(["demo", *options])


def anything(options: Sequence[str]) -> int:
    """Run any command of `python -m sdvg_core`, in the environment of `demo`; without one, say what there is."""
    return run(environment("demo", install_extra), "-m", "sdvg_core", *(options or ["--help"]))


def beside(package: str, options: Sequence[str]) -> int:
    """Run a package of this repository that is not installed, in the environment of `demo`."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return run(environment("demo", install_extra), "-m", package, *options)


def test(options: Sequence[str]) -> int:
    """Run the tests, and lint and types beside them; stop at the first step that fails."""
    everything = "--all" in options
    words = ["-m", "not comfyui and not gpu and not originals and not exhaustive"] if everything else []
    words += [option for option in options if option != "--all"]
    checkout = find_comfyui() if everything else None
    with ThreadPoolExecutor(2) as beside:
        python = environment("test", install_extra)
        nodes = checkout and beside.submit(comfyui_python, checkout)
        checks = beside.submit(check, python)
        page = beside.submit(check_page) if everything else None
        # Neighbours stay together, as they share what they need, until one process has nothing left to do.
        code = run(python, "-m", "pytest", "-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal", *words)
        code = code or (comfyui([], nodes and nodes.result()) if everything else 0)
        return code or checks.result() or (page.result() if page else 0)


def check_page() -> int:
    """Lint the page's JavaScript, and check its format and types, with the npm tools of tools/web; their code."""
    npm = shutil.which("npm")
    if npm is None:
        tell("Skipped: lint, format and types of the page's JavaScript, for want of npm")
        return 0
    folder = ROOT / "tools" / "web"
    steps = [["ci", "--no-audit", "--no-fund"], ["run", "check"]]
    if (folder / "node_modules" / ".package-lock.json").is_file():
        steps = steps[1:]
    for words in steps:
        done = subprocess.run([npm, *words], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            tell(f"\n$ npm {' '.join(words)}   FAILED\n{done.stdout}{done.stderr}")
            return done.returncode
    return 0


def check(python: str) -> int:
    """Lint and check types; say what is wrong as soon as it is known, and return the code of what failed first."""
    checks = ["ruff check .", "ruff format --check .", "tools.check_types", "tests.shape --check"]
    for words in map(str.split, checks):
        done = subprocess.run([python, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            tell(f"\n$ python -m {' '.join(words)}   FAILED\n{done.stdout}{done.stderr}")
            return done.returncode
    return 0


def originals(options: Sequence[str]) -> int:
    """Compare the engine with the original projects, and print the differences."""
    python = environment("test", install_extra)
    return run(python, "-m", "pytest", "-rs", "-m", "originals", "tests/originals", *options)


def comfyui(options: Sequence[str], python: str | None = None) -> int:
    """Run the tests of the nodes, in a process of their own; `python`: of their environment, if it is made."""
    checkout = find_comfyui()
    if checkout is None:
        files = len(list((ROOT / COMFYUI_TESTS).glob("test_*.py")))
        print(f"Skipped: {files} files of {COMFYUI_TESTS}, for want of a checkout of ComfyUI (see README.md there)")
        return 0

    python = python or comfyui_python(checkout)
    os.environ["COMFYUI_PATH"] = str(checkout)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or processes side by side wait for each other's threads
    # A file in one process, each with one ComfyUI and one server; one more than two cores need, as browsers wait.
    # Files as given, not their folder: xdist would end with those of few tests, pytest with the last name.
    processes = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    pytest = ["-m", "pytest", "-q", "-rs", "-m", "comfyui and not exhaustive"]
    if options:
        return run(python, *pytest, *options)
    files = sorted((ROOT / COMFYUI_TESTS).glob("test_*.py"))
    files.sort(key=lambda file: [*LONG.split(), file.stem[5:]].index(file.stem[5:]))
    code = run(python, *pytest, *processes, *map(str, files))
    if code == 1:
        # Three browsers on two cores are at times too late for something. What is broken fails alone as well.
        tell("\nWhat failed is run a second time, one test after the other, until one fails again.")
        code = run(python, *pytest, "--last-failed", "-x", COMFYUI_TESTS)
    return code


def comfyui_python(checkout: Path) -> str:
    """Return the Python of ComfyUI's environment, which lies over that of the other tests."""
    environment("test", install_extra)
    make = [sys.executable, ROOT / COMFYUI_TESTS / "make_environment.py", "--over", ROOT / ".venv-test"]
    return environment(
        "comfyui",
        lambda folder, _: subprocess.run([*make, folder, checkout], check=True, stdout=subprocess.DEVNULL),
        checkout / "requirements.txt",
    )


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
    # Compiled once and kept here, whatever this machine's settings say: else every process compiles torch anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder / "bytecode"))
    if not (stamp.is_file() and stamp.read_text(encoding="ascii") == wanted):
        tell(f"Making an environment in {folder.name}, once: up to 2 GB with a CPU build of torch, some minutes.")
        shutil.rmtree(folder, ignore_errors=True)
        install(folder, python)
        stamp.write_text(wanted, encoding="ascii")
    return str(python)


def install_extra(folder: Path, python: Path) -> None:
    """Install this project with what a command needs."""
    try:
        venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    except subprocess.CalledProcessError:
        sys.exit("this Python cannot make environments with pip; on Debian and Ubuntu, install python3-venv")
    # torch comes first and alone, so that nothing else can choose another build of it.
    tell("1 of 2: torch, most of the download." + (CPU_BUILD if gets_needless_cuda() else ""))
    pip_install(python, "torch")
    extra = EXTRAS[folder.name.removeprefix(".venv-")]
    tell(f"2 of 2: this project and what else it needs ({extra}).")
    with subprocess.Popen([python, "-c", "import torch"], stderr=subprocess.DEVNULL):  # which compiles it meanwhile
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
        sys.exit(f"pip could not install {what[-1]} (its message is above); mend that and run the command again")


def tell(text: str) -> None:
    """Say how far it is, apart from what a command prints."""
    print(text, file=sys.stderr, flush=True)


def gets_needless_cuda() -> bool:
    """Whether pip would take the CUDA build of torch on a machine that shows no NVIDIA driver."""
    told = any(os.environ.get(name) for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"))
    return sys.platform == "linux" and not told and not shutil.which("nvidia-smi")


def run(python: str, *arguments: str) -> int:
    """Run the environment's Python; a command of ours writes into the folder it was called from."""
    if arguments[1] not in ("sdvg_core", *PACKAGES.values()):
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
