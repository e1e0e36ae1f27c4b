"""`BadInput`, the one exception that users see as a sentence, and the parts that its messages share."""

import re
from pathlib import Path
from typing import Any

LONGEST = 390
"""Characters of a message; with the command line's prefix it stays under 400."""


GAP = " ... "


class BadInput(ValueError):
    """Input that cannot be used.

    The message is one sentence: the fault, then the remedy. The command line prints it and exits with code 2;
    ComfyUI shows it on the node. It may quote an untrusted file, so unprintable characters are escaped, and the
    middle of a message longer than `LONGEST` is cut out.
    """

    def __init__(self, message: str, help: str = "") -> None:
        """`help`: lines to print below the message, unchanged."""
        super().__init__(printable(message) + (f"\n{help}" if help else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as it is: a subclass may take other arguments than it keeps, and workers send their refusals."""
        return BaseException.__new__, (type(self), *self.args), self.__dict__


class MissingModel(BadInput):
    """A block needs a model that is missing."""

    def __init__(self, role: str, fault: str, way_out: str) -> None:
        """`role`: drafter, target or scorer. `way_out`: the remedy without it."""
        super().__init__(f"{fault}; load one, or {way_out}")
        self.role = role
        self.fault = fault
        self.way_out = way_out


CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor or turn text around; not tabs and ends of lines."""


def escaped(text: str) -> str:
    """Return text for a terminal, with control and direction characters escaped."""
    return CONTROL_CHARACTERS.sub(lambda odd: ascii(odd[0])[1:-1], text)


def printable(text: str) -> str:
    """Return text with control and direction characters escaped, at most `LONGEST` long."""
    text = _shortened(text)
    if text.isprintable():
        return text
    return _shortened("".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text))


def _shortened(text: str) -> str:
    """Cut out the middle of a long text: the end of a message is the remedy."""
    if len(text) <= LONGEST:
        return text
    half = (LONGEST - len(GAP)) // 2
    return f"{text[:half]}{GAP}{text[-half:]}"


def quoted(value: object, most: int = 60) -> str:
    """Return a value as Python writes it, at most `most` characters, for a message.

    Python writes no whole number of over 4,300 digits, inside a list neither, and raises `ValueError`.
    """
    try:
        return f"{value!r:.{most}}"
    except ValueError:
        return "a number of many digits"


PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
"""A wheel does not have it."""


def see(heading: str) -> str:
    """Return the reference that ends a message, if the page is there. `heading`: of docs/troubleshooting.md."""
    return f" (troubleshooting: {heading})" if PAGE.is_file() else ""


def unreadable(container: str, name: str, error: Exception) -> BadInput:
    """Return the error for a damaged file `name`. `container`: its expected type."""
    # On systems that do not overcommit, a private mapping needs memory.
    short = "unable to mmap" in str(error)
    cure = "use a smaller version of the file, or add swap" if short else "fetch it again"
    return BadInput(f"{name} is no whole {container} file ({first_line(error)}); {cure}")


def why(error: Exception) -> str:
    """Return the reason of an `OSError` without the file's name."""
    return getattr(error, "strerror", None) or str(error)


def first_line(error: object) -> str:
    """Return the first line of an error's message, at most 160 characters, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 block`, `2 blocks`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
