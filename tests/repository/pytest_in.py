"""Runs pytest on a copy of the repository. A new process imports this file, so it imports nothing of ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path

BROKEN = 99  # unlike any code of pytest's


def pytest_in(folder: Path, tests: list[str], log: Path) -> None:
    """Run tests in a folder and end the process with pytest's exit code; what is printed goes to the log."""
    assert not any(name.partition(".")[0] == "sdvg_core" for name in sys.modules)
    os.chdir(folder)
    # Else what the copy lacks would be found in the repository, or the wrong code tested.
    sys.path[:] = [str(folder), *(place for place in sys.path if not is_repository(Path(place or ".")))]
    sys.dont_write_bytecode = True
    with log.open("w", encoding="utf-8") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        code = BROKEN
        try:
            import pytest

            # Of plugins that were imported with everything else: pytest can no longer rewrite their asserts.
            known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *known, *tests]))
        finally:
            sys.stdout.flush()
            os._exit(code)


def is_repository(place: Path) -> bool:
    """Whether a place that modules are looked for in is a repository's root or a folder of its tests."""
    roots = [place, *(parent.parent for parent in (place, *place.parents) if parent.name == "tests")]
    return any((root / "sdvg_core" / "__init__.py").is_file() for root in roots)
