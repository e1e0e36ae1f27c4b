"""Make the environment of the ComfyUI tests: ComfyUI's requirements, this project's, and one torch for both.

    python3 tests/comfyui/make_environment.py ENVIRONMENT COMFYUI [--over OTHER]

ENVIRONMENT is a folder to make, COMFYUI a checkout of ComfyUI, which stays as it is. The environment gets the
Python that runs this file, and the torch of constraints.txt. With --over it takes that and this project from an
environment that has both, and only the rest is installed. README.md beside this file says more.
"""

import argparse
import json
import os
import subprocess
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
# The releases that go with the torch of constraints.txt. They are named here because ComfyUI asks for any version,
# and the newest torchvision would bring another torch with it.
COMPANIONS = ("torchvision==0.28.0", "torchaudio==2.11.0")
PROBE = """
import json, sysconfig, torch
print(json.dumps([torch.__version__, torch.version.cuda is not None, sysconfig.get_path("platlib")]))
"""


def main(arguments=None):
    """Check the two folders, then make the environment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment", type=Path, help="folder to make; must be new or empty")
    parser.add_argument("comfyui", type=Path, help="checkout of ComfyUI")
    parser.add_argument("--over", type=Path, help="environment that has this project's requirements")
    options = parser.parse_args(arguments)
    folder = options.environment
    checkout = options.comfyui
    if not all((checkout / name).is_file() for name in ("comfyui_version.py", "requirements.txt")):
        parser.error(f"expected a checkout of ComfyUI, but {checkout} is none; pass the folder of its main.py")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        parser.error(f"expected a new or empty folder, but {folder} is neither; delete it or name another")
    make_environment(folder.resolve(), checkout / "requirements.txt", options.over)


def make_environment(folder, requirements, over):
    """Install torch, its companions without their dependencies, and then everything else around them."""
    venv.create(folder, with_pip=over is None)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if over:
        packages = packages_of(folder.resolve())
        others = packages_of(over.resolve())
        (packages / "over.pth").write_text(f"import site; site.addsitedir({str(others)!r})\n", encoding="utf-8")
    pip_install(python, "--constraint", str(CONSTRAINTS), "torch")
    pip_install(python, "--no-deps", *COMPANIONS)
    before = look_at(python)
    torch, cuda, packages = before
    if not cuda:  # torchaudio's compiled libraries need it to load; without them it runs as pure Python
        for library in (Path(packages) / "torchaudio" / "lib").glob("*.so"):
            library.unlink()
    install_the_rest(python, requirements, torch=torch)
    after = look_at(python)
    if after != before:
        raise RuntimeError(f"expected torch to stay as it was, {before}, but pip made it {after}; report this")


def packages_of(environment):
    """Return the folder that an environment's packages are in."""
    return next(environment.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"))


def install_the_rest(python, requirements, *, torch):
    """Install what ComfyUI and this project require; nothing of it may replace `torch` or its companions."""
    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch) / "pins.txt"
        # ComfyUI names the comfy-kitchen that it reads quantised files with.
        ours = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("comfy-kitchen")]
        pins.write_text("\n".join((*ours, f"torch=={torch}", *COMPANIONS)), encoding="ascii")
        pip_install(
            python, "--constraint", str(pins), "--requirement", str(requirements), "--editable", f"{ROOT}[dev]"
        )


def look_at(python):
    """Return an environment's torch, whether that was built for CUDA, and its folder of packages."""
    torch, cuda, packages = json.loads(subprocess.check_output([python, "-c", PROBE], text=True))
    return torch, cuda, packages


def pip_install(python, *arguments):
    """Run `pip install` in the environment; pip says itself what went wrong. Python compiles what it imports."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    pip += ["--progress-bar", "off"]
    subprocess.run([*pip, *arguments], check=True)


if __name__ == "__main__":
    main()
