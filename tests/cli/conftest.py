"""What every `generate` of these tests needs."""

from __future__ import annotations

import pytest

from tests.support.cli_runs import options


@pytest.fixture(scope="session")
def base(files) -> list[str]:
    return options(files)
