"""Settings are data: a field's name, type, default, range and help stand once, where the field is declared.

Each such dataclass validates itself with `check_fields`; command line, reports, `--from` and ComfyUI widgets are
derived from its fields. A separate table of options was not kept: it could disagree with the values.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import BadInput, quoted

TYPE_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path"}
_T = TypeVar("_T")
LARGEST_INTEGER = 2**64
"""Largest whole number accepted where no limit is stated, and for a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The description of a field. `settings_of` fills in `name`, `kinds` (types), `default`, `choices` (literals).

    `help`: of its command-line option; without it there is none. `flags`: spellings of the option, if not the
    field's name. `metavar`: placeholder of its value in the help. `called`: its name in messages, if not the
    field's. `least`, `most`: inclusive range of a number. `check`: raises `BadInput` for an invalid value.
    `needs`: the field without which it has no effect. `parts`: those of a run that it is for, without which it has
    none either. `of_files`: whether the files that are written can follow from it. `widget`: details of its ComfyUI
    widget; None without one.
    """

    name: str = ""
    kinds: tuple[Any, ...] = ()
    default: Any = None
    choices: tuple[str, ...] = ()
    help: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    called: str = ""
    least: float | None = None
    most: float | None = None
    check: Callable[[Any], object] | None = None
    needs: str | None = None
    parts: tuple[str, ...] = ()
    of_files: bool = True
    widget: Mapping[str, Any] | None = None

    @property
    def dest(self) -> str:
        """The name of its value among parsed options."""
        return self.flags[-1].removeprefix("--").replace("-", "_")

    def fitted(self, value: Any) -> Any:
        """Return a value converted to the field's type. Raises `BadInput` for an invalid one."""
        for kind in self.kinds:
            with suppress(TypeError):
                fitted = fit_value(kind, value)
                break
        else:
            raise BadInput(self._refusal(value))
        if isinstance(fitted, int | float) and not isinstance(fitted, bool):
            least = -math.inf if self.least is None else self.least
            most = math.inf if self.most is None else self.most
            if not least <= fitted <= most:
                raise BadInput(f"{self.called or self.name} is {quoted(fitted)}; give {self._range()}")
            if isinstance(fitted, int) and abs(fitted) > LARGEST_INTEGER:
                raise BadInput(f"{self.called or self.name} is {quoted(fitted)}; give a smaller number")
        if self.check and fitted is not None:
            self.check(fitted)
        return fitted

    def _range(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least} to {self.most}"
        return f"{self.least} or more" if self.least is not None else "a number"

    def _refusal(self, value: Any) -> str:
        ways = [_called(kind) for kind in self.kinds if get_origin(kind) is not Literal and kind is not NoneType]
        if self.choices and not ways and isinstance(value, str):
            return f"there is no {self.called or self.name} {value!r:.60}; choose one of {', '.join(self.choices)}"
        return f"{self.called or self.name} is {quoted(value, 80)}; give {' or '.join([*self.choices, *ways])}"


def setting(default: Any = MISSING, *, factory: Any = MISSING, **details: Any) -> Any:
    """Declare a dataclass field with the details of a `Setting`. `factory`: makes its default."""
    return field(default=default, default_factory=factory, metadata={"setting": Setting(**details)})


def settings_of(config: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass, by field name."""
    return _settings_of(config)


@cache
def _settings_of(config: type) -> Mapping[str, Setting]:
    hints = get_type_hints(config)
    settings = {}
    for item in fields(config):
        kinds = kinds_of(hints[item.name])
        declared = item.metadata.get("setting", Setting())
        settings[item.name] = replace(
            declared,
            name=item.name,
            kinds=kinds,
            default=item.default,
            choices=tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)),
            flags=declared.flags or (f"--{item.name.replace('_', '-')}",),
        )
    return settings


def check_fields(settings: Any) -> None:
    """Convert fields to their types (text to path, list to tuple). Raises `BadInput` for an invalid value."""
    config = settings.__class__
    known = settings_of(config)
    values = {name: getattr(settings, name) for name in known}
    changed = [name for name, value in values.items() if value is not known[name].default]
    for name in changed:
        values[name] = known[name].fitted(values[name])
        object.__setattr__(settings, name, values[name])
    check_needs(config, values, [name for name in changed if values[name] != known[name].default])


def checked(value: Any, kind: type, name: str) -> Any:
    """Return an argument of the Python API converted to its type. Raises `BadInput` for another one."""
    return Setting(name=name, kinds=(kind,)).fitted(value)


def check_needs(config: type, values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise `BadInput` if a field among `names` needs another one that `values` lack."""
    for name in names:
        needed = settings_of(config)[name].needs
        if needed and not values.get(needed):
            words = name.replace("_", " ")
            fault = f"{words} has no effect without {needed.replace('_', ' ')}"
            raise BadInput(f"{fault}; add it, or leave {words} out")


INFINITE = ("inf", "-inf")
"""Stand for infinite numbers, as JSON has none."""


def as_json(value: Any, of_object: Callable[[Any], str] = lambda value: type(value).__name__) -> Any:
    """Return settings as JSON values. A dataclass has its class as `kind`, as a field may take one of several.

    `of_object`: returns the text for an object that is no setting, such as a part that the user wrote.
    """
    if is_dataclass(value) and not isinstance(value, type):
        values = {item.name: as_json(getattr(value, item.name), of_object) for item in fields(value)}
        return {"kind": type(value).__name__, **values}
    if isinstance(value, list | tuple):
        return [as_json(item, of_object) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.name if isinstance(value, Path) else of_object(value)


def settings_for(part: str, settings: Any) -> dict[str, Any]:
    """Return the values that are for one part of a run, by field name; not those of settings inside."""
    known = settings_of(type(settings)).values()
    values = {field.name: getattr(settings, field.name) for field in known if part in field.parts}
    return {name: value for name, value in values.items() if not is_dataclass(value)}


def from_json(kind: type[_T], data: Any) -> _T:
    """Return the settings that `as_json` wrote. Raises `BadInput` for anything else."""
    known = settings_of(kind)
    if not isinstance(data, Mapping) or data.get("kind") != kind.__name__:
        raise BadInput(f"{quoted(data)} is no {kind.__name__}; give settings as a run wrote them")
    if unknown := data.keys() - known.keys() - {"kind"}:
        names = ", ".join(sorted(map(quoted, unknown)))
        raise BadInput(f"a {kind.__name__} of this version has no {names:.60}; leave it out")
    return kind(**{name: _read_json(known[name], value) for name, value in data.items() if name != "kind"})


def _read_json(setting: Setting, data: Any) -> Any:
    if float in setting.kinds and data in INFINITE:
        return float(data)
    if not isinstance(data, Mapping):
        return data
    kinds = [kind for kind in setting.kinds if isinstance(kind, type) and is_dataclass(kind)]
    for kind in kinds:
        if data.get("kind") == kind.__name__:
            return from_json(kind, data)
    ways = " or ".join(kind.__name__ for kind in kinds) or "another value"
    raise BadInput(f"{setting.name} is {quoted(data.get('kind'), 40)}; give {ways}")


def fit_value(kind: Any, value: Any) -> Any:
    """Return a value converted to one type: text to a path or a member of an enum, a list to a tuple.

    Raises `TypeError` if it does not fit.
    """
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(fit_value(get_args(kind)[0], item) for item in value)
    if kind is Path and isinstance(value, str | Path) and value:
        if impossible_path(str(value)):
            raise BadInput(f"the path {str(value)!r:.60} is too long or has a NUL byte; give another")
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, str):
        members = {member.name.lower(): member for member in kind}
        if value in members:
            return members[value]
    if get_origin(kind) is Literal:
        fits = isinstance(value, str) and value in get_args(kind)
    elif kind in (int, float):
        fits = isinstance(value, int | kind) and not isinstance(value, bool)
        fits = fits and (kind is int or isinstance(value, float) or abs(value) <= LARGEST_INTEGER)
    else:
        fits = kind is Any or (get_origin(kind) is None and isinstance(value, kind))
    if not fits:
        raise TypeError
    return float(value) if kind is float else value


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type hint allows."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def impossible_path(path: str) -> bool:
    """True for a path that no system has: too long, or with a NUL byte or a character that has no bytes."""
    try:
        coded = os.fsencode(path)
    except UnicodeEncodeError:
        return True
    # Bytes of a name and of a path, as on most systems.
    return b"\0" in coded or len(coded) > 4095 or max(map(len, coded.split(os.fsencode(os.sep)))) > 255


def _called(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each item {_called(get_args(kind)[0])}"
    return TYPE_WORDS.get(kind) or f"a {kind.__name__}"


def float32(value: float) -> float:
    """Round to float32, as scores and schedules are; infinity stays."""
    return array("f", (value,))[0]
