"""Make the archive that the ComfyUI registry gets, and check it.

    python3 release/archive.py OUT.zip          make it from what git tracks, without what .comfyignore names
    python3 release/archive.py OUT.zip --try    also install it into a clean ComfyUI and run the pocket graph

The second needs what `python3 dev.py comfyui` needs: a checkout of ComfyUI. The same files make the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("__init__.py", "pyproject.toml", "requirements.txt", "LICENSE", "README.md", "SECURITY.md")
NEEDED_FOLDERS = ("nodes", "sdvg_core", "workflows", "locales")
# The embedded models are most of it.
LARGEST = 40_000_000
EPOCH = (1980, 1, 1, 0, 0, 0)
OLDEST_PYTHON = (3, 10)
TRIAL = "tests/comfyui/test_archive.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive; say what is wrong with it, if anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", type=Path, help="file to write")
    parser.add_argument(
        "--try", dest="trial", action="store_true", help="install it into a clean ComfyUI and run it"
    )
    options = parser.parse_args(arguments)
    write_archive(options.archive)
    wrong = problems(options.archive)
    for problem in wrong:
        print(problem)
    if wrong:
        return 1
    with zipfile.ZipFile(options.archive) as archive:
        print(f"{options.archive}: {len(archive.namelist())} files, {options.archive.stat().st_size / 1e6:.1f} MB")
    if options.trial:
        return subprocess.run(
            [sys.executable, ROOT / "dev.py", "comfyui", "-m", "comfyui", TRIAL], check=False
        ).returncode
    return 0


def members(root: Path = ROOT) -> list[str]:
    """Return the files of the archive: those that git tracks and .comfyignore does not name, as paths with /."""
    tracked, left_out = _listed(root), set(_listed(root, "--ignored", f"--exclude-from={root / '.comfyignore'}"))
    return sorted(set(tracked) - left_out)


def write_archive(path: Path, root: Path = ROOT) -> None:
    """Write the archive; no time and no user of this machine gets into it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in members(root):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, (root / name).read_bytes())


def problems(path: Path) -> list[str]:
    """Return what is wrong with an archive, a sentence each."""
    found = []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        found += [f"{name} is missing" for name in NEEDED if name not in names]
        found += [f"the folder {name} is missing" for name in NEEDED_FOLDERS if not _under(name, names)]
        found += [f"{name} leads out of the archive" for name in names if ".." in PurePosixPath(name).parts]
        found += [f"{name} is hidden" for name in names if name.startswith(".")]
        found += [f"{name} should be left out" for name in names if name not in members()]
        for name in names:
            found += _unreadable(name, archive.read(name))
    if path.stat().st_size > LARGEST:
        found.append(f"it has {path.stat().st_size:,} bytes, more than {LARGEST:,}")
    return found


def _unreadable(name: str, content: bytes) -> list[str]:
    try:
        if name.endswith(".py"):
            ast.parse(content, name, feature_version=OLDEST_PYTHON)
        elif name.endswith(".json"):
            json.loads(content)
    except (SyntaxError, ValueError) as error:
        return [f"{name} cannot be read: {error}"]
    return []


def _under(folder: str, names: Sequence[str]) -> bool:
    return any(name.startswith(f"{folder}/") for name in names)


def _listed(root: Path, *options: str) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", *options]
    return [name for name in subprocess.check_output(command, text=True).split("\0") if name]


if __name__ == "__main__":
    sys.exit(main())
