"""Check types by mypy, the nodes inside a package, as ComfyUI imports them; the folder may have any name.

    python -m tools.check_types

Options go to mypy, whose settings are in pyproject.toml.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACK = ROOT / ".mypy_cache" / "sdvg_pack"
"""A link to this checkout, under a name that mypy can import; `mypy_path` has its folder."""


def main() -> int:
    """Make the link, if it is not there, and run mypy."""
    PACK.parent.mkdir(exist_ok=True)
    if not PACK.exists():
        PACK.unlink(missing_ok=True)  # of a checkout that was moved
        link_folder()
    return subprocess.run([sys.executable, "-m", "mypy", *sys.argv[1:]], cwd=ROOT, check=False).returncode


def link_folder() -> None:
    """Make the link; on Windows a junction, which needs no rights of its own."""
    if sys.platform == "win32":
        import _winapi

        _winapi.CreateJunction(str(ROOT), str(PACK))
    else:
        PACK.symlink_to(ROOT, target_is_directory=True)


if __name__ == "__main__":
    sys.exit(main())
