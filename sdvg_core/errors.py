"""Our one exception, and its sentence for a damaged file."""

LONGEST = 390
"""Characters of a message; the command line puts its name before it."""


GAP = " ... "


class BadInput(ValueError):
    """Something the user gave cannot be used.

    The message is one sentence: the fault, then the remedy. The command line prints it and exits with code 2;
    ComfyUI shows it on the node. It may quote a stranger's file, so unprintable characters are escaped, and the
    middle of a very long message is cut out.
    """

    def __init__(self, message: str, help: str = "") -> None:
        """Take the sentence, and help to print below it, unchanged."""
        super().__init__(printable(message) + (f"\n{help}" if help else ""))


class MissingModel(BadInput):
    """A block may ask for a model that is not there."""

    def __init__(self, role: str, fault: str, way_out: str) -> None:
        """`role`: drafter, target or scorer. `way_out`: what to do without it."""
        super().__init__(f"{fault}; load one, or {way_out}")
        self.role = role
        self.fault = fault
        self.way_out = way_out


def printable(text: str) -> str:
    """Return text that is safe on a terminal: no control characters, no change of direction, not too long."""
    text = _shortened(text)
    if text.isprintable():
        return text
    return _shortened("".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text))


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text; in a message, the end says what to do."""
    if len(text) <= LONGEST:
        return text
    half = (LONGEST - len(GAP)) // 2
    return f"{text[:half]}{GAP}{text[-half:]}"


def see(heading: str) -> str:
    """Return the end of a message whose remedy takes more than a sentence.

    `heading`: of docs/troubleshooting.md.
    """
    return f" (troubleshooting: {heading})"


def unreadable(container: str, name: str, error: Exception) -> BadInput:
    """Return the error for a damaged file `name`; `container`: the kind of file it should be."""
    # A private mapping counts as memory on systems that do not overcommit.
    short = "unable to mmap" in str(error)
    cure = "use a smaller version of the file, or add swap" if short else "fetch it again"
    return BadInput(f"{name} is no whole {container} file ({first_line(error)}); {cure}")


def why(error: Exception) -> str:
    """Return what the system says of a file, without the name that a sentence has already."""
    return getattr(error, "strerror", None) or str(error)


def first_line(error: object) -> str:
    """Return the start of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def count(number: int, what: str) -> str:
    """Return `1 block`, `2 blocks`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
