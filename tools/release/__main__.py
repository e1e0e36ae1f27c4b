"""Make what a release carries: the registry's archive, and what the development environments consist of.

    python3 -m tools.release FOLDER           sdvg.zip, and of each environment its bill and locked list
    python3 -m tools.release FOLDER --try     also install the archive into a clean ComfyUI and run the pocket graph

The environments are those of `python3 dev.py test` and `python3 dev.py comfyui`; pip needs its registry.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from . import archive

ENVIRONMENTS = ("test", "comfyui")


def main() -> int:
    """Write the files, and return 1 if something is wrong with the archive or an environment is missing."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder to write to")
    parser.add_argument("--try", dest="trial", action="store_true", help="run the archive in a clean ComfyUI")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ENVIRONMENTS:
        python = archive.ROOT / f".venv-{name}" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if not python.is_file():
            print(f"there is no {python.parents[1].name}; run python3 dev.py {name} first")
            return 1
        subprocess.run([python, "-m", "tools.release.bill", folder, name], cwd=archive.ROOT, check=True)
    return archive.main([str(folder / "sdvg.zip"), *(["--try"] if options.trial else [])])


if __name__ == "__main__":
    sys.exit(main())
