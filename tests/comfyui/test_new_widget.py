"""The widget of a new option of the request, which is one field and its words: see tests/cli/test_new_option.py."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scratch_option import WORDS, copy_with_option

pytestmark = pytest.mark.comfyui

PACK = "sdvg_with_one_more_option"


def test_a_new_option_is_the_last_widget_of_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which keeps the values of saved workflows in place. Catches: a widget that the node lists by itself."""
    pack: Any = ModuleType(PACK)
    pack.__path__ = [str(copy_with_option(tmp_path))]
    monkeypatch.setitem(sys.modules, PACK, pack)
    sampler = import_module(f"{PACK}.nodes.sampler")
    *others, widget = sampler.SpeculativeSampler.define_schema().inputs
    from sdvg_pack.nodes.sampler import SpeculativeSampler

    assert [field.id for field in others] == [field.id for field in SpeculativeSampler.define_schema().inputs]
    assert (widget.id, widget.default, widget.min, widget.max, widget.step) == ("grain", 0.0, 0.0, 1.0, 0.1)
    assert widget.tooltip == WORDS["en"]
    assert "grain" in sampler.OF_REQUEST
