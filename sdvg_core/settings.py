"""Settings check themselves: each field of such a dataclass against its declared type, in `__post_init__`.

The declaration is the table of what is allowed. argparse and widgets check too, but a Python user has neither.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import BadInput

WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path"}
LARGEST = 2**64
"""A whole number above it may be too large for a float."""


def check_fields(settings: Any) -> None:
    """Raise `BadInput` for a field that is not of its declared type; text becomes a path, and a list a tuple."""
    for name, hint in _hints(settings.__class__).items():
        value = getattr(settings, name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        for kind in kinds:
            with suppress(TypeError):
                object.__setattr__(settings, name, _fitted(kind, value))
                break
        else:
            raise BadInput(_refusal(name, value, kinds))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


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
    return value


def _refusal(name: str, value: Any, kinds: tuple[Any, ...]) -> str:
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    ways = [_called(kind) for kind in kinds if get_origin(kind) is not Literal and kind is not NoneType]
    if choices and not ways and isinstance(value, str):
        return f"there is no {name} {value!r:.60}; choose one of {', '.join(choices)}"
    return f"{name} is {value!r:.80}; give {' or '.join([*choices, *ways])}"


def _called(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each item {_called(get_args(kind)[0])}"
    return WORDS.get(kind) or f"a {kind.__name__}"
