"""Runs pytest on a copy of the repository. A new process imports this file, so it imports nothing of ours."""

import os
import sys
from pathlib import Path
from typing import Any

BROKEN = 99  # unlike any code of pytest's


class FirstCases:
    """A plugin that keeps only the first case of every test."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        items[:] = [item for item in items if item in first.values()]


def pytest_in(folder: Path, tests: list[str], log: Path, first_cases: bool = False) -> None:
    """Run tests in a folder and end the process with pytest's exit code; what is printed goes to the log.

    `first_cases`: only the first case of a test that has many.
    """
    assert not any(name.partition(".")[0] == "sdvg_core" for name in sys.modules)
    os.chdir(folder)
    # Else what the copy lacks would be found in the repository, or the wrong code tested.
    sys.path[:] = [str(folder), *(place for place in sys.path if not is_repository(Path(place or ".")))]
    with log.open("w", encoding="utf-8") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        code = BROKEN
        try:
            import pytest

            # Of plugins that were imported with everything else: pytest can no longer rewrite their asserts.
            known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            quiet = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
            code = int(pytest.main([*quiet, *known, *tests], plugins=[FirstCases()] if first_cases else []))
        finally:
            sys.stdout.flush()
            os._exit(code)


def is_repository(place: Path) -> bool:
    """Whether a place that modules are looked for in is a repository's root or a folder of its tests."""
    roots = [place, *(parent.parent for parent in (place, *place.parents) if parent.name == "tests")]
    return any((root / "sdvg_core" / "__init__.py").is_file() for root in roots)
