"""Each planted mistake turns its test red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

# What tests import for seconds: here once, and not in every fork.
import diffusers.models.autoencoders.autoencoder_kl_wan  # noqa: F401
import pytest
import transformers.models.umt5.modeling_umt5  # noqa: F401

from tests.planted import loop, parts
from tests.support.planted import Mistake, outcome

HERE = loop.MISTAKES | parts.MISTAKES
NAMES = [pytest.param(name, marks=pytest.mark.heavy) if HERE[name].heavy else name for name in HERE]


@pytest.mark.parametrize("name", NAMES)
def test_planted_mistake_turns_its_test_red(name: str, tmp_path: Path) -> None:
    """By one of its assertions. Catches: a promise whose test cannot fail."""
    log = tmp_path / "log"
    assert outcome(HERE[name], log) == "green, then red", log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [(lambda is_clear: is_clear, "green with the mistake"), (lambda is_clear: None, "stopped by an error")],
    ids=["no mistake", "a crash"],
)
def test_only_an_assertion_sees_a_mistake(wrong: Callable[[Any], Any], expected: str, tmp_path: Path) -> None:
    """Catches: a mistake that changes nothing, or is called with what it does not take, and passes for seen."""
    test = "engine/test_router.py::test_margin_includes_its_edge[-0.25-True-1]"
    assert outcome(Mistake(test, "sdvg_core.settings.route.Gate.is_clear", wrong), tmp_path / "log") == expected
