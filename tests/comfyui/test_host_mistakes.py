"""Each planted mistake in the nodes turns its test red."""

from pathlib import Path

import pytest

from tests.planted.host import MISTAKES
from tests.support.planted import outcome

pytestmark = pytest.mark.comfyui


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_turns_its_test_red(name: str, tmp_path: Path) -> None:
    """By one of its assertions. Catches: a promise whose test cannot fail."""
    log = tmp_path / "log"
    assert outcome(MISTAKES[name], log, mark="comfyui") == "green, then red", log.read_text(encoding="utf-8")
