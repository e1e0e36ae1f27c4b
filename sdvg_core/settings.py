"""Settings are data: a field's name, type, default, range and words stand once, where the field is declared.

Each such dataclass checks itself by `check_fields`. The command line, reports, `--from` and widgets in ComfyUI are
derived from the same fields. The road not taken, a table of options apart from the values, let the two disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import BadInput

WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path"}
LARGEST = 2**64
"""A whole number above it may be too large for a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a field is. `settings_of` adds what its declaration says: `name`, `kinds` (of its values), `default`.

    `help`: the words of its option on the command line; without them it has no option. `flags`: how the option is
    spelled, if not like the field. `metavar`: what stands for its value there. `least`, `most`: of a number; both
    are allowed. `check`: raises `BadInput` for a value that cannot be used. `needs`: the field without which it has
    no effect; `part`: the model that reads it. `chooses`: the router's policy that it stands for, unless another
    one is given that reads it. `widget`: what its widget in ComfyUI has besides; None without one. `reported`:
    whether the report has it. `choices`: the words among its values.
    """

    name: str = ""
    kinds: tuple[Any, ...] = ()
    default: Any = None
    choices: tuple[str, ...] = ()
    help: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    check: Callable[[Any], object] | None = None
    needs: str | None = None
    part: str | None = None
    chooses: Any = None
    widget: Mapping[str, Any] | None = None
    reported: bool = True

    def fitted(self, value: Any) -> Any:
        """Return a value as the field holds it. Raises `BadInput` for one that is not as it is declared."""
        for kind in self.kinds:
            with suppress(TypeError):
                fit = _fitted(kind, value)
                break
        else:
            raise BadInput(self._refusal(value))
        if isinstance(fit, int | float) and not isinstance(fit, bool):
            least = -math.inf if self.least is None else self.least
            most = math.inf if self.most is None else self.most
            if not least <= fit <= most:
                raise BadInput(f"{self.name} is {fit!r:.60}; give {self._range()}")
        if self.check and fit is not None:
            self.check(fit)
        return fit

    def _range(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least} to {self.most}"
        return f"{self.least} or more" if self.least is not None else "a number"

    def _refusal(self, value: Any) -> str:
        ways = [_called(kind) for kind in self.kinds if get_origin(kind) is not Literal and kind is not NoneType]
        if self.choices and not ways and isinstance(value, str):
            return f"there is no {self.name} {value!r:.60}; choose one of {', '.join(self.choices)}"
        return f"{self.name} is {value!r:.80}; give {' or '.join([*self.choices, *ways])}"


PLAIN = Setting()


def setting(default: Any = MISSING, *, factory: Any = MISSING, **details: Any) -> Any:
    """Return a dataclass field with these details of a `Setting`; `factory` makes its default."""
    return field(default=default, default_factory=factory, metadata={"setting": Setting(**details)})


@cache
def settings_of(config: type) -> Mapping[str, Setting]:
    """Return what each field of a dataclass is, by its name."""
    hints = get_type_hints(config)
    settings = {}
    for item in fields(config):
        hint = hints[item.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        declared = item.metadata.get("setting", PLAIN)
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
    """Raise `BadInput` for a field that is not as it is declared; text becomes a path, and a list a tuple."""
    config = settings.__class__
    known = settings_of(config)
    values = {name: getattr(settings, name) for name in known}
    changed = [name for name, value in values.items() if value is not known[name].default]
    for name in changed:
        values[name] = known[name].fitted(values[name])
        object.__setattr__(settings, name, values[name])
    check_needs(config, values, [name for name in changed if values[name] != known[name].default])


def check_needs(config: type, values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise `BadInput` for a field among `names` that has no effect, because `values` lack another one."""
    for name in names:
        needed = settings_of(config)[name].needs
        if needed and not values.get(needed):
            words = name.replace("_", " ")
            fault = f"{words} has no effect without {needed.replace('_', ' ')}"
            raise BadInput(f"{fault}; add it, or leave {words} out")


def _fitted(kind: Any, value: Any) -> Any:
    """Return a value as a field of this type holds it. Raises `TypeError` for a value of another type."""
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_fitted(get_args(kind)[0], item) for item in value)
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    if get_origin(kind) is Literal:
        fits = isinstance(value, str) and value in get_args(kind)
    elif kind in (int, float):
        fits = isinstance(value, int | kind) and not isinstance(value, bool)
        fits = fits and (kind is int or isinstance(value, float) or abs(value) <= LARGEST)
    else:
        fits = kind is Any or (get_origin(kind) is None and isinstance(value, kind))
    if not fits:
        raise TypeError
    return float(value) if kind is float else value


def _called(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each item {_called(get_args(kind)[0])}"
    return WORDS.get(kind) or f"a {kind.__name__}"
