"""HTML from values. Text is escaped unless it is `Markup`, and only `element` and `joined` make that."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..errors import printable

VOID = ("meta", "input", "img", "br")
Child = object
"""`Markup`, or anything else, whose text is then escaped; None and False are nothing."""


class Markup(str):
    """HTML that is safe as it stands."""

    __slots__ = ()


def element(name: str, /, *children: Child, **attributes: object) -> Markup:
    """Return an element. An attribute `data_x` is called `data-x`, and `class_` class.

    An attribute of None or False is left out, and one of True has no value. Long text is cut (`printable`).
    """
    tag = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{tag}>" if name in VOID else f"<{tag}>{joined(children)}</{name}>")


def joined(children: Iterable[Child], between: str = "") -> Markup:
    """Return children one after another."""
    return Markup(between.join(_child(child) for child in children if child is not None and child is not False))


def _child(child: Child) -> str:
    return child if isinstance(child, Markup) else _safe(child)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_child(value)}"'


def _safe(value: object) -> str:
    """Return text without meaning to a browser: no tags, no quotes, no invisible characters."""
    return escape(printable(str(value)), quote=True)
