"""Our one exception, and its sentence for a damaged file."""

LONGEST = 2000


class BadInput(ValueError):
    """Something the user gave cannot be used.

    The message is one sentence in three parts: what was expected, what came, what to do. The command line prints it
    and exits with code 2; ComfyUI shows it on the node. It may quote a stranger's file, so unprintable characters
    are escaped, and the middle of a very long message is cut out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return text that is safe on a terminal: no control characters, no change of direction, not too long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def unreadable(container: str, name: str, error: Exception) -> BadInput:
    """Return the error for a damaged file `name`; `container`: the kind of file it should be."""
    # A private mapping counts as memory on systems that do not overcommit.
    short = "unable to mmap" in str(error)
    cure = "use a smaller version of the file, or add swap" if short else "fetch it again"
    return BadInput(f"{container} files must be whole, but {name} cannot be read ({first_line(error)}); {cure}")


def first_line(error: object) -> str:
    """Return the start of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
