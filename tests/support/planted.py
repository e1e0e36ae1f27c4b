"""Run a test without and with a mistake in the code that it tests, in a fork."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.monkeypatch import resolve
from _pytest.runner import runtestprotocol

from .forked import fork, fork_workers

TESTS = Path(__file__).resolve().parents[1]
OUTCOMES = ("green, then red", "red without the mistake", "green with the mistake", "stopped by an error")
"""What came of a test without and with a mistake, by exit code; only the first shows that it sees the mistake."""
BY_ASSERTION = (AssertionError, pytest.fail.Exception)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in the product, and the test that sees it.

    `test`: its node, below tests/. `place`: dotted name of what is replaced. `wrong`: returns what takes its place.
    `heavy`: whether the test takes over two seconds, or is heavy itself.
    """

    test: str
    place: str
    wrong: Callable[[Any], Any]
    heavy: bool = False


@dataclass(slots=True)
class Twice:
    """A plugin of pytest that runs the collected test twice, the second time with the mistake."""

    mistake: Mistake
    errors: list[BaseException] = field(default_factory=list)
    outcome: str = "stopped by an error"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Keep what a phase of the test raises."""
        if call.excinfo is not None:
            self.errors.append(call.excinfo.value)
        return (yield)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Without a next test all fixtures end, so that the second run has its own, as of what tests keep.

        Workers are forks.
        """
        (item,) = session.items
        with pytest.MonkeyPatch.context() as patched:
            fork_workers(patched)
            runtestprotocol(item, nextitem=None)
            if self.errors:
                self.outcome = "red without the mistake"
                return True
            forget_kept_results()
            patched.setattr(self.mistake.place, self.mistake.wrong(resolve(self.mistake.place)))
            runtestprotocol(item, nextitem=None)
        if not self.errors:
            self.outcome = "green with the mistake"
        elif isinstance(self.errors[0], BY_ASSERTION):
            self.outcome = "green, then red"
        return True


def forget_kept_results() -> None:
    """Empty the caches of functions of tests: what they keep was made without the mistake."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", "")).startswith(str(TESTS)):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def outcome(mistake: Mistake, log: Path, mark: str = "") -> str:
    """Return one of `OUTCOMES`. `log`: gets the test's output. `mark`: the expression of marks that collects it."""

    def program() -> int:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        plugin = Twice(mistake)
        # Of pytest's own plugins, those that collect garbage five times at the end.
        idle = ("cacheprovider", "threadexception", "unraisableexception")
        words = ["-q", "-m", mark, "--assert=plain", "--tb=short", *(f"-pno:{name}" for name in idle)]
        pytest.main([*words, f"--rootdir={TESTS.parent}", f"{TESTS}/{mistake.test}"], plugins=[plugin])
        return OUTCOMES.index(plugin.outcome)

    process = fork(program, str(log), os.devnull)
    process.join()
    assert process.exitcode is not None, "it has ended"
    return dict(enumerate(OUTCOMES)).get(process.exitcode, f"ended with {process.exitcode}")
