"""What every `generate` of these tests needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdvg_core.pocket import race
from tests.support.cli_runs import options
from tests.support.loaded_once import load_once


@pytest.fixture(scope="session")
def base(files) -> list[str]:
    return options(files)


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Load each file once. What loading promises is proved in `tests/causal_wan`, `decoders` and `scorers`."""
    with pytest.MonkeyPatch.context() as patched:
        load_once(patched)
        yield


@pytest.fixture
def short_race(monkeypatch) -> None:
    """Let the film of a demo's race take half a second; what it shows is proved in `tests/pocket/test_race.py`."""
    for name in ("LEAST_SECONDS", "RESULT_SECONDS"):
        monkeypatch.setattr(race, name, 0.25)
