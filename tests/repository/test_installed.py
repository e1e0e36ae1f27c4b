"""What `pip install .` puts into an environment, and the command it brings."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.heavy
@pytest.mark.skipif(
    shutil.which("git") is None or os.name == "nt", reason="copies what git tracks; the paths are POSIX"
)
def test_the_installed_command_makes_the_pocket_demo_from_what_was_installed(tmp_path):
    """Catches a file that the package leaves out. The environment's other packages are those of this one."""
    source = tmp_path / "source"
    for name in subprocess.check_output(["git", "-C", ROOT, "ls-files", "sdvg_core"], text=True).split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    environment = tmp_path / "environment"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    # After what is installed here, and without the .pth files in there: the editable package is not seen.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        where = {"cwd": tmp_path, "env": clean, "text": True, "check": True}
        return subprocess.run(
            [environment / "bin" / command[0], *command[1:]], stdout=subprocess.PIPE, **where
        ).stdout

    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", str(source)]
    run("python", "-m", "pip", "install", *quiet)
    shutil.rmtree(source)
    where = run("python", "-c", "import sdvg_core; print(sdvg_core.__file__)")
    assert Path(where.strip()).parent == packages / "sdvg_core", sys.path
    run("sdvg", "demo", "--blocks", "2", "--output", "made")
    assert {"video.mp4", "report.json"} <= {path.name for path in (tmp_path / "made").iterdir()}
