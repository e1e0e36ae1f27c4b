"""Settings of any value: one that is taken fits its field and comes back from a report; any other is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from sdvg_core.errors import BadInput
from sdvg_core.settings.context import get_preset
from sdvg_core.settings.execution import Execution
from sdvg_core.settings.fields import LARGEST_INTEGER, Setting, as_json, from_json, settings_of
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import VideoRequest, check_blocks, read_strength
from sdvg_core.settings.route import (
    At,
    Budget,
    Custom,
    First,
    Gate,
    Quantile,
    Route,
    Stride,
    WorstFrame,
    route_preset,
)
from sdvg_core.settings.schedules import get_schedule

from .answers import answer, spoken_badly

KINDS: dict[type, dict[str, Any]] = {
    VideoRequest: {},
    LoadOptions: {},
    ModelOptions: {},
    Execution: {},
    Route: {},
    Gate: {},
    First: {},
    At: {},
    Stride: {},
    WorstFrame: {},
    Quantile: {},
    Budget: {"share": 0.5},
}
"""Settings, each with the values that it needs."""
IDS = [kind.__name__ for kind in KINDS]
ABSURD = (10**5000, -(10**5000), 10**400, -(2**64), 2**53 + 1)
"""Of over 4,300 digits Python writes none."""
NUMBERS = st.integers() | st.floats() | st.sampled_from(ABSURD)
WORDS = st.text(max_size=10) | st.sampled_from(("inf", "nan", "\0", "\ud800", "x" * 300, "own", "auto", "1,2"))
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS | st.binary(max_size=3) | st.builds(object)
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(WORDS, LEAVES, max_size=2)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@given(data=st.data(), value=VALUES)
def test_value_fits_its_field_or_is_refused(kind: type, data: st.DataObject, value: object) -> None:
    """Catches: a value out of range or of another type that is taken, and an error of Python's."""
    name = data.draw(st.sampled_from(sorted(settings_of(kind))))
    settings = answer(lambda: kind(**{**KINDS[kind], name: value}))
    if isinstance(settings, BadInput):
        assert spoken_badly(str(settings)) == ""
        return
    setting = settings_of(kind)[name]
    taken = getattr(settings, name)
    assert setting.fitted(taken) == taken
    assert not isinstance(taken, bool) or bool in setting.kinds
    if isinstance(taken, float | int) and setting.least is not None:
        assert taken >= setting.least
    if isinstance(taken, float | int) and setting.most is not None:
        assert taken <= setting.most


@pytest.mark.parametrize("read", [get_preset, route_preset, get_schedule, read_strength, check_blocks])
def test_absurd_number_is_refused_where_words_are(read: Callable[[Any], object]) -> None:
    """Catches: a refusal that ends in Python's own error, as it writes the number out."""
    with pytest.raises(BadInput, match="a number of many digits"):
        read(10**5000)


def legal(setting: Setting) -> st.SearchStrategy[Any]:
    """Draw a value that a setting should take."""
    return st.one_of([of_kind(kind, setting) for kind in setting.kinds if kind is not Custom])


def of_kind(kind: Any, setting: Setting) -> st.SearchStrategy[Any]:
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is float:
        return st.floats(setting.least, setting.most, allow_nan=False)
    if kind is int:
        return st.integers(setting.least, LARGEST_INTEGER if setting.most is None else setting.most)
    if kind is bool:
        return st.booleans()
    if kind is NoneType:
        return st.none()
    if isinstance(kind, type) and is_dataclass(kind):
        return instances(kind)
    return st.just(setting.default)  # texts have formats of their own


@st.composite
def instances(draw: st.DrawFn, kind: type) -> Any:
    """Draw settings with a few that are not the default."""
    known = settings_of(kind)
    # A path is written by its name alone, and what needs another field is refused without it.
    free = [name for name, setting in known.items() if not setting.needs and Path not in setting.kinds]
    changed = draw(st.lists(st.sampled_from(free), max_size=3, unique=True)) if free else []
    values = {name: draw(legal(known[name])) for name in changed}
    try:
        return kind(**{**KINDS.get(kind, {}), **values})
    except BadInput:
        reject()


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@given(data=st.data())
def test_settings_come_back_from_json(kind: type, data: st.DataObject) -> None:
    """Catches: a setting of a report that `--from` reads as another value, or refuses."""
    settings = data.draw(instances(kind))
    written = json.dumps(as_json(settings), allow_nan=False)
    assert from_json(kind, json.loads(written)) == settings
